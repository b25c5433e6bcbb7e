package fold_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/activity"
	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/schema"
)

// counted are the counters of agents that are not 0, with the values of their labels in the order of the labels' names.
func counted(tb testing.TB, c *activity.Counters) (lines []string) {
	tb.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	require.NoError(tb, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if n := m.GetCounter().GetValue(); n > 0 {
				line := strings.TrimPrefix(f.GetName(), "waymark_agent_")
				for _, l := range m.GetLabel() {
					if l.GetName() != "fleet" {
						line += " " + l.GetValue()
					}
				}
				lines = append(lines, fmt.Sprintf("%s %.0f", line, n))
			}
		}
	}
	return lines
}

// An unclean start of the server folds events again whose checkpoints a power cut may have undone.
func TestActivity_UncleanStart_CountsNothingAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, second := activity.New("default"), activity.New("default")
	_, stop := w.Fold(fold.Config{Activity: first})
	x := w.Writer("run-1")
	x.Start()
	x.TurnOf(10)
	last := x.TurnOf(10)
	w.Await("both turns", func(c *schema.Checkpoint) bool { return c.Position.Stream >= last })
	stop()
	want := counted(t, first)
	require.Contains(t, want, "runs_started_total agent-1 none 1")
	require.Contains(t, want, "turns_ended_total agent-1 completed none 2")

	kv, err := w.JS.KeyValue(t.Context(), w.Names.CheckpointBucket())
	require.NoError(t, err)
	require.NoError(t, kv.Purge(t.Context(), "run-1"))
	f, _ := w.Fold(fold.Config{Holder: "worker-2", Activity: second, UncleanStart: true})
	last = x.TurnOf(10)
	w.Await("a turn behind the loss", func(c *schema.Checkpoint) bool { return c.Position.Stream >= last })
	require.Greater(t, f.Stats().Applied.Load(), int64(9), "all of it was folded again")
	behind := []string{"tool_calls_total returned read 1", "turns_ended_total agent-1 completed none 1"}
	require.Eventually(t, func() bool { return len(counted(t, second)) >= len(behind) }, time.Minute, time.Millisecond)
	require.Equal(t, behind, counted(t, second))
	require.Equal(t, want, counted(t, first))
}

// Events whose checkpoint was not put are folded again by the next worker; the others are not.
func TestActivity_WorkerDiesAroundThePuts_IsCountedOnce(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"before the checkpoint": "run-1", "before the watermark": "_.fold"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			counters := activity.New("default") // as of two terms of one daemon
			subject := "$KV." + w.Names.CheckpointBucket() + "." + key
			tap := &foldtest.Tap{Prefixes: []string{subject}}
			w.FoldTapped(fold.Config{Holder: "worker-1", Activity: counters}, tap)
			x := w.Writer("run-1")
			last := x.Start()
			w.Await("the start", func(c *schema.Checkpoint) bool { return c.Position.Stream >= last })
			require.Eventually(t, func() bool {
				mark, _, err := w.Shard.Checkpoints.Watermark(t.Context())
				return err == nil && mark.Position.Stream >= last
			}, time.Minute, time.Millisecond)
			tap.Set(func(string) { tap.Dead.Store(true) })
			last = x.TurnOf(10)
			require.Eventually(t, tap.Dead.Load, time.Minute, time.Millisecond)
			w.Fold(fold.Config{Holder: "worker-2", Activity: counters})
			last = max(last, x.TurnOf(10))
			w.Await("both turns", func(c *schema.Checkpoint) bool { return c.Position.Stream >= last })
			want := []string{"runs_started_total agent-1 none 1", "tool_calls_total returned read 2", "turns_ended_total agent-1 completed none 2"}
			require.Eventually(t, func() bool { return slices.Equal(want, counted(t, counters)) }, time.Minute, time.Millisecond, "%q", want)
			require.Equal(t, want, counted(t, counters))
		})
	}
}
