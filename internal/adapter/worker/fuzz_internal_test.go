package worker

import (
	"bufio"
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzLine reads lines of a program. No line panics, and each that is taken is one of a hello, an answer or a request.
func FuzzLine(f *testing.F) {
	for _, line := range []string{
		`{"hello":{"protocol":1,"agent":"a","tools":[{"name":"t","replay":"hold","parameters":{"type":"object"}}]}}`,
		`{"id":1,"text":"x","calls":[{"id":"c1","name":"t","arguments":"{\"a\":1}"}],"usage":{"input_tokens":1}}`,
		`{"id":2,"error":"x","retry_at":"2026-01-02T03:04:05Z"}`, `{"id":"c1","run":"r","do":"call","call":"x","arguments":{}}`, "", "\n\n", "null", "[1]", `{"id":1e400}`,
	} {
		f.Add([]byte(line + "\n"))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		l := &lines{from: bufio.NewReader(bytes.NewReader(text))}
		for {
			m, err := l.next()
			if err != nil {
				return
			}
			require.False(t, m.number() != 0 && m.text() != "", "%s", text)
			_, _, _ = m.greet(), m.failure(), m.answer()
			for _, c := range m.Calls {
				if len(c.Arguments) > 0 {
					require.True(t, object(c.Arguments).IsValid(), "%s", c.Arguments)
				}
			}
		}
	})
}
