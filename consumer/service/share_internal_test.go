package service

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/schema"
)

func TestClaims_RecentAsker_IsCalledTheLeastLoadedFirst(t *testing.T) {
	t.Parallel()
	now := fleettest.Noon
	cfg := Config{}.withDefaults()
	load := map[string]int{"a": 3, "b": 1, "c": 2, "d": 1, "full": 1}
	inHand := func(h liveness.Holder) int { return load[h.Executor] }
	runs := []schema.Live{{Run: "run-1", Agent: "writer", Status: schema.StatusInterrupted}, {Run: "run-2", Agent: "reader", Status: schema.StatusInterrupted}}
	fresh := func() *claims {
		c := newClaims(&cfg, func() time.Time { return now })
		for executor := range load {
			c.asks(&schema.ClaimRequest{Executor: executor}, liveness.Want{Executor: executor}, load[executor])
		}
		c.asks(&schema.ClaimRequest{Executor: "d"}, liveness.Want{Executor: "d", Agents: []string{"poet"}}, 1)
		c.given(&schema.ClaimRequest{Executor: "full", Room: 1}, 1)
		return c
	}
	c := fresh()
	calls, others := c.fewer(3, maxCalled, runs, inHand)
	require.True(t, others)
	require.Equal(t, []call{{"b", "run-1"}, {"c", "run-1"}}, calls)
	calls, others = c.fewer(3, maxCalled, runs, inHand)
	require.True(t, others)
	require.Empty(t, calls, "they are on their way")
	now = now.Add(callPatience)
	_, others = c.fewer(3, maxCalled, runs, inHand)
	require.False(t, others, "they did not come")

	c = fresh()
	load["b"], load["c"] = 2, 3
	_, others = c.fewer(3, maxCalled, runs, inHand)
	require.False(t, others, "another replica gave them runs")
	load["b"], load["c"] = 1, 2
	now = now.Add(askingFresh)
	_, others = c.fewer(3, maxCalled, runs, inHand)
	require.False(t, others, "they ask no more")

	for i := range maxAsking + 1 {
		c.asks(&schema.ClaimRequest{Executor: fmt.Sprint(i)}, liveness.Want{}, 0)
	}
	require.Len(t, c.asking, maxAsking)
	now = now.Add(askingFresh)
	c.asks(&schema.ClaimRequest{Executor: "last"}, liveness.Want{}, 0)
	require.Len(t, c.asking, 1)
}
