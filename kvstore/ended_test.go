package kvstore_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// putEnded puts an entry for each position; every third run has failed, every tenth is of another agent.
func putEnded(tb testing.TB, b *bench, positions ...schema.StreamSequence) {
	tb.Helper()
	puts := make([]kvstore.IndexPut, len(positions))
	for i, at := range positions {
		h := schema.Head{Run: fmt.Sprintf("run-%d", at), Agent: "writer", Status: schema.StatusCompleted, Position: schema.Position{Stream: at, ID: "x"}}
		if at%3 == 0 {
			h.Status = schema.StatusFailed
		}
		if at%10 == 0 {
			h.Agent = "other"
		}
		e := schema.EndedOf(&h)
		puts[i] = kvstore.IndexPut{Key: schema.EndedKey(&h), Ended: &e}
	}
	for chunk := range slices.Chunk(puts, 4096) {
		require.NoError(tb, b.shard.Checkpoints.PutIndex(tb.Context(), chunk...))
	}
}

func TestEndedRunsAreReadFromTheNewestDown(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	// As many as a volume can have, hardly any for a long way, and some at the borders of volumes of each size.
	var positions []schema.StreamSequence
	for at := schema.StreamSequence(1); at <= 3000; at++ {
		positions = append(positions, at)
	}
	positions = append(positions, 4095, 4096, 32767, 32768, 40_000, 1<<20-1, 1<<20, 9<<20, 9<<20+1, 70<<20)
	putEnded(t, b, positions...)
	_, err := b.shard.Checkpoints.PutIndexState(t.Context(), kvstore.IndexState{Complete: true}, 0)
	require.NoError(t, err)
	top := positions[len(positions)-1]
	for _, c := range []struct {
		name  string
		query kvstore.EndedQuery
		keep  func(schema.StreamSequence) bool
	}{
		{"all", kvstore.EndedQuery{}, func(schema.StreamSequence) bool { return true }},
		{"a status", kvstore.EndedQuery{Statuses: []schema.Status{"failed"}}, func(at schema.StreamSequence) bool { return at%3 == 0 }},
		{"an agent", kvstore.EndedQuery{Agent: "other"}, func(at schema.StreamSequence) bool { return at%10 == 0 }},
		{"both", kvstore.EndedQuery{Agent: "other", Statuses: []schema.Status{"failed", "cancelled"}}, func(at schema.StreamSequence) bool { return at%30 == 0 }},
		{"a floor", kvstore.EndedQuery{Floor: 2999}, func(at schema.StreamSequence) bool { return at >= 2999 }},
		{"a match", kvstore.EndedQuery{Match: func(e *schema.Ended) bool { return e.Position%7 == 0 }}, func(at schema.StreamSequence) bool { return at%7 == 0 }},
		{"none", kvstore.EndedQuery{Agent: "nobody"}, func(schema.StreamSequence) bool { return false }},
	} {
		want := slices.DeleteFunc(slices.Clone(positions), func(at schema.StreamSequence) bool { return !c.keep(at) })
		slices.Reverse(want)
		for _, limit := range []int{37, 5000} {
			q := c.query
			q.Before, q.Limit = top+1, limit
			got := []schema.StreamSequence{}
			for calls := 0; q.Before > max(q.Floor, 1); calls++ {
				require.Less(t, calls, 400)
				page, err := b.shard.Checkpoints.Ended(t.Context(), q)
				require.NoError(t, err)
				require.LessOrEqual(t, len(page.Runs), limit)
				require.Less(t, page.Next, q.Before)
				require.NotZero(t, page.UpTo)
				for _, e := range page.Runs {
					got = append(got, e.Position)
				}
				q.Before = page.Next
			}
			require.Equal(t, want, got, "%s, limit %d", c.name, limit)
		}
	}
	_, err = b.shard.Checkpoints.Ended(t.Context(), kvstore.EndedQuery{})
	require.ErrorContains(t, err, "limit")
}

func TestAVolumeWithMoreEntriesThanAnAnswerIsReadByName(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	// Other hands put what no folder would: runs with the same last event.
	var puts []kvstore.IndexPut
	for i := range 1100 {
		h := schema.Head{
			Run: fmt.Sprintf("run-%d", i), Agent: "writer", Status: schema.StatusCompleted,
			Position: schema.Position{Stream: schema.StreamSequence(512 + i%512), ID: "x"}, //nolint:gosec // small
		}
		e := schema.EndedOf(&h)
		puts = append(puts, kvstore.IndexPut{Key: schema.EndedKey(&h), Ended: &e})
	}
	require.NoError(t, b.shard.Checkpoints.PutIndex(t.Context(), puts...))
	page, err := b.shard.Checkpoints.Ended(t.Context(), kvstore.EndedQuery{Before: 1024, Floor: 512, Limit: 2000})
	require.NoError(t, err)
	require.Len(t, page.Runs, 1100)
}

