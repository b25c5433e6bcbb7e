package kvstore_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func live(run string) schema.Live {
	return schema.Live{
		Format: schema.LiveFormat, Run: run, Agent: "writer", Executor: "exec-1", Instance: "i1", Status: schema.StatusRunning,
		Epoch: 1, Labels: map[string]string{"team": "a"}, Since: "2026-01-02T03:04:05Z",
	}
}

// putLive puts entries of running runs and returns their revisions.
func putLive(tb testing.TB, b *bench, runs ...string) []schema.Revision {
	tb.Helper()
	puts := make([]kvstore.LivePut, len(runs))
	for i, run := range runs {
		puts[i].Live = live(run)
	}
	revisions, err := b.shard.Checkpoints.PutLive(tb.Context(), puts...)
	require.NoError(tb, err)
	require.Len(tb, revisions, len(runs))
	return revisions
}

// indexed reads the whole index.
func indexed(tb testing.TB, cps *kvstore.Checkpoints) map[string]kvstore.LiveEntry {
	tb.Helper()
	all := make(map[string]kvstore.LiveEntry)
	entries, _, err := cps.Live(tb.Context())
	require.NoError(tb, err)
	for _, e := range entries {
		all[e.Run] = e
	}
	return all
}

func TestLiveIndex_Runs_OnlyNotEnded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cps := b.shard.Checkpoints
	putMany(t, b, 20)
	revisions := putLive(t, b, "run-00004", "run-00002", "run-00009", "unborn")
	again := putLive(t, b, "run-00002")
	require.Greater(t, again[0], revisions[1], "an entry put again has a new revision")
	kv, err := b.js.KeyValue(t.Context(), b.names.CheckpointBucket())
	require.NoError(t, err)
	kept, err := kv.History(t.Context(), schema.LiveKeyPrefix+"run-00002")
	require.NoError(t, err)
	require.Len(t, kept, 1, "twice is once")
	require.Equal(t, []string{"run-00002", "run-00004", "run-00009", "unborn"}, slices.Sorted(maps.Keys(indexed(t, cps))))

	results := cps.EraseLive(t.Context(), kvstore.LiveAt{Run: "run-00004", Revision: revisions[0]},
		kvstore.LiveAt{Run: "unborn", Revision: revisions[3]}, kvstore.LiveAt{Run: "never-there", Revision: 3}, kvstore.LiveAt{Run: "run-00009"})
	require.NoError(t, results[0].Err)
	require.NoError(t, results[1].Err)
	require.ErrorIs(t, results[2].Err, kvstore.ErrConflict)
	require.ErrorIs(t, results[3].Err, kvstore.ErrConflict, "nothing is erased without a revision")
	require.Equal(t, []string{"run-00002", "run-00009"}, slices.Sorted(maps.Keys(indexed(t, cps))))
	require.Equal(t, live("run-00002"), *indexed(t, cps)["run-00002"].Live)
	gone, err := cps.LiveOf(t.Context(), "unborn")
	require.NoError(t, err, "its marker stays for a while")
	require.Nil(t, gone.Live)
	require.Equal(t, results[1].Revision, gone.Revision)
	stream, err := b.js.Stream(t.Context(), "KV_"+b.names.CheckpointBucket())
	require.NoError(t, err)
	mark, err := stream.GetMsg(t.Context(), uint64(gone.Revision))
	require.NoError(t, err)
	require.Equal(t, "10s", mark.Header.Get(jetstream.MsgTTLHeader), "the server removes it")
	require.True(t, stream.CachedInfo().Config.AllowMsgTTL)
	_, _, err = cps.GetFresh(t.Context(), "run-00004")
	require.NoError(t, err, "its checkpoint stays")
}

