package backup_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/waymarkio/waymark/internal/copy/backup"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// underLoad backs a fleet up while its executors write and its fold worker seals and purges, and compares the
// restored fleet.
func underLoad(t *testing.T, w, other *world, runs int) {
	t.Helper()
	w.fold()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	writers := make([]*writer, runs)
	pace := rate.NewLimiter(100, 1) // so that there is not much to compare on any machine
	var wg sync.WaitGroup
	for i := range writers {
		x := w.writer(fmt.Sprintf("run-%d", i))
		writers[i] = x
		wg.Go(func() {
			if err := x.start(ctx); err != nil {
				t.Errorf("%s: %v", x.run.Run, err)
				return
			}
			for pace.Wait(ctx) == nil {
				if err := x.oneTurn(ctx, 600); err != nil && ctx.Err() == nil {
					t.Errorf("%s: %v", x.run.Run, err)
					return
				}
			}
		})
	}
	blob := rand.Text()
	store, err := w.js.ObjectStore(t.Context(), schema.BlobBucket(fleet))
	require.NoError(t, err)
	_, err = store.PutString(t.Context(), "run-0.sha256-"+strings.Repeat("0", 64), blob)
	require.NoError(t, err)
	// The test needs sealed and purged events.
	require.Eventually(t, func() bool {
		for _, x := range writers {
			if len(x.acknowledged()) < 40 {
				return false
			}
		}
		u, err := w.shard(0).Usage(t.Context())
		return err == nil && u.Messages < uint64(u.Last)*9/10
	}, 3*time.Minute, 10*time.Millisecond)

	before := make([]int, runs)
	for i, x := range writers {
		before[i] = len(x.acknowledged())
	}
	dir := target(t)
	m, err := w.take(dir, nil)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		for _, x := range writers {
			if records := x.acknowledged(); records[len(records)-1].Stream > m.Shards[x.names.Shard].Cut {
				return true
			}
		}
		return false
	}, time.Minute, time.Millisecond, "executors go on behind the cut")
	stop()
	wg.Wait()
	require.Len(t, m.Shards, w.settings.Shards)

	_, err = backup.Check(dir, 0)
	require.NoError(t, err)
	done, err := backup.Restore(t.Context(), other.js, backup.Target{Dir: dir})
	require.NoError(t, err)
	require.Equal(t, len(m.Streams), done.Streams)
	other.load()
	require.Equal(t, w.settings, other.settings)

	late := 0
	compare := func() {
		for i, x := range writers {
			n := other.requireRun(x, m.Shards[x.names.Shard].Cut)
			require.GreaterOrEqual(t, n, before[i], "every event acknowledged before the backup began")
			late += len(x.acknowledged()) - n
		}
	}
	compare()
	require.Positive(t, late, "events after the cut are not in the backup")
	store, err = other.js.ObjectStore(t.Context(), schema.BlobBucket(fleet))
	require.NoError(t, err)
	got, err := store.GetString(t.Context(), "run-0.sha256-"+strings.Repeat("0", 64))
	require.NoError(t, err)
	require.Equal(t, blob, got)

	// The daemon makes the checkpoints, and executors continue where the backup ends.
	require.NoError(t, kvstore.Provision(t.Context(), other.js, kvstore.ConfigOf(&other.settings)))
	other.fold()
	for _, x := range writers {
		want, n := x.upTo(m.Shards[x.names.Shard].Cut)
		require.Eventually(t, func() bool {
			c, _, err := other.shard(x.names.Shard).Checkpoints.GetFresh(t.Context(), x.run.Run)
			return err == nil && c.Position == want.Position && c.Digest == want.Digest
		}, 3*time.Minute, 10*time.Millisecond, "run %s is folded", x.run.Run)
		resumed := other.writer(x.run.Run)
		resumed.run.Last, resumed.last = want.Sequence, uint64(want.Position.Stream)
		resumed.turn, resumed.acked = want.Turn, x.acknowledged()[:n:n]
		require.NoError(t, resumed.oneTurn(t.Context(), 10))
		other.requireRun(resumed, 1<<62)
	}
}

func TestBackup_UnderLoad_HasAllAcknowledged(t *testing.T) {
	t.Parallel()
	underLoad(t, newWorld(t, 1), empty(t), 4)
}

