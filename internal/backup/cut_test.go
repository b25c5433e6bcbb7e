package backup_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/backup"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// cut cuts the fleet.
func (w *world) cut(at time.Time, positions map[int]schema.StreamSequence) (shards []backup.ShardPoint, runs map[string]backup.RunPoint, err error) {
	w.tb.Helper()
	runs = map[string]backup.RunPoint{}
	err = backup.Cut(w.tb.Context(), w.js, backup.CutConfig{
		Fleet: fleet, Time: at, Positions: positions,
		OnShard: func(p backup.ShardPoint) error { shards = append(shards, p); return nil },
		OnRun: func(p backup.RunPoint) error {
			require.NotContains(w.tb, runs, p.Run)
			runs[p.Run] = p
			return nil
		},
	})
	return shards, runs, err
}

// requireCut asserts that the cut has each run at its last boundary up to the position of its shard.
func requireCut(t *testing.T, writers []*writer, shards []backup.ShardPoint, runs map[string]backup.RunPoint) {
	t.Helper()
	begun := 0
	for _, x := range writers {
		at, bounds, point := schema.NewHead(fleet, x.run.Run), schema.Head{}, ""
		n := 0
		for _, r := range x.acked {
			if r.Stream > shards[x.names.Shard].Position {
				break
			}
			n++
			if v := at.Apply(schema.NoKeys, &r); v.Boundary {
				bounds, point = at.Clone(), "event:"+at.Position.ID
				if v.Kind == schema.Applied && v.Event.Sequence != 0 {
					point = fmt.Sprintf("seq:%d.%d", at.Epoch, v.Event.Sequence)
				}
			}
		}
		p, ok := runs[x.run.Run]
		require.Equal(t, n > 0, ok, "run %s has %d events up to there", x.run.Run, n)
		if n == 0 {
			continue
		}
		begun++
		require.Equal(t, point, p.Point)
		require.Equal(t, bounds.Position, p.Position)
		require.Equal(t, bounds.Digest, p.Digest)
		require.Equal(t, bounds.Counts.Events, p.Events)
		require.Equal(t, n < len(x.acked), p.WentOn, "run %s", x.run.Run)
	}
	require.Len(t, runs, begun)
}

// someRuns are runs with interleaved events.
func someRuns(t *testing.T, w *world, n, turns int) []*writer {
	t.Helper()
	writers := make([]*writer, n)
	for i := range writers {
		writers[i] = w.writer(fmt.Sprintf("run-%d", i))
		require.NoError(t, writers[i].start(t.Context()))
		for _, x := range writers[:i+1] {
			require.NoError(t, x.oneTurn(t.Context(), 50))
		}
	}
	for range turns {
		for _, x := range writers {
			require.NoError(t, x.oneTurn(t.Context(), 50))
		}
	}
	return writers
}

func TestCut_AtTime_OnePositionPerLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	writers := someRuns(t, w, 8, 2)
	// The times are the server's.
	names := writers[4].names
	middle := writers[4].acked[len(writers[4].acked)/2].Stream
	stream, err := w.js.Stream(t.Context(), names.EventStream())
	require.NoError(t, err)
	msg, err := stream.GetMsg(t.Context(), uint64(middle))
	require.NoError(t, err)
	at := msg.Time.Add(time.Nanosecond)

	shards, runs, err := w.cut(at, nil)
	require.NoError(t, err)
	require.Len(t, shards, 3)
	require.Equal(t, middle, shards[names.Shard].Position)
	for _, s := range shards {
		stream, err := w.js.Stream(t.Context(), schema.NamesOf(fleet, s.Shard).EventStream())
		require.NoError(t, err)
		if s.Position > 0 {
			msg, err := stream.GetMsg(t.Context(), uint64(s.Position))
			require.NoError(t, err)
			require.True(t, msg.Time.Before(at))
			require.Equal(t, schema.FormatTime(msg.Time), s.After)
		}
		if msg, err := stream.GetMsg(t.Context(), uint64(s.Position)+1); err == nil {
			require.False(t, msg.Time.Before(at))
			require.Equal(t, schema.FormatTime(msg.Time), s.Before)
		}
	}
	requireCut(t, writers, shards, runs)
}