// A fold worker was paused between a run's last checkpoint and the deletion of its entry. Another one folded that the
// run was reopened; then the first continues.
func TestLiveIndex_PausedWorker_CannotEraseReopenedRun(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cps := b.shard.Checkpoints
	before := putLive(t, b, "run-1", "run-2")
	ended := checkpoint("run-1", 9)
	ended.Status = schema.StatusCompleted
	rev, err := cps.Put(t.Context(), ended, 0)
	require.NoError(t, err)

	reopened := putLive(t, b, "run-1")
	_, err = cps.Put(t.Context(), checkpoint("run-1", 10), rev)
	require.NoError(t, err)

	results := cps.EraseLive(t.Context(), kvstore.LiveAt{Run: "run-1", Revision: before[0]}, kvstore.LiveAt{Run: "run-2", Revision: before[1]})
	require.ErrorIs(t, results[0].Err, kvstore.ErrConflict)
	require.NoError(t, results[1].Err)
	e, err := cps.LiveOf(t.Context(), "run-1")
	require.NoError(t, err)
	require.Equal(t, reopened[0], e.Revision)
	require.Equal(t, live("run-1"), *e.Live)

	// The same for the delete marker: a run that comes back before it is gone stays.
	again := putLive(t, b, "run-2")
	e, err = cps.LiveOf(t.Context(), "run-2")
	require.NoError(t, err)
	require.Equal(t, again[0], e.Revision)
	// And a put that expects an older entry is refused.
	_, err = cps.PutLive(t.Context(), kvstore.LivePut{Live: live("run-2"), Revision: before[1]})
	require.ErrorIs(t, err, kvstore.ErrConflict)
}

func TestLiveIndex_UnreadableEntry_SaysWhy(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	kv, err := b.js.KeyValue(t.Context(), b.names.CheckpointBucket())
	require.NoError(t, err)
	for run, value := range map[string]string{
		"older": "", "newer": `{"format":99,"run":{}}`, "junk": "junk", "types": `{"format":1,"run":7}`, "other": `{"format":1,"run":"else"}`,
	} {
		_, err := kv.PutString(t.Context(), schema.LiveKeyPrefix+run, value)
		require.NoError(t, err)
	}
	putLive(t, b, "good")
	all := indexed(t, b.shard.Checkpoints)
	require.Len(t, all, 6)
	require.ErrorIs(t, all["newer"].Err, schema.ErrFormat)
	for _, run := range []string{"older", "junk", "types", "other"} {
		require.ErrorIs(t, all[run].Err, kvstore.ErrCorrupt, run)
		require.Nil(t, all[run].Live)
		require.NotZero(t, all[run].Revision)
	}
	require.NoError(t, all["good"].Err)
}

func TestLiveEntry_LargestHead_Bounded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	name := strings.Repeat("x", schema.MaxName)
	l := schema.Live{
		Format: schema.LiveFormat, Run: name, Agent: name, Executor: name, Instance: name, Status: schema.StatusInterrupted,
		Epoch: 1<<32 - 1, Stalled: 1 << 30, Attended: true, ExpiresAt: "2026-01-02T03:04:05.123456789+12:34", Since: "2026-01-02T03:04:05.123456789+12:34",
		Labels: map[string]string{},
	}
	for i := range schema.MaxLabels {
		// JSON needs at most six bytes per byte.
		l.Labels[fmt.Sprintf("%02d%s", i, strings.Repeat("\x01", schema.MaxLabelKey-2))] = strings.Repeat("\x01", schema.MaxLabelValue)
	}
	for i := range schema.MaxHandoffs {
		l.Offers = append(l.Offers, fmt.Sprintf("%02d%s", i, strings.Repeat("y", schema.MaxName-2)))
	}
	_, err := b.shard.Checkpoints.PutLive(t.Context(), kvstore.LivePut{Live: l})
	require.NoError(t, err)
	kv, err := b.js.KeyValue(t.Context(), b.names.CheckpointBucket())
	require.NoError(t, err)
	e, err := kv.Get(t.Context(), schema.LiveKeyPrefix+name)
	require.NoError(t, err)
	require.Less(t, len(e.Value()), 128<<10)
	require.Equal(t, l, *indexed(t, b.shard.Checkpoints)[name].Live)
}

// watched collects the entries of a watch up to the end of the snapshot.
func watched(tb testing.TB, w *kvstore.LiveWatch) map[string]kvstore.LiveEntry {
	tb.Helper()
	all := make(map[string]kvstore.LiveEntry)
	for {
		e, synced, err := w.Next(tb.Context())
		require.NoError(tb, err)
		if synced {
			return all
		}
		all[e.Run] = e
	}
}

