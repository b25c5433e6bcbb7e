package kvstore_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
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
		putIndex(tb, b, chunk...)
	}
}

func putIndex(tb testing.TB, b *bench, puts ...kvstore.IndexPut) {
	tb.Helper()
	for _, res := range b.shard.Checkpoints.PutIndex(tb.Context(), puts...) {
		require.NoError(tb, res.Err)
	}
}

func TestEndedIndex_Order_NewestFirst(t *testing.T) {
	if testing.Short() {
		t.Skip("short: 3,000 ended runs")
	}
	t.Parallel()
	b := newBench(t)
	// As many as a volume can have, then hardly any for a long way, and some at the borders of volumes of each size.
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
		{"none", kvstore.EndedQuery{Agent: "unknown"}, func(schema.StreamSequence) bool { return false }},
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

func TestEndedIndex_LargeVolume_ReadByName(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	// Another client puts entries that no fold worker writes: runs with the same last event.
	var puts []kvstore.IndexPut
	for i := range 1100 {
		h := schema.Head{
			Run: fmt.Sprintf("run-%d", i), Agent: "writer", Status: schema.StatusCompleted,
			Position: schema.Position{Stream: schema.StreamSequence(512 + i%512), ID: "x"}, //nolint:gosec // small
		}
		e := schema.EndedOf(&h)
		puts = append(puts, kvstore.IndexPut{Key: schema.EndedKey(&h), Ended: &e})
	}
	putIndex(t, b, puts...)
	page, err := b.shard.Checkpoints.Ended(t.Context(), kvstore.EndedQuery{Before: 1024, Floor: 512, Limit: 2000})
	require.NoError(t, err)
	require.Len(t, page.Runs, 1100)
}

func TestEndedIndex_Entry_Removed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cps := b.shard.Checkpoints
	putEnded(t, b, 5, 7)
	children := []kvstore.IndexPut{{Key: schema.ChildKeyPrefix + "top.b"}, {Key: schema.ChildKeyPrefix + "top.a"}, {Key: schema.ChildKeyPrefix + "to.p"}}
	putIndex(t, b, children...)
	runs, err := cps.Children(t.Context(), "top")
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, runs)
	_, err = cps.Children(t.Context(), "*")
	require.Error(t, err)

	h := schema.Head{Run: "run-5", Agent: "writer", Status: schema.StatusCompleted, Position: schema.Position{Stream: 5}}
	keys := []string{schema.EndedKey(&h), schema.ChildKeyPrefix + "top.b", "_.ended.never.there"}
	revisions, err := cps.IndexRevisions(t.Context(), keys...)
	require.NoError(t, err)
	require.Zero(t, revisions[2])
	e := schema.EndedOf(&h)
	put := cps.PutIndex(t.Context(), kvstore.IndexPut{Key: keys[0], Ended: &e}, kvstore.IndexPut{Key: keys[0], Ended: &e, Revision: revisions[0]})
	require.ErrorIs(t, put[0].Err, kvstore.ErrConflict, "it is there already")
	require.NoError(t, put[1].Err)
	require.NoError(t, cps.TakeIndex(t.Context(), kvstore.IndexAt{Key: keys[0], Revision: revisions[0]}))
	page, err := cps.Ended(t.Context(), kvstore.EndedQuery{Before: 100, Limit: 10})
	require.NoError(t, err)
	require.Len(t, page.Runs, 2, "it was put again in the meantime")
	for i, rev := range []schema.Revision{put[1].Revision, revisions[1], 0} {
		require.NoError(t, cps.TakeIndex(t.Context(), kvstore.IndexAt{Key: keys[i], Revision: rev}))
	}
	page, err = cps.Ended(t.Context(), kvstore.EndedQuery{Before: 100, Limit: 10})
	require.NoError(t, err)
	require.Len(t, page.Runs, 1)
	require.Equal(t, "run-7", page.Runs[0].Run)
	runs, err = cps.Children(t.Context(), "top")
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, runs)

	latest, err := cps.Latest(t.Context())
	require.NoError(t, err)
	putEnded(t, b, 9)
	require.NoError(t, cps.ClearIndex(t.Context(), latest))
	page, err = cps.Ended(t.Context(), kvstore.EndedQuery{Before: 100, Limit: 10})
	require.NoError(t, err)
	require.Len(t, page.Runs, 1)
	require.Equal(t, "run-9", page.Runs[0].Run, "it was put later")
	require.NoError(t, cps.ClearIndex(t.Context(), 1<<62))
	page, err = cps.Ended(t.Context(), kvstore.EndedQuery{Before: 100, Limit: 10})
	require.NoError(t, err)
	require.Empty(t, page.Runs)
	runs, err = cps.Children(t.Context(), "to")
	require.NoError(t, err)
	require.Empty(t, runs)
}

func TestEndedIndex_State_ComparedAndSet(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cps := b.shard.Checkpoints
	st, rev, err := cps.IndexState(t.Context())
	require.NoError(t, err)
	require.Zero(t, st)
	rev, err = cps.PutIndexState(t.Context(), kvstore.IndexState{Folding: true}, rev)
	require.NoError(t, err)
	_, err = cps.PutIndexState(t.Context(), kvstore.IndexState{Complete: true}, 0)
	require.ErrorIs(t, err, kvstore.ErrConflict)
	st, again, err := cps.IndexState(t.Context())
	require.NoError(t, err)
	require.Equal(t, rev, again)
	require.True(t, st.Folding)
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

func TestCheckpoints_Many_ReadAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	putMany(t, b, 1200)
	var runs []string
	for i := range 1200 {
		runs = append(runs, fmt.Sprintf("run-%05d", (i*7)%1200))
	}
	runs = append(runs, "unknown")
	list, upTo, err := b.shard.Checkpoints.Of(t.Context(), runs)
	require.NoError(t, err)
	require.EqualValues(t, config(t, b.js, checkpointStream).FirstSeq+1200-1, upTo)
	require.Len(t, list, 1201)
	for i, s := range list[:1200] {
		require.NoError(t, s.Err)
		require.Equal(t, runs[i], s.Checkpoint.Run)
	}
	require.ErrorIs(t, list[1200].Err, kvstore.ErrNotFound)
}

func TestEndedIndex_Time_Entered(t *testing.T) {
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

// A subscription with the connection's own queue costs half a megabyte per read. A queue of one message would drop
// the others.
func TestCheckpoints_ReadManyAtOnce_NeedNoQueueOfTheConnection(t *testing.T) {
	t.Parallel()
	b := newBenchOn(t, natstest.Start(t).Conn(t, nats.SyncQueueLen(1)))
	putMany(t, b, 300)
	var runs []string
	for i := range 300 {
		runs = append(runs, fmt.Sprintf("run-%05d", i))
	}
	list, _, err := b.shard.Checkpoints.Of(t.Context(), runs)
	require.NoError(t, err)
	for i, s := range list {
		require.NoError(t, s.Err)
		require.Equal(t, runs[i], s.Checkpoint.Run)
	}
}
