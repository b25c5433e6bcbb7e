package backup_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/copy/backup"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// mark stores run.erased after a run's last event, like the service.
func (w *world) mark(x *writer) {
	w.tb.Helper()
	last := x.acked[len(x.acked)-1]
	e, err := schema.NewErased("daemon", &schema.Removal{
		Fleet: fleet, Run: x.run.Run, ID: "n1", By: "tester", At: schema.FormatTime(time.Now()), Status: schema.StatusRunning, Position: schema.PositionOf(&last),
	}, "1", time.Now())
	require.NoError(w.tb, err)
	header, body := e.Encode()
	_, err = w.js.PublishMsg(w.tb.Context(), &nats.Msg{Subject: x.names.EventSubject(x.run.Run), Header: header, Data: body}, jetstream.WithExpectLastSequencePerSubject(uint64(last.Stream)))
	require.NoError(w.tb, err)
}

// takeOut deletes the data of a removed run.
func (w *world) takeOut(x *writer) {
	w.tb.Helper()
	run := x.run.Run
	blobs, err := kvstore.BlobsOf(w.tb.Context(), w.js, fleet, map[string]struct{}{run: {}})
	require.NoError(w.tb, err)
	require.NoError(w.tb, w.shard(x.names.Shard).Remove(w.tb.Context(), schema.NoKeys, &schema.Removal{Run: run}, blobs[run]))
}

// begun is a run with a sealed part and a large payload.
func (w *world) begun(run string) *writer {
	w.tb.Helper()
	x := w.writer(run)
	require.NoError(w.tb, x.start(w.tb.Context()))
	require.NoError(w.tb, x.oneTurn(w.tb.Context(), 100))
	w.seal(x, 1, 0, 3)
	store, err := w.js.ObjectStore(w.tb.Context(), schema.BlobBucket(fleet))
	require.NoError(w.tb, err)
	_, err = store.PutString(w.tb.Context(), schema.BlobName(run, strings.Repeat("0", 64)), run)
	require.NoError(w.tb, err)
	return x
}

// restored restores a backup and returns the world and the keys of its segment bucket.
func restored(t *testing.T, dir string) (*world, []string) {
	t.Helper()
	_, err := backup.Check(dir, 0)
	require.NoError(t, err)
	w := empty(t)
	_, err = backup.Restore(t.Context(), w.js, backup.Target{Dir: dir})
	require.NoError(t, err)
	w.load()
	require.NoError(t, kvstore.Provision(t.Context(), w.js, kvstore.ConfigOf(&w.settings)))
	kv, err := w.js.KeyValue(t.Context(), schema.NamesOf(fleet, 0).SegmentBucket())
	require.NoError(t, err)
	keys, err := kv.Keys(t.Context())
	if !errors.Is(err, jetstream.ErrNoKeysFound) {
		require.NoError(t, err)
	}
	return w, keys
}

// An event that the fold refuses removes nothing: the run must be in the backup.
func TestBackup_RefusedRemoval_RunIncluded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	x, kept := w.begun("forged"), w.begun("kept")
	dir := target(t)
	m, err := w.take(dir, func(stream string, _ uint64) {
		if stream == "OBJ_"+schema.BlobBucket(fleet) {
			e, err := schema.NewErased("daemon", &schema.Removal{Fleet: fleet, Run: "forged", ID: "n1", Position: schema.Position{Stream: 1}}, "1", time.Now())
			require.NoError(t, err)
			header, body := e.Encode()
			_, err = w.js.PublishMsg(t.Context(), &nats.Msg{Subject: x.names.EventSubject("forged"), Header: header, Data: body})
			require.NoError(t, err)
		}
	})
	require.NoError(t, err)
	require.Equal(t, 2, m.Shards[0].Runs)
	other, keys := restored(t, dir)
	require.ElementsMatch(t, []string{"kept.1", "forged.1"}, keys)
	other.requireRun(x, m.Shards[0].Cut)
	other.requireRun(kept, m.Shards[0].Cut)
}