func TestCut_AfterSeal_Same(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	writers := someRuns(t, w, 5, 4)
	end(t, writers)
	last := schema.StreamSequence(0)
	for _, x := range writers {
		last = max(last, x.acked[len(x.acked)-1].Stream)
	}
	places := []schema.StreamSequence{0, 1, 7, last / 3, last / 2, last - 1, last}
	before := make([]map[string]backup.RunPoint, len(places))
	for i, at := range places {
		shards, runs, err := w.cut(time.Time{}, map[int]schema.StreamSequence{0: at})
		require.NoError(t, err)
		requireCut(t, writers, shards, runs)
		before[i] = runs
	}
	w.sealed(writers)
	for i, at := range places {
		_, runs, err := w.cut(time.Time{}, map[int]schema.StreamSequence{0: at})
		require.NoError(t, err)
		require.Equal(t, before[i], runs)
	}
}

// end ends all runs.
func end(t *testing.T, writers []*writer) {
	t.Helper()
	for _, x := range writers {
		require.NoError(t, x.publish(t.Context(), &schema.RunEndedData{Status: "completed"}))
	}
}

// sealed waits until the fold worker has sealed all runs, which have ended, and the purger has purged them.
func (w *world) sealed(writers []*writer) {
	w.tb.Helper()
	stop := w.fold()
	require.Eventually(w.tb, func() bool {
		u, err := w.shard(0).Usage(w.tb.Context())
		return err == nil && u.Messages <= uint64(len(writers))+1
	}, 3*time.Minute, 10*time.Millisecond)
	stop()
}

// The events' own times come from an executor: they decide nothing.
func TestCut_SealedEvents_UsesServerTimes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	writers := someRuns(t, w, 5, 4)
	end(t, writers)
	x := writers[2]
	middle := x.acked[len(x.acked)/2]
	stream, err := w.js.Stream(t.Context(), x.names.EventStream())
	require.NoError(t, err)
	msg, err := stream.GetMsg(t.Context(), uint64(middle.Stream))
	require.NoError(t, err)
	at := msg.Time
	w.sealed(writers)
	shards, runs, err := w.cut(at, nil)
	require.NoError(t, err)
	require.Equal(t, middle.Stream-1, shards[0].Position, "nothing that was stored then or later")
	require.NotEmpty(t, shards[0].Before)
	requireCut(t, writers, shards, runs)
}

func TestCut_FutureOrIncomplete_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	someRuns(t, w, 2, 1)
	_, _, err := w.cut(time.Now().Add(time.Hour), nil)
	require.ErrorIs(t, err, backup.ErrFuture)
	_, _, err = w.cut(time.Time{}, map[int]schema.StreamSequence{0: 1, 1: 1 << 40})
	require.ErrorIs(t, err, backup.ErrFuture)
	for _, positions := range []map[int]schema.StreamSequence{nil, {0: 1}, {0: 1, 1: 1, 2: 1}, {0: 1, 2: 1}} {
		_, _, err = w.cut(time.Time{}, positions)
		require.ErrorIs(t, err, backup.ErrConfig, "%v", positions)
	}
	_, _, err = w.cut(time.Now(), map[int]schema.StreamSequence{0: 1, 1: 1})
	require.ErrorIs(t, err, backup.ErrConfig)
	err = backup.Cut(t.Context(), w.js, backup.CutConfig{Fleet: "omega", Time: time.Now()})
	require.ErrorIs(t, err, kvstore.ErrNotFound)
}

func TestCut_BeforeFirstEvent_NoRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	someRuns(t, w, 2, 1)
	shards, runs, err := w.cut(time.Now().Add(-time.Hour), nil)
	require.NoError(t, err)
	require.Zero(t, shards[0].Position)
	require.Empty(t, runs)
}