func TestBackup_SeveralShards_Restored(t *testing.T) {
	t.Parallel()
	underLoad(t, newWorld(t, 3), empty(t), 4)
}

func TestBackup_EventsPurgedMeanwhile_ReadAgain(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: a log of more bytes than travel at once")
	}
	w := newWorld(t, 1)
	names := schema.NamesOf(fleet, 0)
	// The log is larger than the data sent before the first acknowledgement, so that its end is read later.
	filler := w.writer("filler")
	require.NoError(t, filler.start(t.Context()))
	for range 30 {
		require.NoError(t, filler.noise(t.Context(), 400<<10))
	}
	x, y := w.writer("x"), w.writer("y")
	for _, r := range []*writer{x, y} {
		require.NoError(t, r.start(t.Context()))
		for range 3 {
			require.NoError(t, r.oneTurn(t.Context(), 100))
		}
	}
	reads := 0
	dir := target(t)
	m, err := w.take(dir, func(stream string, _ uint64) {
		if stream != names.EventStream() {
			return
		}
		if reads++; reads > 1 {
			return
		}
		// Like the fold worker and the purger of a full log: the run goes on, is sealed, and its events leave the
		// log.
		require.NoError(t, x.oneTurn(t.Context(), 100))
		w.seal(x, 1, 0, len(x.acked))
		n, err := w.shard(0).PurgeRun(t.Context(), "x", x.acked[len(x.acked)-1].Stream)
		require.NoError(t, err)
		require.EqualValues(t, len(x.acked)-1, n)
	})
	require.NoError(t, err)
	require.Equal(t, 2, reads)
	cut := m.Shards[0]

	other := empty(t)
	_, err = backup.Restore(t.Context(), other.js, backup.Target{Dir: dir})
	require.NoError(t, err)
	other.load()
	require.Equal(t, 17, other.requireRun(x, cut.Cut))
	require.Equal(t, 13, other.requireRun(y, cut.Cut))
	require.Equal(t, 31, other.requireRun(filler, cut.Cut))
}

// A log that is purged in each try, as a full one is, gives no backup.
func TestBackup_EventsPurgedInEachTry_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	names := schema.NamesOf(fleet, 0)
	x := w.writer("x")
	require.NoError(t, x.start(t.Context()))
	dir := target(t)
	_, tries, err := w.takeWhile(dir, func(int) {
		require.NoError(t, x.oneTurn(t.Context(), 100))
		n, err := w.shard(0).PurgeRun(t.Context(), "x", x.acked[len(x.acked)-1].Stream)
		require.NoError(t, err)
		require.Positive(t, n)
	})
	require.ErrorIs(t, err, backup.ErrChanged)
	require.ErrorContains(t, err, names.EventStream())
	require.Equal(t, 3, tries)
	require.NoDirExists(t, dir)
	require.False(t, w.shard(0).Paused(t.Context(), time.Now()), "purges and removals go on")
}

// noise publishes one large message.
func (x *writer) noise(ctx context.Context, n int) error {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	for i := range b {
		b[i] = 'a' + b[i]%26
	}
	return x.publish(ctx, &schema.MessageAddedData{Message: schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(string(b))}}})
}

// seal stores a segment of a run's records.
func (w *world) seal(x *writer, number, from, to int) {
	w.tb.Helper()
	at := map[schema.StreamSequence]schema.Record{}
	require.NoError(w.tb, eventlog.Read(w.tb.Context(), w.js, x.names, x.run.Run, 1, func(rec schema.Record) error {
		at[rec.Stream] = rec
		return nil
	}))
	h := schema.NewHead(fleet, x.run.Run)
	for i := range x.acked[from:to] {
		rec := at[x.acked[from+i].Stream]
		x.acked[from+i].Stored, x.acked[from+i].Behind = rec.Stored, rec.Behind
	}
	for i := range x.acked[:from] {
		h.Apply(schema.NoKeys, &x.acked[i])
	}
	info := schema.SegmentInfo{
		Fleet: fleet, Run: x.run.Run, Number: number, Events: to - from, First: schema.PositionOf(&x.acked[from]), Last: schema.PositionOf(&x.acked[to-1]),
		DigestBefore: h.Digest,
	}
	var frames []byte
	for i := range x.acked[from:to] {
		frames = schema.AppendFrame(frames, &x.acked[from+i])
		h.Apply(schema.NoKeys, &x.acked[from+i])
	}
	info.DigestAfter = h.Digest
	stored, err := schema.EncodeSegment(info, nil, frames)
	require.NoError(w.tb, err)
	require.NoError(w.tb, w.shard(x.names.Shard).Segments.Create(w.tb.Context(), x.run.Run, number, stored))
}

