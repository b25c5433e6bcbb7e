package base

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// ByteSize is a number of bytes: 1048576, 64KiB, 10GiB, 1GB. 0 means the default.
type ByteSize int64

// Flag is the size as a flag takes it, exactly.
func (n ByteSize) Flag() string {
	unit := ""
	for _, larger := range []string{"KiB", "MiB", "GiB"} {
		if n%1024 != 0 {
			break
		}
		n, unit = n/1024, larger
	}
	return strconv.FormatInt(int64(n), 10) + unit
}

// units are the powers of 1024 (KiB, K) and of 1000 (KB).
var units = []struct {
	suffix string
	factor float64
}{
	{"kib", 1 << 10},
	{"mib", 1 << 20},
	{"gib", 1 << 30},
	{"tib", 1 << 40},
	{"kb", 1e3},
	{"mb", 1e6},
	{"gb", 1e9},
	{"tb", 1e12},
	{"k", 1 << 10},
	{"m", 1 << 20},
	{"g", 1 << 30},
	{"t", 1 << 40},
	{"b", 1},
	{"", 1},
}

// Positive is a count given by a flag. Without the flag it is 0, which means the default; an explicit 0 is an error.
type Positive int

// UnmarshalText reads the flag.
func (n *Positive) UnmarshalText(text []byte) error {
	v, err := strconv.Atoi(string(text))
	if err != nil || v < 1 {
		return fmt.Errorf("%q is not a number of at least 1; for the default, omit the flag", text)
	}
	*n = Positive(v)
	return nil
}

func parseByteSize(s string) (ByteSize, error) {
	lower := strings.ToLower(strings.TrimSpace(s))
	for _, u := range units {
		number, ok := strings.CutSuffix(lower, u.suffix)
		if !ok {
			continue
		}
		f, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || f < 0 || f*u.factor >= math.MaxInt64 || math.IsNaN(f) {
			break
		}
		return ByteSize(f * u.factor), nil
	}
	return 0, fmt.Errorf("%q is not a size: write bytes or a unit, such as 512MiB or 10GiB", s)
}

// DecodeByteSize is kong's mapper for ByteSize.
func DecodeByteSize(ctx *kong.DecodeContext, target reflect.Value) error {
	var s string
	if err := ctx.Scan.PopValueInto("size", &s); err != nil {
		return err
	}
	n, err := parseByteSize(s)
	if err != nil {
		return err
	}
	target.SetInt(int64(n))
	return nil
}

// QuotaSize is the size of a shard's log. 0 means the default; a fleet has at least [kvstore.MinQuotaBytes].
type QuotaSize int64

// DecodeQuotaSize is kong's mapper for QuotaSize. It refuses sizes that the store would refuse, and names them in the
// flag's unit.
func DecodeQuotaSize(ctx *kong.DecodeContext, target reflect.Value) error {
	if err := DecodeByteSize(ctx, target); err != nil {
		return err
	}
	if n := target.Int(); n != 0 && n < kvstore.MinQuotaBytes {
		return fmt.Errorf("%s is too small: use %dMiB or more", output.Bytes(n), kvstore.MinQuotaBytes>>20)
	}
	return nil
}

// ParseDays reads a Go duration or a whole number of days, up to the longest retention.
func ParseDays(s string) (time.Duration, error) {
	days, ok := strings.CutSuffix(s, "d")
	if !ok {
		return time.ParseDuration(s)
	}
	n, err := strconv.Atoi(days)
	if err != nil || n > schema.MaxRetentionSeconds/86400 {
		return 0, fmt.Errorf("%q is not a number of days", days)
	}
	return time.Duration(n) * 24 * time.Hour, nil
}
