package schema

import "strings"

const upperHex = "0123456789ABCDEF"

// percentEncode escapes the characters that the CloudEvents HTTP binding escapes in header values: space, double
// quote, percent, and everything outside U+0021 to U+007E.
func percentEncode(s string) string {
	n := 0
	for i := range len(s) {
		if mustEscape(s[i]) {
			n++
		}
	}
	if n == 0 {
		return s
	}
	b := make([]byte, 0, len(s)+2*n)
	for i := range len(s) {
		if c := s[i]; mustEscape(c) {
			b = append(b, '%', upperHex[c>>4], upperHex[c&15])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

func mustEscape(c byte) bool { return c <= ' ' || c >= 0x7f || c == '"' || c == '%' }

// percentDecode undoes percentEncode exactly once. A percent sign that begins no escape is kept and counted.
func percentDecode(s string) (text string, lone int) {
	if strings.IndexByte(s, '%') < 0 {
		return s, 0
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b = append(b, s[i])
			continue
		}
		if i+2 < len(s) { // room for two digits
			hi, lo := unhex(s[i+1]), unhex(s[i+2])
			if hi >= 0 && lo >= 0 {
				b = append(b, byte(hi<<4|lo)) //nolint:gosec // both are 0..15
				i += 2
				continue
			}
		}
		b = append(b, '%')
		lone++
	}
	return string(b), lone
}

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	}
	return -1
}