func TestBackup_RunErasedMeanwhile_NotHalfIncluded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	names := schema.NamesOf(fleet, 0)
	x, y := w.writer("x"), w.writer("y")
	for _, r := range []*writer{x, y} {
		require.NoError(t, r.start(t.Context()))
		require.NoError(t, r.oneTurn(t.Context(), 100))
	}
	w.seal(x, 1, 0, 3)
	dir := target(t)
	m, _, err := w.takeWhile(dir, func(try int) {
		if try > 1 {
			return
		}
		kv, err := w.js.KeyValue(t.Context(), names.SegmentBucket())
		require.NoError(t, err)
		require.NoError(t, kv.Purge(t.Context(), schema.SegmentKey("x", 1)))
		s, err := w.js.Stream(t.Context(), names.EventStream())
		require.NoError(t, err)
		require.NoError(t, s.Purge(t.Context(), jetstream.WithPurgeSubject(names.EventSubject("x"))))
	})
	require.NoError(t, err)
	require.Equal(t, 1, m.Shards[0].Runs)
	other := empty(t)
	_, err = backup.Restore(t.Context(), other.js, backup.Target{Dir: dir})
	require.NoError(t, err)
	other.load()
	other.requireRun(y, m.Shards[0].Cut)
	u, err := other.shard(0).Usage(t.Context())
	require.NoError(t, err)
	require.Equal(t, m.Shards[0].Cut, u.Last, "sequences go on behind the cut")
	_, err = other.shard(0).Segments.GetFresh(t.Context(), "x", 1)
	require.ErrorIs(t, err, kvstore.ErrNotFound)
}

// small is a backup of a fleet with one run.
func small(t *testing.T) (w *world, x *writer, dir string, m *backup.Manifest) {
	t.Helper()
	w = newWorld(t, 1)
	x = w.writer("x")
	require.NoError(t, x.start(t.Context()))
	require.NoError(t, x.oneTurn(t.Context(), 100))
	dir = target(t)
	m, err := w.take(dir, nil)
	require.NoError(t, err)
	return w, x, dir, m
}

func TestRestore_ExistingData_NotOverwritten(t *testing.T) {
	t.Parallel()
	w, _, dir, _ := small(t)
	_, err := w.take(dir, nil)
	require.ErrorIs(t, err, backup.ErrExists)
	_, err = backup.Restore(t.Context(), w.js, backup.Target{Dir: dir})
	require.ErrorIs(t, err, backup.ErrFleetExists, "a fleet that is there")
	other := empty(t)
	_, err = other.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "KV_" + schema.NamesOf(fleet, 0).SegmentBucket(), Subjects: []string{"a"}})
	require.NoError(t, err)
	_, err = backup.Restore(t.Context(), other.js, backup.Target{Dir: dir})
	require.ErrorIs(t, err, backup.ErrFleetExists, "a stream that is there")
	_, err = other.js.Stream(t.Context(), schema.NamesOf(fleet, 0).EventStream())
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound, "nothing was restored with it")
}

// A daemon that is started after its server's store was lost makes the fleet.
func TestRestore_FleetWithoutEvents_IsReplaced(t *testing.T) {
	t.Parallel()
	_, x, dir, m := small(t)
	other := empty(t)
	made := kvstore.FleetConfig{Fleet: fleet, Shards: 2, QuotaBytes: kvstore.MinQuotaBytes, ReserveBytes: 1 << 20}
	require.NoError(t, kvstore.Provision(t.Context(), other.js, made))
	barrier := schema.NamesOf(fleet, 0).EventSubject(schema.BarrierRun)
	_, err := other.js.Publish(t.Context(), barrier, []byte("{}"))
	require.NoError(t, err, "a reader asked")
	_, err = backup.Restore(t.Context(), other.js, backup.Target{Dir: dir})
	require.NoError(t, err)
	other.load()
	require.Equal(t, 1, other.settings.Shards)
	other.requireRun(x, m.Shards[0].Cut)
	_, err = other.js.Stream(t.Context(), schema.NamesOf(fleet, 1).EventStream())
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)
	_, err = backup.Restore(t.Context(), other.js, backup.Target{Dir: dir})
	require.ErrorIs(t, err, backup.ErrFleetExists, "now it has events")
	other.requireRun(x, m.Shards[0].Cut)
}

