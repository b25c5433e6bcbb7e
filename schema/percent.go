package schema

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// percentEncode escapes the characters that the CloudEvents HTTP binding escapes in header values: space, double
// quote, percent, and everything outside U+0021 to U+007E.
func percentEncode(s string) string {
	var b []byte
	for i := range len(s) {
		switch c := s[i]; {
		case c <= ' ' || c >= 0x7f || c == '"' || c == '%':
			if b == nil {
				b = append(b, s[:i]...)
			}
			b = fmt.Appendf(b, "%%%02X", c)
		case b != nil:
			b = append(b, c)
		}
	}
	if b == nil {
		return s
	}
	return string(b)
}

// percentDecode undoes percentEncode exactly once. A percent sign that begins no escape is kept, because some encoders
// do not escape.
func percentDecode(s string) string {
	plain, rest, found := strings.Cut(s, "%")
	if !found {
		return s
	}
	b := []byte(plain)
	for part := range strings.SplitSeq(rest, "%") {
		decoded, err := hex.DecodeString(part[:min(2, len(part))])
		if err != nil || len(decoded) == 0 {
			b = append(append(b, '%'), part...)
			continue
		}
		b = append(append(b, decoded...), part[2:]...)
	}
	return string(b)
}
