package consumer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestABatchGathersForSeveralTimesAsLongAsCommitsTake(t *testing.T) {
	var p pace
	require.Zero(t, p.linger(), "nothing is known yet")
	p.committed(20 * time.Millisecond)
	require.Zero(t, p.linger(), "one commit says nothing")
	p.committed(10 * time.Millisecond)
	require.Equal(t, pacedLinger*10*time.Millisecond, p.linger())
	p.committed(time.Second)
	require.Equal(t, pacedLinger*10*time.Millisecond, p.linger(), "one that took long is an exception")
	p.committed(time.Second)
	require.Equal(t, maxPacedLinger, p.linger(), "bounded")
	p.committed(time.Millisecond)
	require.Equal(t, pacedLinger*time.Millisecond, p.linger(), "and over at once")
}