// A daemon keeps the number of shards that it began with.
func TestRestore_DaemonServesFleetWithoutEvents_IsNotReplaced(t *testing.T) {
	t.Parallel()
	_, x, dir, m := small(t)
	other := empty(t)
	other.provision(kvstore.FleetConfig{Fleet: fleet, Shards: 2, QuotaBytes: kvstore.MinQuotaBytes, ReserveBytes: 1 << 20})
	stop := other.fold()
	require.Eventually(t, func() bool {
		holder, err := kvstore.Holder(t.Context(), other.js, kvstore.FoldLease(schema.NamesOf(fleet, 1)))
		return err == nil && holder == "daemon-1"
	}, time.Minute, time.Millisecond)
	_, err := backup.Restore(t.Context(), other.js, backup.Target{Dir: dir})
	require.ErrorIs(t, err, backup.ErrServed)
	require.ErrorContains(t, err, "held by daemon-1")
	other.load()
	require.Equal(t, 2, other.settings.Shards)
	stop()
	_, err = backup.Restore(t.Context(), other.js, backup.Target{Dir: dir})
	require.NoError(t, err)
	other.load()
	other.requireRun(x, m.Shards[0].Cut)
}

func TestRestore_FleetWithoutEventsAndForeignStream_DeletesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	dir := target(t)
	_, err := w.take(dir, nil)
	require.NoError(t, err)
	other := newWorld(t, 1)
	_, err = other.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: schema.NamesOf(fleet, 1).EventStream(), Subjects: []string{"a"}})
	require.NoError(t, err)
	_, err = backup.Restore(t.Context(), other.js, backup.Target{Dir: dir})
	require.ErrorIs(t, err, backup.ErrFleetExists)
	other.load()
	_, err = other.js.Stream(t.Context(), schema.NamesOf(fleet, 0).EventStream())
	require.NoError(t, err)
}

// An administrator may purge the log of a fleet: its checkpoints still know its runs.
func TestRestore_FleetWithFoldedEventsOnly_IsNotReplaced(t *testing.T) {
	t.Parallel()
	w, x, dir, _ := small(t)
	w.fold()
	require.Eventually(t, func() bool {
		_, _, err := w.shard(0).Checkpoints.GetFresh(t.Context(), x.run.Run)
		mark, _, markErr := w.shard(0).Checkpoints.Watermark(t.Context())
		return err == nil && markErr == nil && mark.Totals.Events > 0
	}, time.Minute, 10*time.Millisecond)
	log, err := w.js.Stream(t.Context(), schema.NamesOf(fleet, 0).EventStream())
	require.NoError(t, err)
	require.NoError(t, log.Purge(t.Context()))
	_, err = backup.Restore(t.Context(), w.js, backup.Target{Dir: dir})
	require.ErrorIs(t, err, backup.ErrFleetExists)
	require.ErrorContains(t, err, "has folded")
}

func TestBackup_Interrupted_NotABackup(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	x := w.writer("x")
	require.NoError(t, x.start(t.Context()))
	for _, stream := range []string{
		schema.NamesOf(fleet, 0).EventStream(), "KV_" + schema.NamesOf(fleet, 0).SegmentBucket(), "OBJ_" + schema.BlobBucket(fleet),
		schema.DeadLetterStream(fleet),
	} {
		dir := target(t)
		ctx, cancel := context.WithCancel(t.Context())
		_, err := backup.Take(ctx, w.js, backup.Config{Fleet: fleet, Dir: dir, Actor: "tester", Now: time.Now, OnStream: func(s string, _ uint64) {
			if s == stream {
				// A crash at this moment would leave no manifest.
				left := partial(t, dir)
				require.Len(t, left, 1)
				_, err := backup.Open(left[0])
				require.ErrorIs(t, err, backup.ErrNotABackup)
				cancel()
			}
		}})
		require.ErrorIs(t, err, context.Canceled, "%s", stream)
		require.NoDirExists(t, dir)
		require.Empty(t, partial(t, dir), "what was begun is taken away")
	}
}

