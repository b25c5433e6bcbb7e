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
	beats.Fill(&reply, &schema.ExecutorsRequest{}, 10*time.Second)
	require.Equal(t, schema.FormatTime(start), reply.HeardSince)
	ms := func(n int64) *int64 { return &n }
	require.Equal(t, []schema.ExecutorState{
		{Executor: "gone", Instance: "i", SeenMS: ms(5000), IntervalMS: 1000, Leaving: true, InHand: 1, OrphanedInMS: ms(0)},
		{Executor: "never", Instance: "i", InHand: 1, OrphanedInMS: ms(5000)},
		{Executor: "busy", Instance: "i", SeenMS: ms(3000), IntervalMS: 1000, Silent: true, InHand: 3, OrphanedInMS: ms(7000)},
		{Executor: "idle", Instance: "i", SeenMS: ms(3000), IntervalMS: 1000, Silent: true},
	}, reply.Executors)

	now = now.Add(time.Minute)
	beats.Fill(&reply, &schema.ExecutorsRequest{Executor: "busy"}, 10*time.Second)
	require.Len(t, reply.Executors, 1)
	require.Equal(t, []string{"r0", "r1", "r2"}, reply.Executors[0].Runs)
	require.Equal(t, ms(0), reply.Executors[0].OrphanedInMS)

	beats.setSteady(nil, time.Time{})
	reply = schema.ExecutorsReply{}
	beats.Fill(&reply, &schema.ExecutorsRequest{}, 10*time.Second)
	require.Empty(t, reply.HeardSince)
	for _, s := range reply.Executors {
		require.Nil(t, s.OrphanedInMS, "nothing is heard: no silence counts")
	}

	for i := range schema.MaxExecutors + 50 {
		beats.beat(fmt.Sprintf("e%d", i), "i", time.Second, false)
	}
	beats.Fill(&reply, &schema.ExecutorsRequest{}, 10*time.Second)
	require.Len(t, reply.Executors, schema.MaxExecutors)
	require.Equal(t, 54, reply.More)
}

func TestExecutors_Claiming_CountsTheLivingOnesOfEachAgent(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	h := NewHeartbeats("default", nil, NewLiveRuns(make([]*kvstore.Shard, 1), 3, clock, zerolog.Nop()), clock, zerolog.Nop())
	says := func(executor string, leaving bool, agents ...string) error {
		b := schema.Heartbeat{Executor: executor, Instance: "i", IntervalMS: 1000, Leaving: leaving, Agents: agents}
		return h.executor(heartbeatMsg(t, &b))
	}
	asks := func() (map[string]int, int) {
		var reply schema.ExecutorsReply
		h.Fill(&reply, &schema.ExecutorsRequest{Agents: []string{"coder", "writer", "none", "coder"}}, 10*time.Second)
		return reply.Claiming, reply.Unsaid
	}
	h.setSteady(nil, now)
	require.NoError(t, says("silent", false, "none"))
	now = now.Add(9 * time.Second)
	claiming, _ := asks()
	require.Nil(t, claiming, "one that lives may not have been heard yet")
	now = now.Add(time.Second)
	require.NoError(t, says("a", false, "coder"))
	require.NoError(t, says("b", false, "coder", "writer", "coder"))
	require.NoError(t, says("gone", true, "none"))
	require.NoError(t, says("old", false))
	claiming, unsaid := asks()
	require.Equal(t, map[string]int{"coder": 2, "writer": 1, "none": 0}, claiming, "each executor once")
	require.Equal(t, 1, unsaid)
	require.NoError(t, says("all", false, schema.AnyAgent))
	claiming, _ = asks()
	require.Equal(t, map[string]int{"coder": 3, "writer": 2, "none": 1}, claiming)
	require.ErrorIs(t, says("a", false, "not a name"), errHeartbeat)
	require.ErrorIs(t, says("a", false, make([]string, schema.MaxClaimed+1)...), errHeartbeat)
	claiming, unsaid = asks()
	require.Equal(t, 2, claiming["coder"])
	require.Equal(t, 2, unsaid, "it lives, and its list is unknown")
	require.Equal(t, 5, h.held, "those of silent, b, gone and all: a has none any more")
}
