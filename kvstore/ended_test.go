package kvstore_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// entryOf is an ended run's entry: every third run has failed, every tenth is of another agent.
func entryOf(at schema.StreamSequence) kvstore.IndexPut {
	h := schema.Head{Run: fmt.Sprintf("run-%d", at), Agent: "writer", Status: schema.StatusCompleted, Position: schema.Position{Stream: at, ID: "x"}}
	if at%3 == 0 {
		h.Status = schema.StatusFailed
	}
	if at%10 == 0 {
		h.Agent = "other"
	}
	e := schema.EndedOf(&h)
	return kvstore.IndexPut{Key: schema.EndedKey(&h), Ended: &e}
}

// putEnded puts an entry for each position.
func putEnded(tb testing.TB, b *bench, positions ...schema.StreamSequence) {
	tb.Helper()
	puts := make([]kvstore.IndexPut, len(positions))
	for i, at := range positions {
		puts[i] = entryOf(at)
	}
	require.NoError(tb, b.shard.Checkpoints.PutIndex(tb.Context(), puts...))
}

// ended are the positions of all entries that a query finds, page by page.
func ended(tb testing.TB, cps *kvstore.Checkpoints, q kvstore.EndedQuery) []schema.StreamSequence {
	tb.Helper()
	got := []schema.StreamSequence{}
	q.Before, q.Limit = math.MaxInt64, cmp.Or(q.Limit, 100)
	for calls := 0; q.Before > 0; calls++ {
		require.Less(tb, calls, 400)
		page, err := cps.Ended(tb.Context(), q)
		require.NoError(tb, err)
		require.LessOrEqual(tb, len(page.Runs), q.Limit)
		require.Less(tb, page.Next, q.Before)
		for _, e := range page.Runs {
			got = append(got, e.Position)
		}
		q.Before = page.Next
	}
	return got
}

func TestEndedIndex_Order_NewestFirst(t *testing.T) {
	if testing.Short() {
		t.Skip("short: 3,000 ended runs")
	}
	t.Parallel()
	b := newBench(t)
	// Entries close together, then hardly any among many puts of checkpoints, and close together again.
	var positions []schema.StreamSequence
	for at := schema.StreamSequence(1); at <= 2000; at++ {
		positions = append(positions, at)
	}
	putEnded(t, b, positions...)
	for i := range 20 {
		for n := range 1000 {
			_, err := b.shard.Checkpoints.Put(t.Context(), checkpoint(fmt.Sprintf("other-%d-%d", i, n), 1), 0)
			require.NoError(t, err)
		}
		positions = append(positions, schema.StreamSequence(2500+7*i)) //nolint:gosec // small
		putEnded(t, b, positions[len(positions)-1])
	}
	for at := schema.StreamSequence(3000); at < 4000; at++ {
		positions = append(positions, at)
		putEnded(t, b, at)
	}
	for _, c := range []struct {
		name  string
		query kvstore.EndedQuery
		keep  func(schema.StreamSequence) bool
	}{
		{"all", kvstore.EndedQuery{}, func(schema.StreamSequence) bool { return true }},
		{"a status", kvstore.EndedQuery{Status: "failed"}, func(at schema.StreamSequence) bool { return at%3 == 0 }},
		{"an agent", kvstore.EndedQuery{Agent: "other"}, func(at schema.StreamSequence) bool { return at%10 == 0 }},
		{"both", kvstore.EndedQuery{Agent: "other", Status: "failed"}, func(at schema.StreamSequence) bool { return at%30 == 0 }},
		{"a match", kvstore.EndedQuery{Match: func(e *schema.Ended) bool { return e.Position%7 == 0 }}, func(at schema.StreamSequence) bool { return at%7 == 0 }},
		{"none", kvstore.EndedQuery{Agent: "unknown"}, func(schema.StreamSequence) bool { return false }},
		{"too old", kvstore.EndedQuery{Since: time.Now().Add(time.Hour)}, func(schema.StreamSequence) bool { return false }},
		{"young", kvstore.EndedQuery{Since: time.Now().Add(-time.Hour)}, func(schema.StreamSequence) bool { return true }},
	} {
		want := slices.DeleteFunc(slices.Clone(positions), func(at schema.StreamSequence) bool { return !c.keep(at) })
		slices.Reverse(want)
		for _, limit := range []int{37, 5000} {
			c.query.Limit = limit
			require.Equal(t, want, ended(t, b.shard.Checkpoints, c.query), "%s, limit %d", c.name, limit)
		}
	}
	for _, at := range []schema.StreamSequence{0, 1, 2, 1999, 2001, 2507, 2510, 3000, 3999, 4000, 9999} {
		before, err := b.shard.Checkpoints.EndedSince(t.Context(), at)
		require.NoError(t, err)
		page, err := b.shard.Checkpoints.Ended(t.Context(), kvstore.EndedQuery{Before: before, Limit: 1})
		require.NoError(t, err)
		i, _ := slices.BinarySearch(positions, at)
		if i == 0 {
			require.Empty(t, page.Runs)
			continue
		}
		require.Equal(t, positions[i-1], page.Runs[0].Position, "the last run that ended before %d", at)
	}
	_, err := b.shard.Checkpoints.Ended(t.Context(), kvstore.EndedQuery{})
	require.ErrorContains(t, err, "limit")
}

