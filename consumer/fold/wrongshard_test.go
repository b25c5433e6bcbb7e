package fold_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// runIn returns the id of a run of a shard of two.
func runIn(tb testing.TB, name string, shard int) string {
	tb.Helper()
	for n := range 1000 {
		if id := fmt.Sprintf("%s-%d", name, n); schema.ShardOf(id, 2) == shard {
			return id
		}
	}
	require.FailNow(tb, "no such id")
	return ""
}

// The server acknowledges an event in a wrong shard, too, but no reader looks for the run there.
func TestFold_RunOfAnotherShard_IsRefusedWithItsSubject(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, kvstore.FleetConfig{Fleet: "default", Shards: 2, QuotaBytes: kvstore.MinQuotaBytes})
	f, _ := w.Fold(fold.Config{Shards: 2})
	folds := func(run string) {
		at := w.Writer(run).Start()
		w.Await(run, func(c *schema.Checkpoint) bool { return c.Run == run && c.Position.Stream == at })
	}

	wrong := runIn(t, "wrong", 1)
	w.Writer(wrong).Start()
	folds(runIn(t, "right", 0))
	require.EqualValues(t, 1, f.Stats().DeadLetters.Load())
	list := fleettest.Letters(t, w.JS, "default")
	require.Len(t, list, 1)
	require.Equal(t, wrong, list[0].Run)
	require.Equal(t, schema.ReasonWrongShard, list[0].Reason)
	require.Contains(t, list[0].Detail, "belongs to shard 1: publish its events on waymark.events.default.1."+wrong)
}