func TestEntriesOfTheIndexAreTakenOut(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cps := b.shard.Checkpoints
	putEnded(t, b, 5, 7)
	children := []kvstore.IndexPut{{Key: schema.ChildKeyPrefix + "top.b"}, {Key: schema.ChildKeyPrefix + "top.a"}, {Key: schema.ChildKeyPrefix + "to.p"}}
	require.NoError(t, cps.PutIndex(t.Context(), children...))
	runs, err := cps.Children(t.Context(), "top")
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, runs)
	_, err = cps.Children(t.Context(), "*")
	require.Error(t, err)

	h := schema.Head{Run: "run-5", Agent: "writer", Status: schema.StatusCompleted, Position: schema.Position{Stream: 5}}
	require.NoError(t, cps.TakeIndex(t.Context(), schema.EndedKey(&h), schema.ChildKeyPrefix+"top.b", "_.ended.never.there"))
	page, err := cps.Ended(t.Context(), kvstore.EndedQuery{Before: 100, Limit: 10})
	require.NoError(t, err)
	require.Len(t, page.Runs, 1)
	require.Equal(t, "run-7", page.Runs[0].Run)
	runs, err = cps.Children(t.Context(), "top")
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, runs)

	require.NoError(t, cps.ClearIndex(t.Context()))
	page, err = cps.Ended(t.Context(), kvstore.EndedQuery{Before: 100, Limit: 10})
	require.NoError(t, err)
	require.Empty(t, page.Runs)
	runs, err = cps.Children(t.Context(), "to")
	require.NoError(t, err)
	require.Empty(t, runs)
}

func TestTheStateOfTheIndexIsPutByCompareAndSet(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cps := b.shard.Checkpoints
	st, rev, err := cps.IndexState(t.Context())
	require.NoError(t, err)
	require.Zero(t, st)
	rev, err = cps.PutIndexState(t.Context(), kvstore.IndexState{After: "run-7"}, rev)
	require.NoError(t, err)
	_, err = cps.PutIndexState(t.Context(), kvstore.IndexState{Complete: true}, 0)
	require.ErrorIs(t, err, kvstore.ErrConflict)
	st, again, err := cps.IndexState(t.Context())
	require.NoError(t, err)
	require.Equal(t, rev, again)
	require.Equal(t, "run-7", st.After)
	kv, err := b.js.KeyValue(t.Context(), b.names.CheckpointBucket())
	require.NoError(t, err)
	for _, value := range []string{"junk", `{"format":1,"version":99,"complete":true}`} {
		_, err = kv.PutString(t.Context(), schema.IndexKey, value)
		require.NoError(t, err)
		st, _, err = cps.IndexState(t.Context())
		require.NoError(t, err)
		require.Zero(t, st, "an index of another version is none")
	}
}

func TestCheckpointsAreReadManyAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	putMany(t, b, 1200)
	var runs []string
	for i := range 1200 {
		runs = append(runs, fmt.Sprintf("run-%05d", (i*7)%1200))
	}
	runs = append(runs, "nobody")
	list, upTo, err := b.shard.Checkpoints.Of(t.Context(), runs)
	require.NoError(t, err)
	require.EqualValues(t, 1200, upTo)
	require.Len(t, list, 1201)
	for i, s := range list[:1200] {
		require.NoError(t, s.Err)
		require.Equal(t, runs[i], s.Checkpoint.Run)
	}
	require.ErrorIs(t, list[1200].Err, kvstore.ErrNotFound)
}

func TestTheLogIsEnteredByTime(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	begin := time.Now()
	at, err := b.shard.PositionAt(t.Context(), begin)
	require.NoError(t, err)
	require.EqualValues(t, 1, at, "the log is empty")
	for range 3 {
		_, err := b.js.Publish(t.Context(), b.names.EventSubject("run-1"), nil)
		require.NoError(t, err)
	}
	stream, err := b.js.Stream(t.Context(), b.names.EventStream())
	require.NoError(t, err)
	second, err := stream.GetMsg(t.Context(), 2)
	require.NoError(t, err)
	for want, when := range map[schema.StreamSequence]time.Time{1: begin.Add(-time.Hour), 2: second.Time, 3: second.Time.Add(1), 4: time.Now().Add(time.Hour)} {
		at, err := b.shard.PositionAt(t.Context(), when)
		require.NoError(t, err)
		require.Equal(t, want, at)
	}
}
