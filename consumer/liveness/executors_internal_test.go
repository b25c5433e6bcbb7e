package liveness

import (
	"fmt"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestExecutors_Fill_CountsDownToTheOrphaningOfTheirRuns(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	now := start
	clock := func() time.Time { return now }
	runs := NewLiveRuns(make([]*kvstore.Shard, 1), 3, clock, zerolog.Nop())
	beats := NewHeartbeats("default", nil, runs, clock, zerolog.Nop())
	put := func(run, executor string, status schema.Status, revision int) {
		runs.apply(0, &kvstore.LiveEntry{
			Run: run, Revision: schema.Revision(revision), //nolint:gosec // a small number
			Live: &schema.Live{Run: run, Executor: executor, Instance: "i", Status: status, Epoch: 1},
		})
	}
	runs.begin(0)
	for i := range 3 {
		put(fmt.Sprintf("r%d", i), "busy", schema.StatusRunning, i+1)
	}
	put("w", "busy", schema.StatusWaiting, 4)
	put("g", "gone", schema.StatusRunning, 5)
	put("n", "never", schema.StatusRunning, 6)
	runs.sync(0)
	beats.setSteady(nil, start)
	beats.beat("gone", "i", time.Second, true)
	now = start.Add(2 * time.Second)
	beats.beat("idle", "i", time.Second, false)
	beats.beat("busy", "i", time.Second, false)
	now = now.Add(3 * time.Second)

	var reply schema.ExecutorsReply
	beats.Fill(&reply, "", 10*time.Second)
	require.Equal(t, schema.FormatTime(start), reply.HeardSince)
	ms := func(n int64) *int64 { return &n }
	require.Equal(t, []schema.ExecutorState{
		{Executor: "gone", Instance: "i", SeenMS: ms(5000), IntervalMS: 1000, Leaving: true, InHand: 1, OrphanedInMS: ms(0)},
		{Executor: "never", Instance: "i", InHand: 1, OrphanedInMS: ms(5000)},
		{Executor: "busy", Instance: "i", SeenMS: ms(3000), IntervalMS: 1000, Silent: true, InHand: 3, OrphanedInMS: ms(7000)},
		{Executor: "idle", Instance: "i", SeenMS: ms(3000), IntervalMS: 1000, Silent: true},
	}, reply.Executors)

	now = now.Add(time.Minute)
	beats.Fill(&reply, "busy", 10*time.Second)
	require.Len(t, reply.Executors, 1)
	require.Equal(t, []string{"r0", "r1", "r2"}, reply.Executors[0].Runs)
	require.Equal(t, ms(0), reply.Executors[0].OrphanedInMS)

	beats.setSteady(nil, time.Time{})
	reply = schema.ExecutorsReply{}
	beats.Fill(&reply, "", 10*time.Second)
	require.Empty(t, reply.HeardSince)
	for _, s := range reply.Executors {
		require.Nil(t, s.OrphanedInMS, "nothing is heard: no silence counts")
	}

	for i := range schema.MaxExecutors + 50 {
		beats.beat(fmt.Sprintf("e%d", i), "i", time.Second, false)
	}
	beats.Fill(&reply, "", 10*time.Second)
	require.Len(t, reply.Executors, schema.MaxExecutors)
	require.Equal(t, 54, reply.More)
}