func TestEndedIndex_PutAgain_MovesToTheTop(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cps := b.shard.Checkpoints
	putEnded(t, b, 5, 7, 8)
	require.Equal(t, []schema.StreamSequence{8, 7, 5}, ended(t, cps, kvstore.EndedQuery{}))
	again := entryOf(7)
	again.Ended.Position = 9
	require.NoError(t, cps.PutIndex(t.Context(), again))
	require.Equal(t, []schema.StreamSequence{9, 8, 5}, ended(t, cps, kvstore.EndedQuery{}), "one entry a run")
}

// Direct gets of the bucket go to a copy of its stream that stopped at some moment, as can happen on a cluster.
func TestEndedIndex_ReplicaBehind_LeaderAddsEntries(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	js, freeze := behind(t, b)
	cps := openShard(t, js, "alpha").Checkpoints
	putEnded(t, b, 5, 7)
	freeze()
	putEnded(t, b, 8, 11, 20)
	require.Equal(t, []schema.StreamSequence{20, 11, 8, 7, 5}, ended(t, cps, kvstore.EndedQuery{}))
	require.Equal(t, []schema.StreamSequence{20}, ended(t, cps, kvstore.EndedQuery{Agent: "other"}))
	var many []schema.StreamSequence
	for at := schema.StreamSequence(100); at < 200; at++ {
		many = append(many, at)
	}
	putEnded(t, b, many...)
	_, err := cps.Ended(t.Context(), kvstore.EndedQuery{Before: math.MaxInt64, Limit: 10})
	require.ErrorIs(t, err, kvstore.ErrUnavailable, "it lags far behind")
}

func TestIndex_RebuiltShard_KeepsLaterEntries(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cps := b.shard.Checkpoints
	require.NoError(t, cps.PutIndex(t.Context(), kvstore.IndexPut{Key: schema.ChildKeyPrefix + "top.b"},
		kvstore.IndexPut{Key: schema.ChildKeyPrefix + "top.a"}, kvstore.IndexPut{Key: schema.ChildKeyPrefix + "to.p"}))
	runs, err := cps.Children(t.Context(), "top")
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, runs)
	_, err = cps.Children(t.Context(), "*")
	require.Error(t, err)

	putEnded(t, b, 5)
	mark, err := cps.PutWatermark(t.Context(), kvstore.Watermark{Incarnation: "i"}, 0)
	require.NoError(t, err)
	putEnded(t, b, 9)
	require.NoError(t, cps.ClearIndex(t.Context(), mark))
	require.Equal(t, []schema.StreamSequence{9}, ended(t, cps, kvstore.EndedQuery{}))
	runs, err = cps.Children(t.Context(), "top")
	require.NoError(t, err)
	require.Empty(t, runs)
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
	list, _, upTo := checkpointsOf(t, b.shard.Checkpoints, runs)
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

// The put of an entry fails while a later one is stored, and the next term puts it. A rebuild puts accepted ends again.
func TestUnposted_LatePut_IsReadAndRepeatsOfARebuildAreNot(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cps := b.shard.Checkpoints
	unposted := func() (got []schema.StreamSequence) {
		runs, next, rev, err := cps.Unposted(t.Context())
		require.NoError(t, err)
		for _, r := range runs {
			got = append(got, r.Position)
		}
		if rev > 0 {
			require.NoError(t, cps.Posted(t.Context(), next, rev))
		}
		return got
	}
	require.Empty(t, unposted())
	putEnded(t, b, 90, 105)
	require.Equal(t, []schema.StreamSequence{90, 105}, unposted())
	putEnded(t, b, 100, 106)
	require.Equal(t, []schema.StreamSequence{100, 106}, unposted())
	for _, at := range []schema.StreamSequence{90, 100, 105, 106, 107} {
		put := entryOf(at)
		put.Ended.Rebuilt = true
		require.NoError(t, cps.PutIndex(t.Context(), put))
	}
	require.Equal(t, []schema.StreamSequence{107}, unposted())
}
