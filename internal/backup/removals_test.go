package backup_test

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/backup"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// order stores the order to remove a run, like the service.
func (w *world) order(x *writer, id string) (*schema.Erasure, schema.Revision) {
	w.tb.Helper()
	last := x.acked[len(x.acked)-1]
	record := &schema.Erasure{
		Fleet: fleet, Run: x.run.Run, ID: id, By: "tester", AskedAt: schema.FormatTime(time.Now()), Status: schema.StatusRunning,
		Position: schema.PositionOf(&last), DecidedAt: schema.FormatTime(time.Now()),
	}
	rev, err := w.shard(x.names.Shard).Erasures.Order(w.tb.Context(), record, 0)
	require.NoError(w.tb, err)
	return record, rev
}

// mark stores the tombstone of a removal after a run's last event.
func (w *world) mark(x *writer, id string) {
	w.tb.Helper()
	header, body := schema.NewErased(fleet, "daemon", x.run.Run, id, time.Now()).Encode()
	_, err := w.js.PublishMsg(w.tb.Context(), &nats.Msg{Subject: x.names.EventSubject(x.run.Run), Header: header, Data: body})
	require.NoError(w.tb, err)
}

// takeOut deletes the data of a run with a tombstone, and stores the receipt.
func (w *world) takeOut(x *writer, record *schema.Erasure) {
	w.tb.Helper()
	shard := w.shard(x.names.Shard)
	run := x.run.Run
	blobs, err := kvstore.BlobsOf(w.tb.Context(), w.js, fleet, map[string]struct{}{run: {}})
	require.NoError(w.tb, err)
	require.NoError(w.tb, shard.Remove(w.tb.Context(), run, nil, blobs[run], false))
	record.Removed, record.RemovedAt = &schema.ErasedParts{}, schema.FormatTime(time.Now())
	require.NoError(w.tb, shard.Erasures.Finish(w.tb.Context(), record))
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
	require.NoError(t, err)
	return w, keys
}

// An order without its tombstone decides nothing: it can be withdrawn the next moment, and then the run must be in
// the backup.
func TestBackup_UndecidedRemoval_RunIncludedWithoutOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	x, kept := w.begun("ordered"), w.begun("kept")
	record, rev := w.order(x, "n1")
	record.DecidedAt = ""
	rev, err := w.shard(0).Erasures.Order(t.Context(), record, rev)
	require.NoError(t, err)
	dir := target(t)
	m, err := w.take(dir, func(stream string, _ uint64) {
		if stream == "OBJ_"+schema.BlobBucket(fleet) {
			there, err := w.shard(0).Erasures.Withdraw(t.Context(), "ordered", rev)
			require.NoError(t, err)
			require.True(t, there)
		}
	})
	require.NoError(t, err)
	require.Empty(t, m.Shards[0].Erased)
	require.Equal(t, 2, m.Shards[0].Runs)
	other, keys := restored(t, dir)
	require.ElementsMatch(t, []string{"kept.1", "ordered.1"}, keys)
	other.requireRun(x, m.Shards[0].Cut)
	other.requireRun(kept, m.Shards[0].Cut)
}

// The removal happens while one of the streams is read: whichever it is, and however far the removal was before, the
// backup has only the removal of the run, and a restore brings nothing of it back.
func TestBackup_RunRemovedMeanwhile_NotHalfIncluded(t *testing.T) {
	t.Parallel()
	names := schema.NamesOf(fleet, 0)
	for _, stream := range []string{
		names.EventStream(), "KV_" + names.SegmentBucket(), "OBJ_" + schema.BlobBucket(fleet), schema.DeadLetterStream(fleet),
	} {
		for _, before := range []string{"nothing", "order", "mark"} {
			t.Run(before+" before, removed during "+stream, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, 1)
				x, kept := w.begun("gone"), w.begun("kept")
				var record *schema.Erasure
				if before != "nothing" {
					record, _ = w.order(x, "n1")
				}
				if before == "mark" {
					w.mark(x, "n1")
				}
				dir := target(t)
				m, err := w.take(dir, func(s string, _ uint64) {
					if s != stream {
						return
					}
					if record == nil {
						record, _ = w.order(x, "n1")
					}
					if before != "mark" {
						w.mark(x, "n1")
					}
					w.takeOut(x, record)
				})
				require.NoError(t, err)
				other, keys := restored(t, dir)
				other.requireRun(kept, m.Shards[0].Cut)
				other.requireRemoved("gone", keys)
			})
		}
	}
}