func TestRestore_Interrupted_Continues(t *testing.T) {
	t.Parallel()
	_, x, dir, m := small(t)
	other := empty(t)
	for i, s := range m.Streams {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := backup.Restore(ctx, other.js, backup.Target{Dir: dir, OnStream: func(stream string, _ uint64) {
			if stream == s.Name {
				cancel()
			}
		}})
		require.ErrorIs(t, err, context.Canceled, "stream %d", i)
		_, _, err = kvstore.NewFleets(other.js).Get(t.Context(), fleet)
		require.Error(t, err, "there is no fleet before all of it is there")
	}
	done, err := backup.Restore(t.Context(), other.js, backup.Target{Dir: dir})
	require.NoError(t, err)
	require.Equal(t, len(m.Streams)-1, done.Before)
	require.Equal(t, 1, done.Streams)
	other.load()
	other.requireRun(x, m.Shards[0].Cut)
}

// A stream that was written to since its restore is never treated as an unfinished restore, whatever became of the
// settings.
func TestRestore_LogGrewSince_NotRecreated(t *testing.T) {
	t.Parallel()
	_, _, dir, m := small(t)
	other := empty(t)
	_, err := backup.Restore(t.Context(), other.js, backup.Target{Dir: dir})
	require.NoError(t, err)
	_, err = other.js.Publish(t.Context(), schema.NamesOf(fleet, 0).EventSubject("later"), []byte("acknowledged"))
	require.NoError(t, err)
	require.NoError(t, other.js.DeleteKeyValue(t.Context(), schema.FleetBucket))
	_, err = backup.Restore(t.Context(), other.js, backup.Target{Dir: dir})
	require.ErrorIs(t, err, backup.ErrFleetExists)
	require.ErrorContains(t, err, "used since")
	stream, err := other.js.Stream(t.Context(), m.Streams[0].Name)
	require.NoError(t, err)
	last, err := stream.GetLastMsgForSubject(t.Context(), schema.NamesOf(fleet, 0).EventSubject("later"))
	require.NoError(t, err)
	require.Equal(t, "acknowledged", string(last.Data))
}

// A daemon that starts after an interrupted restore does not create the missing streams empty.
func TestRestore_HalfDone_FleetNotProvisioned(t *testing.T) {
	t.Parallel()
	_, x, dir, m := small(t)
	for i := 1; i < len(m.Streams); i++ {
		other := empty(t)
		ctx, cancel := context.WithCancel(t.Context())
		_, err := backup.Restore(ctx, other.js, backup.Target{Dir: dir, OnStream: func(stream string, _ uint64) {
			if stream == m.Streams[i].Name {
				cancel()
			}
		}})
		require.ErrorIs(t, err, context.Canceled)
		err = kvstore.Provision(t.Context(), other.js, kvstore.ConfigOf(&m.Settings))
		require.ErrorIs(t, err, kvstore.ErrStreamMissing, "before stream %d", i)
		require.ErrorContains(t, err, "repeat waymark restore")
		_, err = backup.Restore(t.Context(), other.js, backup.Target{Dir: dir})
		require.NoError(t, err)
		other.load()
		other.requireRun(x, m.Shards[0].Cut)
		require.NoError(t, kvstore.Provision(t.Context(), other.js, kvstore.ConfigOf(&m.Settings)))
	}
}

func TestRestore_HalfRestoredStream_Recreated(t *testing.T) {
	t.Parallel()
	_, x, dir, m := small(t)
	other := empty(t)
	// A restore that breaks off within a stream leaves it with the backup's name and less than it should have.
	_, err := other.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: m.Streams[0].Name, Subjects: []string{schema.NamesOf(fleet, 0).EventSubjects()}, Metadata: map[string]string{"waymark.restored": m.ID},
	})
	require.NoError(t, err)
	done, err := backup.Restore(t.Context(), other.js, backup.Target{Dir: dir})
	require.NoError(t, err)
	require.Equal(t, len(m.Streams), done.Streams)
	other.load()
	other.requireRun(x, m.Shards[0].Cut)
	require.NoError(t, kvstore.Provision(t.Context(), other.js, kvstore.ConfigOf(&other.settings)), "every flag is as it must be")
}