// The removal happens while one of the streams is read, although the backup asks for a pause: whichever it is, and however
// far the removal was before, the backup has all of the run, as before the removal, or only the removal.
func TestBackup_RunRemovedMeanwhile_NotHalfIncluded(t *testing.T) {
	t.Parallel()
	names := schema.NamesOf(fleet, 0)
	for _, stream := range []string{
		names.EventStream(), "KV_" + names.SegmentBucket(), "OBJ_" + schema.BlobBucket(fleet), schema.DeadLetterStream(fleet),
	} {
		for _, before := range []string{"nothing", "mark"} {
			t.Run(before+" before, removed during "+stream, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, 1)
				x, kept := w.begun("gone"), w.begun("kept")
				if before == "mark" {
					w.mark(x)
				}
				dir, reads := target(t), 0
				m, err := w.take(dir, func(s string, _ uint64) {
					if s != stream {
						return
					}
					if reads++; reads > 1 {
						return
					}
					if before != "mark" {
						w.mark(x)
					}
					w.takeOut(x)
				})
				require.NoError(t, err)
				other, _ := restored(t, dir)
				other.requireRun(kept, m.Shards[0].Cut)
				if before == "nothing" && (reads == 1) {
					other.requireRun(x, m.Shards[0].Cut)
					blobs, err := kvstore.BlobsOf(t.Context(), other.js, fleet, map[string]struct{}{"gone": {}})
					require.NoError(t, err)
					require.Len(t, blobs["gone"], 1)
					return
				}
				other.requireRemoved("gone")
			})
		}
	}
}

// An executor without compare-and-set writes after the tombstone. The removal is decided all the same.
func TestRestore_EventBehindTombstone_RemovalContinues(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	x, kept := w.begun("gone"), w.begun("kept")
	w.mark(x)
	late := x.acked[len(x.acked)-1]
	_, err := w.js.PublishMsg(t.Context(), &nats.Msg{Subject: x.names.EventSubject("gone"), Header: nats.Header{"ce-id": {"late"}}, Data: late.Body})
	require.NoError(t, err)
	dir := target(t)
	m, err := w.take(dir, nil)
	require.NoError(t, err)
	other, _ := restored(t, dir)
	other.requireRun(kept, m.Shards[0].Cut)
	other.requireRemoved("gone")
}

// The receipt of an earlier removal permanently reserves the run's id.
func TestBackup_Receipts_Included(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	x := w.begun("gone")
	w.mark(x)
	w.takeOut(x)
	dir := target(t)
	_, err := w.take(dir, nil)
	require.NoError(t, err)
	other, _ := restored(t, dir)
	other.requireRemoved("gone")
}

// requireRemoved asserts that only the removal of a run is stored, once a fold worker has folded it.
func (w *world) requireRemoved(run string) {
	w.tb.Helper()
	ctx := w.tb.Context()
	shard := w.shard(0)
	w.fold()
	require.Eventually(w.tb, func() bool {
		c, _, err := shard.Checkpoints.GetFresh(ctx, run)
		return err == nil && c.Status == schema.StatusErased && c.Erased.By == "tester"
	}, time.Minute, 5*time.Millisecond, "its removal goes on")
	require.Eventually(w.tb, func() bool {
		blobs, err := kvstore.BlobsOf(ctx, w.js, fleet, map[string]struct{}{run: {}})
		require.NoError(w.tb, err)
		left, err := shard.Left(ctx, schema.NoKeys, run, nil, blobs[run], true)
		require.NoError(w.tb, err)
		return left.None()
	}, time.Minute, 5*time.Millisecond, "something is left of it")
}

// Events that came after the backup began, were sealed and left the log at once, are missed by the next one of their run.
func TestBackup_NewEventsPurgedMeanwhile_ReadAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	x := w.writer("x")
	require.NoError(t, x.start(t.Context()))
	dir := target(t)
	m, tries, err := w.takeWhile(dir, func(try int) {
		if try > 1 {
			return
		}
		y := w.writer("y")
		require.NoError(t, y.start(t.Context()))
		require.NoError(t, y.oneTurn(t.Context(), 100))
		w.seal(y, 1, 0, 4)
		_, err := w.shard(0).PurgeRun(t.Context(), "y", y.acked[4].Stream)
		require.NoError(t, err)
	})
	require.NoError(t, err)
	require.Equal(t, 2, tries)
	require.Equal(t, 2, m.Shards[0].Runs)
	_, keys := restored(t, dir)
	require.Equal(t, []string{"y.1"}, keys)
}
