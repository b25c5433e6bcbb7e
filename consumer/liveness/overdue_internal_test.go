package liveness

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/schema"
)

func overdueTool(run string, epoch schema.Epoch) schema.Overdue {
	return schema.Overdue{
		Run: run, Epoch: epoch, Turn: 1, ToolCallID: "c1", Occurrence: 1, Tool: "fetch", Since: schema.FormatTime(fleettest.Noon), LimitMS: 30_000,
	}
}

// An executor's report about its own run in its own epoch counts, and it ends when the executor reports the end, or is
// gone.
func TestOverdue_ExecutorSaysSo_CountsAndEnds(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	run := w.begin("run-1", "executor-1", "i1")
	w.begin("run-2", "executor-2", "i2")
	say := func(list ...schema.Overdue) {
		require.NoError(t, w.hb.executor(heartbeatMsg(t, &schema.Heartbeat{Executor: "executor-1", Instance: "i1", Overdue: list})))
	}
	other := overdueTool("run-1", 1)
	other.Turn, other.ToolCallID, other.Occurrence, other.Tool = 2, "", 0, ""
	w.pass(1, func() {
		say(overdueTool("run-1", 1), overdueTool("run-1", 7), overdueTool("run-2", 1), overdueTool("unknown", 1))
	})
	require.Equal(t, []schema.Overdue{overdueTool("run-1", 1)}, w.hb.Overdue("run-1"))
	require.Empty(t, w.hb.Overdue("run-2"), "it is another's")
	require.Empty(t, w.hb.Overdue("unknown"))
	require.Equal(t, 1, w.hb.OverdueRuns())
	w.pass(1, func() { say(overdueTool("run-1", 1), other) })
	require.Equal(t, []schema.Overdue{overdueTool("run-1", 1), other}, w.hb.Overdue("run-1"))
	require.Equal(t, 1, w.hb.OverdueRuns())

	say()
	require.Empty(t, w.hb.Overdue("run-1"))
	require.Zero(t, w.hb.OverdueRuns())
	say(overdueTool("run-1", 1))
	w.pass(20, nil)
	run.Becomes(schema.StatusOrphaned)
	require.Eventually(t, func() bool { return w.hb.OverdueRuns() == 0 }, time.Minute, time.Millisecond, "its executor is gone")
}

func TestOverdue_TimesInOtherZones_OldestIsFirst(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	w.begin("run-1", "executor-1", "i1")
	var list []schema.Overdue
	want := []string{"2026-01-02T03:30:00+02:00", "2026-01-02T02:00:00Z", "2026-01-02T02:00:00.5Z"}
	for i, since := range []int{2, 0, 1} {
		o := overdueTool("run-1", 1)
		o.Turn, o.Since = int32(i+1), want[since]
		list = append(list, o)
	}
	w.pass(1, func() {
		require.NoError(t, w.hb.executor(heartbeatMsg(t, &schema.Heartbeat{Executor: "executor-1", Instance: "i1", Overdue: list})))
	})
	var got []string
	for _, o := range w.hb.Overdue("run-1") {
		got = append(got, o.Since)
	}
	require.Equal(t, want, got)
}

func TestHeartbeats_InvalidOverdue_KeepsTheListBeforeAndIsASignOfLife(t *testing.T) {
	t.Parallel()
	noon := fleettest.Noon
	hb := NewHeartbeats("default", nil, nil, func() time.Time { return noon }, zerolog.Nop())
	good := overdueTool("run-1", 1)
	long, negative, timeless, nameless := good, good, good, good
	long.Tool, negative.LimitMS, timeless.Since, nameless.Run = strings.Repeat("x", schema.MaxIdentifier+1), -1, "soon", "a b"
	many := make([]schema.Overdue, schema.MaxOverdue+1)
	for i := range many {
		many[i] = good
	}
	for name, list := range map[string][]schema.Overdue{"long": {long}, "negative": {negative}, "timeless": {timeless}, "nameless": {nameless}, "many": many} {
		before := []schema.Overdue{overdueTool("run-2", 1)}
		require.NoError(t, hb.executor(heartbeatMsg(t, &schema.Heartbeat{Executor: name, Overdue: before})))
		noon = noon.Add(time.Minute)
		require.ErrorIs(t, hb.executor(heartbeatMsg(t, &schema.Heartbeat{Executor: name, Overdue: append(slices.Clone(before), list...)})), errHeartbeat, name)
		l, seen := hb.last(name, "", time.Second)
		require.True(t, seen, name)
		require.Equal(t, noon, l.seen, name)
		require.Equal(t, before, l.overdue, name)
		hb.forget(hb.executors[name][""])
	}
	// Executors share a limited room; a forgotten executor frees its part.
	for i := range maxOverdue / schema.MaxOverdue {
		require.NoError(t, hb.executor(heartbeatMsg(t, &schema.Heartbeat{Executor: fmt.Sprint("e", i), Overdue: many[1:]})))
	}
	require.ErrorIs(t, hb.executor(heartbeatMsg(t, &schema.Heartbeat{Executor: "late", Overdue: many[1:]})), errHeartbeat)
	hb.forget(hb.executors["e0"][""])
	require.NoError(t, hb.executor(heartbeatMsg(t, &schema.Heartbeat{Executor: "late", Overdue: many[1:]})))
}
