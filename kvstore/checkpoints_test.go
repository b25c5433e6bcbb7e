package kvstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	ce "github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestPut_Revision_Compared(t *testing.T) {
	t.Parallel()
	cps := newBench(t).shard.Checkpoints
	_, rev, err := cps.Get(t.Context(), "run-1")
	require.ErrorIs(t, err, kvstore.ErrNotFound)
	require.Zero(t, rev)
	_, _, err = cps.GetFresh(t.Context(), "run-1")
	require.ErrorIs(t, err, kvstore.ErrNotFound)

	rev, err = cps.Put(t.Context(), checkpoint("run-1", 1), 0)
	require.NoError(t, err)
	_, err = cps.Put(t.Context(), checkpoint("run-1", 1), 0)
	require.ErrorIs(t, err, kvstore.ErrConflict, "created twice")
	next, err := cps.Put(t.Context(), checkpoint("run-1", 2), rev)
	require.NoError(t, err)
	require.Greater(t, next, rev)
	_, err = cps.Put(t.Context(), checkpoint("run-1", 3), rev)
	require.ErrorIs(t, err, kvstore.ErrConflict, "stale revision")

	want := checkpoint("run-1", 2)
	_, err = schema.EncodeCheckpoint(want)
	require.NoError(t, err)
	cp, got, err := cps.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	require.Equal(t, next, got)
	require.Equal(t, want, cp)
	cp, got, err = cps.Get(t.Context(), "run-1")
	require.NoError(t, err)
	require.Equal(t, next, got)
	require.Equal(t, want, cp)
}

func TestKeys_InvalidNames_Refused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, run := range []string{"", "_.fold", "a.b", "*", ">", "a b", "a\r\nb", "_barrier", "../x", "a\x00"} {
		var ne *schema.NameError
		_, err := b.shard.Checkpoints.Put(t.Context(), checkpoint(run, 1), 0)
		require.ErrorAs(t, err, &ne, "%q", run)
		_, _, err = b.shard.Checkpoints.Get(t.Context(), run)
		require.ErrorAs(t, err, &ne, "%q", run)
		_, err = b.shard.Checkpoints.History(t.Context(), run)
		require.ErrorAs(t, err, &ne, "%q", run)
		_, err = b.shard.Checkpoints.PutLive(t.Context(), kvstore.LivePut{Live: schema.Live{Run: run}})
		require.ErrorAs(t, err, &ne, "%q", run)
		require.ErrorAs(t, b.shard.Checkpoints.EraseLive(t.Context(), kvstore.LiveAt{Run: run, Revision: 1})[0].Err, &ne, "%q", run)
		_, err = b.shard.Checkpoints.LiveOf(t.Context(), run)
		require.ErrorAs(t, err, &ne, "%q", run)
		require.ErrorAs(t, b.shard.Segments.Create(t.Context(), run, 1, []byte("x")), &ne, "%q", run)
	}
}

func TestPutBatch_Mixed_AnswersEach(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cps := b.shard.Checkpoints
	old, err := cps.Put(t.Context(), checkpoint("old", 1), 0)
	require.NoError(t, err)
	deleted, err := cps.Put(t.Context(), checkpoint("deleted", 1), 0)
	require.NoError(t, err)
	b.purge(t, "deleted", deleted)

	results := cps.PutBatch(t.Context(), []kvstore.Item{
		{Checkpoint: checkpoint("new", 5)},
		{Checkpoint: checkpoint("old", 6), Revision: old},
		{Checkpoint: checkpoint("old", 7), Revision: old},
		{Checkpoint: checkpoint("none", 8), Revision: 99},
		{Checkpoint: checkpoint("deleted", 9)},
		{Checkpoint: checkpoint("bad name", 10)},
	})
	require.NoError(t, results[0].Err)
	require.NoError(t, results[1].Err)
	require.ErrorIs(t, results[2].Err, kvstore.ErrConflict, "the same run twice")
	require.ErrorContains(t, results[2].Err, "twice")
	require.ErrorIs(t, results[3].Err, kvstore.ErrConflict, "stale revision")
	require.NoError(t, results[4].Err, "created over a deletion")
	require.Error(t, results[5].Err)
	for i, run := range []string{"new", "old"} {
		cp, rev, err := cps.GetFresh(t.Context(), run)
		require.NoError(t, err)
		require.Equal(t, results[i].Revision, rev)
		require.EqualValues(t, 5+i, cp.Position.Stream)
	}
}

