package kvstore_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/natsd"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// large is a checkpoint of nine tenths of a megabyte.
func large(run string, at schema.StreamSequence) *schema.Checkpoint {
	cp := checkpoint(run, at)
	for i := range 250 {
		cp.CompletedPhases = append(cp.CompletedPhases, fmt.Sprintf("%04d%s", i, strings.Repeat(`"`, 1800)))
	}
	return cp
}

// newLeanBench is a bench whose server leaves out what is beyond eight megabytes of an answer.
func newLeanBench(t *testing.T) *bench {
	t.Helper()
	b := newBench(t, natstest.With(func(c *natsd.Config) { c.Options = func(o *server.Options) { o.MaxPending = 8 << 20 } }))
	cfg := smallFleet()
	cfg.QuotaBytes = 256 << 20
	require.NoError(t, kvstore.Provision(t.Context(), b.js, cfg))
	return b
}

// checkpointsOf reads the checkpoints of all of some runs.
func checkpointsOf(t *testing.T, cps *kvstore.Checkpoints, runs []string) (all []kvstore.Stored, most int, upTo schema.Revision) {
	t.Helper()
	for len(runs) > 0 {
		list, at, err := cps.Of(t.Context(), runs)
		require.NoError(t, err)
		for i := range list {
			require.Equal(t, runs[i], list[i].Run)
		}
		all, most, upTo, runs = append(all, list...), max(most, len(list)), max(upTo, at), runs[len(list):]
	}
	return all, most, upTo
}

// One answer of the server is bounded, and what it left out was an error: a megabyte of each of 64 runs was enough.
func TestCheckpoints_LargerTogetherThanAnAnswer_ComeInParts(t *testing.T) {
	t.Parallel()
	b := newLeanBench(t)
	var runs []string
	for i := range 14 {
		run := fmt.Sprintf("run-%05d", (i*5)%14)
		_, err := b.shard.Checkpoints.Put(t.Context(), large(run, schema.StreamSequence(i+1)), 0)
		require.NoError(t, err)
		runs = append(runs, fmt.Sprintf("run-%05d", i))
	}
	runs = append(runs[:7:7], append([]string{"unknown"}, runs[7:]...)...)
	all, most, upTo := checkpointsOf(t, b.shard.Checkpoints, runs)
	require.Less(t, most, 8, "a caller gets a few megabytes at a time")
	require.NotZero(t, upTo)
	for i := range all {
		if runs[i] == "unknown" {
			require.ErrorIs(t, all[i].Err, kvstore.ErrNotFound)
			continue
		}
		require.NoError(t, all[i].Err)
		require.Len(t, all[i].Checkpoint.CompletedPhases, 250)
	}

	_, rev, err := b.shard.Checkpoints.GetFresh(t.Context(), "run-00000")
	require.NoError(t, err)
	for i := range kvstore.DefaultCheckpointsPerRun + 8 {
		rev, err = b.shard.Checkpoints.Put(t.Context(), large("run-00000", schema.StreamSequence(i+20)), rev)
		require.NoError(t, err)
	}
	history, err := b.shard.Checkpoints.History(t.Context(), "run-00000")
	require.NoError(t, err)
	require.Len(t, history, kvstore.DefaultCheckpointsPerRun)
	require.Equal(t, rev, history[0].Revision)

	for i := range 20 {
		runs = append(runs, fmt.Sprintf("wide-%d", i))
		_, err := b.js.Publish(t.Context(), b.names.EventSubject(fmt.Sprintf("wide-%d", i)), make([]byte, kvstore.MaxEventMessage-1000))
		require.NoError(t, err)
	}
	lasts, err := b.shard.LastStored(t.Context(), runs)
	require.NoError(t, err)
	require.Len(t, lasts, 20)
}

func TestIndexes_EntriesLargerTogetherThanAnAnswer_AreRead(t *testing.T) {
	t.Parallel()
	b := newLeanBench(t)
	cps := b.shard.Checkpoints
	labels := map[string]string{}
	for i := range schema.MaxLabels {
		labels[fmt.Sprint(i)] = strings.Repeat("\x01", schema.MaxLabelValue)
	}
	const n = 250
	var live []kvstore.LivePut
	var ended []kvstore.IndexPut
	for i := range n {
		h := checkpoint(fmt.Sprintf("run-%05d", i), schema.StreamSequence(i+1)).Head
		h.Labels = labels
		live = append(live, kvstore.LivePut{Live: schema.LiveOf(&h)})
		h.Run, h.Status = "ended-"+h.Run, schema.StatusCompleted
		e := schema.EndedOf(&h)
		ended = append(ended, kvstore.IndexPut{Key: schema.EndedKey(&h), Ended: &e})
	}
	_, err := cps.PutLive(t.Context(), live...)
	require.NoError(t, err)
	require.NoError(t, cps.PutIndex(t.Context(), ended...))
	entries, _, err := cps.Live(t.Context())
	require.NoError(t, err)
	require.Len(t, entries, n)

	q, found, pages := kvstore.EndedQuery{Before: math.MaxInt64, Limit: n}, 0, 0
	for ; q.Before > 0; pages++ {
		page, err := cps.Ended(t.Context(), q)
		require.NoError(t, err)
		for i := range page.Runs {
			found++
			require.Equal(t, fmt.Sprintf("ended-run-%05d", n-found), page.Runs[i].Run)
		}
		require.Less(t, page.Next, q.Before, "each page goes on")
		q.Before = page.Next
	}
	require.Equal(t, n, found)
	require.Greater(t, pages, 1, "the work of a page is bounded in bytes")
}
