package nemesis_test

import (
	"errors"
	"flag"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/testbin"
)

// patience bounds every single wait.
const patience = 2 * time.Minute

// Programs under test, built by TestMain.
var waymarkBinary, helperBinary string

func TestMain(m *testing.M) {
	flag.Parse()
	// With -short no test starts a program.
	found := func(p []string) { waymarkBinary, helperBinary = p[0], p[1] }
	os.Exit(testbin.Main(m.Run, !testing.Short(), found, "../../../cmd/waymark", "./helper")) //nolint:forbidigo // this is main
}

// number reads a variable that is a number.
func number(tb testing.TB, variable string, otherwise uint64) uint64 {
	tb.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(tb, err, variable)
	return n
}

func errorsAs(err error, target any) bool { return errors.As(err, target) }