func TestPutBatch_LargerThanWindow_AllStored(t *testing.T) {
	t.Parallel()
	cps := newBench(t).shard.Checkpoints
	items := make([]kvstore.Item, 3000)
	for i := range items {
		items[i].Checkpoint = checkpoint(fmt.Sprintf("run-%04d", i), 1)
	}
	seen := map[schema.Revision]bool{}
	for _, r := range cps.PutBatch(t.Context(), items) {
		require.NoError(t, r.Err)
		seen[r.Revision] = true
	}
	require.Len(t, seen, len(items))
}

func TestPut_NoAnswer_Unavailable(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, r := range b.shard.Checkpoints.PutBatch(ctx, []kvstore.Item{{Checkpoint: checkpoint("run-1", 1)}}) {
		// The answer may have been faster than the check of ctx; an error must be an unknown outcome.
		if r.Err != nil {
			require.ErrorIs(t, r.Err, kvstore.ErrUnavailable)
		}
	}
	b.nc.Close()
	_, err := b.shard.Checkpoints.Put(t.Context(), checkpoint("run-1", 1), 0)
	require.ErrorIs(t, err, kvstore.ErrUnavailable)
	_, _, err = b.shard.Checkpoints.Get(t.Context(), "run-1")
	require.ErrorIs(t, err, kvstore.ErrUnavailable)
	_, _, err = b.shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.ErrorIs(t, err, kvstore.ErrUnavailable)
	_, _, err = b.shard.Checkpoints.LiveRuns(t.Context())
	require.ErrorIs(t, err, kvstore.ErrUnavailable)
}

func TestPut_TooLarge_Refused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cp := checkpoint("run-1", 1)
	cp.Summary = string(make([]byte, b.nc.MaxPayload()))
	_, err := b.shard.Checkpoints.Put(t.Context(), cp, 0)
	require.ErrorIs(t, err, kvstore.ErrTooLarge)
}

func TestCheckpoint_Republished_IsCloudEvent(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	sub, err := b.nc.SubscribeSync("waymark.checkpoints.alpha.0.*")
	require.NoError(t, err)
	all, err := b.nc.SubscribeSync("waymark.checkpoints.>")
	require.NoError(t, err)
	cps := b.shard.Checkpoints

	putLive(t, b, "run-1")
	_, err = cps.PutWatermark(t.Context(), kvstore.Watermark{Incarnation: "x"}, 0)
	require.NoError(t, err)
	rev, err := cps.Put(t.Context(), checkpoint("run-1", 7), 0)
	require.NoError(t, err)
	rev, err = cps.Put(t.Context(), checkpoint("run-1", 8), rev)
	require.NoError(t, err)
	last := checkpoint("run-1", 9)
	last.Status = schema.StatusCompleted
	rev, err = cps.Put(t.Context(), last, rev)
	require.NoError(t, err)

	for i, name := range []string{schema.CheckpointCreated, schema.CheckpointUpdated, schema.CheckpointFinalized} {
		msg := next(t, sub)
		require.Equal(t, "waymark.checkpoints.alpha.0.run-1", msg.Subject)
		e, err := schema.Decode(msg.Header, msg.Data)
		require.NoError(t, err)
		require.Equal(t, name, e.Name())
		require.Equal(t, fmt.Sprintf("run-1.1.checkpoint.%d", 7+i), e.ID)
		require.Equal(t, "/waymark/alpha/daemon-1", e.Source)
		require.Equal(t, "run-1", e.Subject)
		require.Equal(t, "2026-01-02T03:04:06.5Z", e.Time)
		require.Equal(t, schema.Epoch(1), e.Epoch)
		structured, err := e.EncodeStructured()
		require.NoError(t, err)
		var sdk ce.Event
		require.NoError(t, sdk.UnmarshalJSON(structured))
		require.NoError(t, sdk.Validate())
		cp, err := schema.DecodeCheckpoint(sdk.Data())
		require.NoError(t, err)
		require.EqualValues(t, 7+i, cp.Position.Stream)
		require.Equal(t, msg.Data, next(t, all).Data, "nothing but the runs' own keys is announced")
	}

	b.purge(t, "run-1", rev)
	msg := next(t, sub)
	_, err = schema.Decode(msg.Header, msg.Data)
	require.ErrorIs(t, err, schema.ErrNotCloudEvent, "a deletion is announced, but it is no CloudEvent")
}

