package service_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// leader is a worker that folds its shard, as far as the service is told.
type leader struct{}

func (leader) LeaseRenewal() time.Duration { return 0 }
func (leader) Leads() bool                 { return true }

// The daemon itself applies the policy to a fleet of runs and of forks of forks, some pinned, some live. Every kept
// run can still be read completely, with its bases, and no removed run was the base of a kept one.
func TestRetention_KeptPoints_StillRecovered(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: 30 runs are made, and most of them are removed")
	}
	const seed, runs = 11, 30
	random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test's choice
	policy := schema.RetentionPolicy{CompletedSeconds: 1, CancelledSeconds: 1, GraceSeconds: 1}
	w := newServiceWorld(t, func(f *kvstore.FleetConfig, c *service.Config) {
		f.Retention, c.Worker = policy, func(int) service.Worker { return leader{} }
	})
	w.Fold(eraseSoon())
	stands := map[string]string{}
	protected := map[string]bool{}
	var last schema.StreamSequence
	for i := range runs {
		id := fmt.Sprintf("run-%02d", i)
		x := w.writer(id)
		if i > 0 && random.IntN(2) == 0 {
			of := fmt.Sprintf("run-%02d", random.IntN(i))
			w.control(schema.VerbFork, of, schema.ForkRequest{Fork: id, By: "executor-1"})
			reply, _ := w.get(of, schema.ViewHead)
			reply, _ = w.at(of, schema.ViewHead, "event:"+reply.Head.Position.ID)
			x.Publish(&schema.RunStartedData{
				Agent: "coder", Executor: "executor-1", ResumedFrom: of, Base: schema.BaseOf(schema.Point{}, reply.At.Records, &reply.Head),
			}, 0)
			stands[id] = of
			x.Turn = reply.Head.Turn
		} else {
			x.Start()
		}
		x.TurnOf(50 + random.IntN(400))
		if random.IntN(6) == 0 {
			x.Publish(&schema.CheckpointMarkedData{Name: "pin"}, 0)
			protected[id] = true
		}
		switch random.IntN(5) {
		case 0:
			protected[id] = true // it stays live
		case 1:
			last = x.end(schema.StatusFailed) // which the policy keeps
			protected[id] = true
		case 2:
			last = x.end(schema.StatusCancelled)
		default:
			last = x.end(schema.StatusCompleted)
		}
	}
	for id := range protected {
		for of, ok := stands[id]; ok; of, ok = stands[of] {
			protected[of] = true
		}
	}
	w.awaitFolded(last)
	before := map[string]*schema.State{}
	for i := range runs {
		id := fmt.Sprintf("run-%02d", i)
		before[id] = w.stateOf(id, "")
	}
	require.Greater(t, len(protected), 5)
	require.Less(t, len(protected), runs-3)

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	retainer := service.NewRetentionWorker(w.svc, 50*time.Millisecond, natstest.Logger(t))
	go func() { done <- retainer.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	gone := func(id string) bool {
		_, err := w.ask(schema.VerbGet, id, schema.GetRequest{})
		return err != nil
	}
	require.Eventually(t, func() bool {
		for i := range runs {
			if id := fmt.Sprintf("run-%02d", i); !protected[id] && !gone(id) {
				return false
			}
		}
		return true
	}, time.Minute, 100*time.Millisecond, "what the policy does not keep is still there")
	// The remaining runs are those that a plan keeps.
	a, err := w.ask(schema.VerbCleanup, "", schema.CleanupRequest{DryRun: true, Limit: 1000})
	require.NoError(t, err)
	reply := decodeAs[schema.CleanupReply](t, a.first)
	require.NotEmpty(t, reply.Items)
	for _, item := range reply.Items {
		require.False(t, item.Remove, "%+v", item)
	}
	for i := range runs {
		id := fmt.Sprintf("run-%02d", i)
		require.Equal(t, !protected[id], gone(id), id)
		if protected[id] {
			require.Equal(t, before[id], w.stateOf(id, ""), "run %s is what it was, with what it stands on", id)
		}
	}
}
