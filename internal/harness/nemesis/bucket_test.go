//go:build unix

package nemesis_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
)

func TestFullFleet_Publish_ClearErrorNoLoss(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	w := newLone(t, "--shards", "1", "--quota", "16MiB", "--purge-after", "never")
	fleet := connected(t, publisher.Config{Conn: w.conn(t), Executor: "player", PublishTimeout: patience, FullPatience: 2 * time.Second})
	acknowledged := make(map[string]int)
	runs := make(map[string]*publisher.Run)
	var full *publisher.FullError
	for i := 0; full == nil; i++ {
		require.Less(t, i, 10_000, "the fleet is never full")
		id := fmt.Sprintf("run-%d", i)
		run, err := fleet.Start(t.Context(), publisher.RunSpec{ID: id, Agent: "a"})
		if errors.As(err, &full) {
			break
		}
		require.NoError(t, err)
		runs[id] = run
		for range 2 {
			err := run.AddMessage(t.Context(), text("user", strings.Repeat("x", 100_000)))
			if errors.As(err, &full) {
				break
			}
			require.NoError(t, err)
			acknowledged[id]++
		}
	}
	t.Logf("full after %d runs: %v", len(runs), full)
	require.ErrorIs(t, full, publisher.ErrFleetFull)
	require.Equal(t, "default", full.Fleet)

	// Reads and takeovers work on a full fleet, and the acknowledged events are there.
	other := w.fleet(t, "other")
	for id := range runs {
		state, err := other.Get(t.Context(), id)
		require.NoError(t, err, id)
		require.Len(t, state.Messages, acknowledged[id], id)
	}
	taken, err := other.Resume(t.Context(), "run-0", publisher.ResumeSpec{})
	require.NoError(t, err)
	require.Len(t, taken.State().Messages, acknowledged["run-0"])
}