// An executor without compare-and-set writes after the tombstone. The removal is decided all the same.
func TestRestore_EventBehindTombstone_RemovalContinues(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	x, kept := w.begun("gone"), w.begun("kept")
	w.order(x, "n1")
	w.mark(x, "n1")
	late := x.acked[len(x.acked)-1]
	_, err := w.js.PublishMsg(t.Context(), &nats.Msg{Subject: x.names.EventSubject("gone"), Header: nats.Header{"ce-id": {"late"}}, Data: late.Body})
	require.NoError(t, err)
	dir := target(t)
	m, err := w.take(dir, nil)
	require.NoError(t, err)
	other, keys := restored(t, dir)
	require.Contains(t, keys, schema.ErasingKeyPrefix+"gone")
	other.requireRun(kept, m.Shards[0].Cut)
	other.requireRemoved("gone", keys)
}

// Executors name contents themselves. A run that stays cannot keep content of a removed one by describing it, and
// content without a description is removed with its run.
func TestBackup_RemovedRunContent_NotIncluded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	x, kept := w.begun("gone"), w.begun("kept")
	prefix := "$O." + schema.BlobBucket(fleet)
	for _, run := range []string{"gone", "kept"} {
		for _, unique := range []string{"half", "described"} {
			_, err := w.js.Publish(t.Context(), prefix+".C."+schema.BlobID(run, unique), []byte(run))
			require.NoError(t, err)
		}
	}
	for run, of := range map[string]string{"gone": "kept", "kept": "gone"} {
		name := schema.BlobName(run, strings.Repeat("1", 64))
		_, err := w.js.Publish(t.Context(), prefix+".M."+base64.URLEncoding.EncodeToString([]byte(name)),
			fmt.Appendf(nil, `{"name":%q,"bucket":%q,"nuid":%q,"size":4,"chunks":1}`, name, schema.BlobBucket(fleet), schema.BlobID(of, "described")))
		require.NoError(t, err)
	}
	record, _ := w.order(x, "n1")
	dir := target(t)
	m, err := w.take(dir, func(stream string, _ uint64) {
		if stream == schema.DeadLetterStream(fleet) { // the object store may have been read before, and completely
			w.mark(x, "n1")
			w.takeOut(x, record)
		}
	})
	require.NoError(t, err)
	other, _ := restored(t, dir)
	other.requireRun(kept, m.Shards[0].Cut)
	stream, err := other.js.Stream(t.Context(), "OBJ_"+schema.BlobBucket(fleet))
	require.NoError(t, err)
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(prefix+".C.*"))
	require.NoError(t, err)
	mine := 0
	for subject := range info.State.Subjects {
		mark, ok := schema.MarkOfBlobID(strings.TrimPrefix(subject, prefix+".C."))
		require.False(t, ok && mark == schema.BlobMark("gone"), subject)
		if ok {
			mine++
		}
	}
	require.Equal(t, 2, mine, "the content of the run that stays is there, whatever else describes it")
}

// The receipt of an earlier removal permanently reserves the run's id.
func TestBackup_Receipts_Included(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	x := w.begun("gone")
	record, _ := w.order(x, "n1")
	w.mark(x, "n1")
	w.takeOut(x, record)
	dir := target(t)
	m, err := w.take(dir, nil)
	require.NoError(t, err)
	require.Empty(t, m.Shards[0].Erased, "it was before")
	other, keys := restored(t, dir)
	require.Contains(t, keys, schema.ErasedKeyPrefix+"gone")
	other.requireRemoved("gone", keys)
}

// requireRemoved asserts that only the removal of a run is stored, once a fold worker has folded it. Without a record
// of its removal there must be nothing at all.
func (w *world) requireRemoved(run string, keys []string) {
	w.tb.Helper()
	ctx := w.tb.Context()
	shard := w.shard(0)
	last, err := shard.LastOfRun(ctx, run)
	require.NoError(w.tb, err)
	recorded := slices.Contains(keys, schema.ErasingKeyPrefix+run) || slices.Contains(keys, schema.ErasedKeyPrefix+run)
	if last == nil {
		require.NotContains(w.tb, keys, schema.ErasingKeyPrefix+run, "an order that can never be carried out")
	} else {
		require.True(w.tb, recorded, "there is no daemon to remove it")
		w.fold()
		require.Eventually(w.tb, func() bool {
			c, _, err := shard.Checkpoints.GetFresh(ctx, run)
			return err == nil && c.Status == schema.StatusErased
		}, time.Minute, 5*time.Millisecond, "its removal goes on")
	}
	require.Eventually(w.tb, func() bool {
		blobs, err := kvstore.BlobsOf(ctx, w.js, fleet, map[string]struct{}{run: {}})
		require.NoError(w.tb, err)
		left, err := shard.Left(ctx, run, nil, blobs[run], true)
		require.NoError(w.tb, err)
		return left.None()
	}, time.Minute, 5*time.Millisecond, "something is left of it")
}
