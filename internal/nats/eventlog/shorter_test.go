package eventlog_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
)

func TestShorter_ReplicatedLog_BelievedAfterTrust(t *testing.T) {
	t.Parallel()
	var s eventlog.Shorter
	at := time.Now()
	sign := func(copies int, after time.Duration) bool {
		_, believed := s.Seems(copies, at.Add(after))
		return believed
	}
	require.False(t, sign(3, 0))
	require.False(t, sign(3, eventlog.ShorterTrust-1))
	s.Reaches()
	require.False(t, sign(3, eventlog.ShorterTrust), "one sound answer begins the time again")
	require.True(t, sign(3, 2*eventlog.ShorterTrust))
	s.Reaches()
	require.True(t, sign(1, 0), "a lone server has no other leader")
}
