package fold

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBatch_SlowCommits_GatherLonger(t *testing.T) {
	t.Parallel()
	const many = 1000
	var p pace
	require.Zero(t, p.linger(), "nothing is known yet")
	p.committed(cost{20 * time.Millisecond, many})
	require.Zero(t, p.linger(), "one commit says nothing")
	p.committed(cost{10 * time.Millisecond, many})
	require.Equal(t, pacedLinger*10*time.Millisecond, p.linger())
	p.committed(cost{time.Second, many})
	require.Equal(t, pacedLinger*10*time.Millisecond, p.linger(), "one that took long is an exception")
	p.committed(cost{time.Second, many})
	require.Equal(t, maxPacedLinger, p.linger(), "bounded")
	p.committed(cost{time.Millisecond, many})
	require.Equal(t, pacedLinger*time.Millisecond, p.linger(), "and over at once")
}

func TestBatch_FewRunsOnSlowDisk_DoNotGather(t *testing.T) {
	t.Parallel()
	var p pace
	p.committed(cost{time.Second, 2})
	p.committed(cost{time.Second, 3})
	require.Equal(t, 2*lingerPerPut, p.linger())
}