func TestRestore_DamagedBackup_NamedAndRefused(t *testing.T) {
	t.Parallel()
	_, _, dir, m := small(t)
	content := filepath.Join(dir, "streams", m.Streams[0].Name, "stream.arc.s2")
	about := filepath.Join(dir, "streams", m.Streams[0].Name, "backup.json")
	manifest := filepath.Join(dir, "manifest.json")
	flip := func(b []byte) []byte { b[len(b)/2] ^= 1; return b }
	for _, c := range []struct {
		name, file string
		change     func([]byte) []byte
		want       error
	}{
		{"a flipped bit in a stream", content, flip, backup.ErrDamaged},
		{"a stream cut short", content, func(b []byte) []byte { return b[:len(b)-7] }, backup.ErrDamaged},
		{"something behind a stream", content, func(b []byte) []byte { return append(b, "more"...) }, backup.ErrDamaged},
		{"a flipped bit in a description", about, flip, backup.ErrDamaged},
		{"no description", about, func([]byte) []byte { return nil }, backup.ErrDamaged},
		{"a changed manifest", manifest, func(b []byte) []byte { return []byte(strings.Replace(string(b), `"messages": `, `"messages": 1`, 1)) }, backup.ErrDamaged},
		{"another fleet's name in the manifest", manifest, func(b []byte) []byte { return []byte(strings.ReplaceAll(string(b), "alpha", "omega")) }, backup.ErrDamaged},
		{"a manifest of a later version", manifest, func(b []byte) []byte { return []byte(strings.Replace(string(b), `"format": 1`, `"format": 2`, 1)) }, backup.ErrFormat},
		{"no manifest", manifest, func([]byte) []byte { return nil }, backup.ErrNotABackup},
	} {
		t.Run(c.name, func(t *testing.T) {
			was, err := os.ReadFile(c.file)
			require.NoError(t, err)
			is := c.change(append([]byte(nil), was...))
			if is == nil {
				require.NoError(t, os.Remove(c.file))
			} else {
				require.NoError(t, os.WriteFile(c.file, is, 0o600))
			}
			defer func() { require.NoError(t, os.WriteFile(c.file, was, 0o600)) }()
			_, err = backup.Check(dir, 0)
			require.ErrorIs(t, err, c.want)
			other := empty(t)
			_, err = backup.Restore(t.Context(), other.js, backup.Target{Dir: dir})
			require.ErrorIs(t, err, c.want)
			_, err = other.js.Stream(t.Context(), m.Streams[0].Name)
			require.Error(t, err, "nothing was restored")
		})
	}
	_, err := backup.Check(dir, 0)
	require.NoError(t, err)
}

func TestBackup_Done_Recorded(t *testing.T) {
	t.Parallel()
	w, _, _, m := small(t)
	r, err := kvstore.LastBackup(t.Context(), w.js, fleet)
	require.NoError(t, err)
	require.Equal(t, m.ID, r.ID)
	require.Equal(t, m.Began, r.Began)
	_, err = kvstore.LastBackup(t.Context(), w.js, "omega")
	require.ErrorIs(t, err, kvstore.ErrNotFound)
}

// partial lists the leftovers of interrupted backups next to a directory.
func partial(t *testing.T, dir string) []string {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".partial-*"))
	require.NoError(t, err)
	return left
}

// A killed backup leaves its files: the next one in the directory removes them once nothing has written them for a day. One that still writes,
// and directories that are no backup, stay.
func TestBackup_KilledOnesLeft_RemovedByTheNext(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	require.NoError(t, w.writer("x").start(t.Context()))
	dir := target(t)
	parent, old := filepath.Dir(dir), time.Now().Add(-25*time.Hour)
	for name, written := range map[string]time.Time{".monday.partial-1": old, ".tuesday.partial-2": time.Now(), "sunday": old, ".other": old} {
		file := filepath.Join(parent, name, "streams", "x")
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		require.NoError(t, os.Chtimes(file, written, written))
		require.NoError(t, os.Chtimes(filepath.Dir(file), old, old))
		require.NoError(t, os.Chtimes(filepath.Join(parent, name), old, old))
	}
	_, err := backup.Take(t.Context(), w.js, backup.Config{Fleet: fleet, Dir: dir, Actor: "tester", Now: time.Now})
	require.NoError(t, err)
	require.NoDirExists(t, filepath.Join(parent, ".monday.partial-1"))
	for _, name := range []string{".tuesday.partial-2", "sunday", ".other"} {
		require.FileExists(t, filepath.Join(parent, name, "streams", "x"))
	}
}
