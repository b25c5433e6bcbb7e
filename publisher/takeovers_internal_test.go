package publisher

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestTakeovers_RunTakenOverTwice_IsListedUntilBothAreDone(t *testing.T) {
	t.Parallel()
	var l takeovers
	listed := func() map[schema.HeldRun]struct{} {
		to := make(map[schema.HeldRun]struct{})
		l.list(to)
		return to
	}
	alone, first := l.begin("r1")
	require.True(t, alone)
	alone, second := l.begin("r1")
	require.False(t, alone)
	first()
	require.Contains(t, listed(), schema.HeldRun{Run: "r1"})
	second()
	require.Empty(t, listed())
}