func next(tb testing.TB, sub *nats.Subscription) *nats.Msg {
	tb.Helper()
	msg, err := sub.NextMsg(time.Minute)
	require.NoError(tb, err)
	return msg
}

func TestHistory_SixPuts_FiveNewestFirst(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cps := b.shard.Checkpoints
	var rev schema.Revision
	var err error
	for at := schema.StreamSequence(1); at <= 7; at++ {
		rev, err = cps.Put(t.Context(), checkpoint("run-1", at), rev)
		require.NoError(t, err)
	}
	// Another client tampers.
	kv, err := b.js.KeyValue(t.Context(), b.names.CheckpointBucket())
	require.NoError(t, err)
	entry, err := kv.Get(t.Context(), "run-1")
	require.NoError(t, err)
	bad := append([]byte(nil), entry.Value()...)
	bad[40] ^= 1
	tampered, err := kv.Put(t.Context(), "run-1", bad)
	require.NoError(t, err)

	list, err := cps.History(t.Context(), "run-1")
	require.NoError(t, err)
	require.Len(t, list, 5)
	require.ErrorIs(t, list[0].Err, kvstore.ErrCorrupt)
	require.Nil(t, list[0].Checkpoint)
	require.EqualValues(t, tampered, list[0].Revision)
	for i, s := range list[1:] {
		require.NoError(t, s.Err)
		require.EqualValues(t, 7-i, s.Checkpoint.Position.Stream)
		require.False(t, s.Stored.IsZero())
	}
	require.Equal(t, rev, list[1].Revision)

	_, got, err := cps.Get(t.Context(), "run-1")
	require.ErrorIs(t, err, kvstore.ErrCorrupt)
	require.EqualValues(t, tampered, got, "the revision to replace it with")
	_, err = cps.Put(t.Context(), checkpoint("run-1", 8), got)
	require.NoError(t, err)

	list, err = cps.History(t.Context(), "unknown")
	require.NoError(t, err)
	require.Empty(t, list)
}

func TestCheckpoint_OfAnotherRun_Corrupt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	kv, err := b.js.KeyValue(t.Context(), b.names.CheckpointBucket())
	require.NoError(t, err)
	value, err := schema.EncodeCheckpoint(checkpoint("run-2", 1))
	require.NoError(t, err)
	_, err = kv.Put(t.Context(), "run-1", value)
	require.NoError(t, err)
	_, _, err = b.shard.Checkpoints.Get(t.Context(), "run-1")
	require.ErrorIs(t, err, kvstore.ErrCorrupt)
}

func TestCheckpoint_StockClient_Reads(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rev, err := b.shard.Checkpoints.Put(t.Context(), checkpoint("run-1", 1), 0)
	require.NoError(t, err)
	_, err = b.shard.Checkpoints.Put(t.Context(), checkpoint("run-1", 2), rev)
	require.NoError(t, err)
	kv, err := b.js.KeyValue(t.Context(), b.names.CheckpointBucket())
	require.NoError(t, err)
	entry, err := kv.Get(t.Context(), "run-1")
	require.NoError(t, err)
	cp, err := schema.DecodeCheckpoint(entry.Value())
	require.NoError(t, err)
	require.EqualValues(t, 2, cp.Position.Stream)
	history, err := kv.History(t.Context(), "run-1")
	require.NoError(t, err)
	require.Len(t, history, 2)
}

