package publisher

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQuickAckReadsOnlyThePlainAcknowledgement(t *testing.T) {
	t.Parallel()
	tests := map[string]uint64{
		`{"stream":"S", "seq":7}`:                     7,
		`{"stream":"S","seq":18446744073709551}`:      18446744073709551,
		`{"stream":"S", "seq":7,"duplicate": true}`:   0,
		`{"stream":"S", "seq":0}`:                     0,
		`{"stream":"S", "seq":}`:                      0,
		`{"stream":"S", "seq":-1}`:                    0,
		`{"stream":"", "seq":7}`:                      0,
		`{"stream":"S\"", "seq":7}`:                   0,
		`{"stream":"S", "domain":"d", "seq":7}`:       0,
		`{"stream":"S", "seq":7`:                      0,
		`{"stream":"S", "seq":99999999999999999999}`:  0,
		`{"error":{"code":400},"stream":"S","seq":7}`: 0,
		``: 0,
	}
	for text, want := range tests {
		seq, ok := quickAck([]byte(text))
		require.Equal(t, want, seq*map[bool]uint64{true: 1}[ok], "%s", text)
		require.Equal(t, want > 0, ok, "%s", text)
	}
}