func TestLiveWatch_Start_EntriesThenChanges(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cps := b.shard.Checkpoints
	putMany(t, b, 10)
	var runs []string
	for i := range 3000 {
		runs = append(runs, fmt.Sprintf("run-%04d", i))
	}
	revisions := putLive(t, b, runs...)
	w, err := cps.WatchLive(t.Context())
	require.NoError(t, err)
	defer w.Close(t.Context())
	all := watched(t, w)
	require.Len(t, all, 3000)
	require.Equal(t, live("run-0007"), *all["run-0007"].Live)
	require.Equal(t, revisions[7], all["run-0007"].Revision)

	_, _, err = cps.GetFresh(t.Context(), "run-00001")
	require.NoError(t, err)
	again := putLive(t, b, "run-0007", "new")
	erased := cps.EraseLive(t.Context(), kvstore.LiveAt{Run: "run-0008", Revision: revisions[8]})
	require.NoError(t, erased[0].Err)
	for _, want := range []kvstore.LiveEntry{
		{Run: "run-0007", Revision: again[0]}, {Run: "new", Revision: again[1]}, {Run: "run-0008", Revision: erased[0].Revision},
	} {
		e, synced, err := w.Next(t.Context())
		require.NoError(t, err)
		require.False(t, synced)
		require.Equal(t, want.Run, e.Run)
		require.Equal(t, want.Revision, e.Revision)
		require.Equal(t, want.Run != "run-0008", e.Live != nil)
		require.NoError(t, e.Err)
	}
}

func TestLiveWatch_EmptyIndex_SyncedAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	putMany(t, b, 3)
	w, err := b.shard.Checkpoints.WatchLive(t.Context())
	require.NoError(t, err)
	defer w.Close(t.Context())
	require.Empty(t, watched(t, w))
}

func TestLiveWatch_ConnectionOrBucketGone_Breaks(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	js := server.JetStream(t)
	require.NoError(t, kvstore.Provision(t.Context(), js, smallFleet()))
	b := &bench{nc: js.Conn(), js: js, names: schema.NamesOf("alpha", 0), shard: openShard(t, js, "alpha")}
	cps := b.shard.Checkpoints
	putLive(t, b, "run-1", "run-2")
	breaks := func(cause func()) {
		t.Helper()
		w, err := cps.WatchLive(t.Context())
		require.NoError(t, err)
		defer w.Close(t.Context())
		watched(t, w)
		cause()
		_, _, err = w.Next(t.Context())
		require.Error(t, err)
		require.NotErrorIs(t, err, context.Canceled)
	}
	breaks(func() { server.Restart(t) })
	breaks(func() { require.NoError(t, js.DeleteStream(t.Context(), "KV_"+b.names.CheckpointBucket())) })
	_, err := cps.WatchLive(t.Context())
	require.ErrorIs(t, err, kvstore.ErrStreamMissing)
	require.NoError(t, kvstore.Provision(t.Context(), js, smallFleet()))
	putLive(t, b, "run-2")
	w, err := cps.WatchLive(t.Context())
	require.NoError(t, err)
	defer w.Close(t.Context())
	all := watched(t, w)
	require.Len(t, all, 1)
	require.Contains(t, all, "run-2")
}

func TestLiveWatch_ContextEnds_Ends(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	w, err := b.shard.Checkpoints.WatchLive(t.Context())
	require.NoError(t, err)
	defer w.Close(t.Context())
	watched(t, w)
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, errors.New("enough"))
	defer cancel()
	_, _, err = w.Next(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// A request for the last entry of each run makes a server read every block that has one before it answers, and store
// nothing in the meantime.
func TestLiveWatch_Start_NoRequestPerRun(t *testing.T) {
	b := newBench(t)
	w, err := b.shard.Checkpoints.WatchLive(t.Context())
	require.NoError(t, err)
	defer w.Close(t.Context())
	stream, err := b.js.Stream(t.Context(), "KV_"+b.shard.Names.CheckpointBucket())
	require.NoError(t, err)
	var policies []jetstream.DeliverPolicy
	for c := range stream.ListConsumers(t.Context()).Info() {
		policies = append(policies, c.Config.DeliverPolicy)
	}
	require.Equal(t, []jetstream.DeliverPolicy{jetstream.DeliverAllPolicy}, policies)
}