func TestPut_DeletedRun_HasNoHistory(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cps := b.shard.Checkpoints
	rev, err := cps.Put(t.Context(), checkpoint("run-1", 1), 0)
	require.NoError(t, err)
	rev, err = cps.Put(t.Context(), checkpoint("run-1", 2), rev)
	require.NoError(t, err)
	b.purge(t, "run-1", rev)
	_, marker, err := cps.Get(t.Context(), "run-1")
	require.ErrorIs(t, err, kvstore.ErrNotFound)
	require.Equal(t, rev+1, marker)
	list, err := cps.History(t.Context(), "run-1")
	require.NoError(t, err)
	require.Empty(t, list)
	_, err = cps.Put(t.Context(), checkpoint("run-1", 3), 0)
	require.NoError(t, err)
}

func TestWatermark_Revision_Compared(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cps := b.shard.Checkpoints
	_, rev, err := cps.Watermark(t.Context())
	require.ErrorIs(t, err, kvstore.ErrNotFound)
	require.Zero(t, rev)
	first := kvstore.Watermark{Incarnation: "i", Worker: "daemon-1", Updated: "2026-01-01T00:00:00Z"}
	rev, err = cps.PutWatermark(t.Context(), first, 0)
	require.NoError(t, err)
	second := first
	second.Position = schema.Position{Stream: 7, ID: "run-1.1.1.deadbeef"}
	_, err = cps.PutWatermark(t.Context(), second, rev)
	require.NoError(t, err)
	_, err = cps.PutWatermark(t.Context(), second, rev)
	require.ErrorIs(t, err, kvstore.ErrConflict, "the other fold worker has lost the shard")
	got, _, err := cps.Watermark(t.Context())
	require.NoError(t, err)
	second.Format = kvstore.WatermarkFormat
	require.Equal(t, second, got)

	_, err = cps.PutWatermark(t.Context(), kvstore.Watermark{Incarnation: "i", Position: schema.Position{Stream: 7}}, rev)
	require.ErrorContains(t, err, "missing")

	kv, err := b.js.KeyValue(t.Context(), b.names.CheckpointBucket())
	require.NoError(t, err)
	for value, want := range map[string]error{
		`{`:            kvstore.ErrCorrupt,
		`{"format":2}`: schema.ErrFormat,
		`{"format":1}`: kvstore.ErrCorrupt,
		`{"format":1,"incarnation":"i","position":{"stream_sequence":3,"id":""}}`: kvstore.ErrCorrupt,
	} {
		tampered, err := kv.Put(t.Context(), schema.WatermarkKey, []byte(value))
		require.NoError(t, err)
		_, rev, err = cps.Watermark(t.Context())
		require.ErrorIs(t, err, want, value)
		require.EqualValues(t, tampered, rev)
	}
}

func TestPurgeMarks_Shards_KeptApart(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	other := *b.shard
	other.Names = schema.NamesOf("alpha", 1)
	rev, err := b.shard.PutPurgeMark(t.Context(), kvstore.Watermark{Incarnation: "i"}, 0)
	require.NoError(t, err)
	_, err = b.shard.PutPurgeMark(t.Context(), kvstore.Watermark{Incarnation: "j"}, 0)
	require.ErrorIs(t, err, kvstore.ErrConflict)
	_, err = other.PutPurgeMark(t.Context(), kvstore.Watermark{Incarnation: "k"}, 0)
	require.NoError(t, err)
	w, got, err := b.shard.PurgeMark(t.Context())
	require.NoError(t, err)
	require.Equal(t, rev, got)
	require.Equal(t, "i", w.Incarnation)
	require.NoError(t, b.js.DeleteStream(t.Context(), checkpointStream))
	_, _, err = b.shard.PurgeMark(t.Context())
	require.NoError(t, err, "it outlives the checkpoints")
}
