package liveness

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/fleettest"
)

// A deployment of many replicas whose configuration gives all the same name.
func TestSweeper_SharedExecutorName_AllowsManyProcesses(t *testing.T) {
	t.Parallel()
	c := fleettest.NewHandClock(fleettest.Noon)
	h := NewHeartbeats("default", nil, nil, c.Now, noLog)
	const replicas = 200
	for range 3 {
		for i := range replicas {
			c.Forward(beat / replicas)
			h.beat("coder", fmt.Sprintf("pod-%d", i), beat, false)
		}
	}
	for i := range replicas {
		_, known := h.last("coder", fmt.Sprintf("pod-%d", i), 10*time.Second)
		require.True(t, known, "pod-%d beats every three seconds, and its runs are not orphaned", i)
	}
}
