package service_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// growing is a service whose shards follow the settings, like a daemon's.
type growing struct {
	*serviceWorld
	settings *consumer.Settings
	applied  atomic.Int64
	fails    atomic.Bool
}

// newGrowing makes a world of one shard; it does not follow the settings before follow is called.
func newGrowing(tb testing.TB) *growing {
	tb.Helper()
	g := new(growing)
	g.serviceWorld = newServiceWorld(tb, func(f *kvstore.FleetConfig, c *serviceConfig) {
		f.QuotaBytes = kvstore.MinQuotaBytes
		c.Refresh = func(ctx context.Context, after time.Time) error { return g.settings.Refresh(ctx, after) }
	})
	current, _, err := kvstore.NewFleets(g.JS).Get(tb.Context(), "default")
	require.NoError(tb, err)
	nc := g.Server.Conn(tb)
	js := foldtest.JetStream(tb, nc)
	g.settings = consumer.NewSettings(current, nc, js, time.Now, natstest.Logger(tb), func(s schema.FleetSettings) error {
		g.applied.Add(1)
		if g.fails.Load() {
			return errors.New("told to fail")
		}
		var added []*kvstore.Shard
		for i := len(g.shards); i < s.Shards(); i++ {
			shard, err := kvstore.OpenShard(js, s, i, "service-1")
			if err != nil {
				return err
			}
			added = append(added, shard)
		}
		g.shards = append(g.shards, added...)
		g.liveRuns.Grow(added...)
		return g.svc.Place(s.Generations, added...)
	})
	return g
}

func (g *growing) reshard(shards int) {
	g.TB.Helper()
	_, err := kvstore.Change(g.TB.Context(), g.JS, "default", func(c *kvstore.FleetConfig) { c.Shards = shards })
	require.NoError(g.TB, err)
}

// generations are the numbers of shards that were applied.
func (g *growing) generations() []int {
	s := g.settings.Current()
	return s.Generations
}

// follow follows the settings until the test ends.
func (g *growing) follow() {
	g.TB.Helper()
	run(g.TB, g.settings.Run)
}

// run runs something until the test ends.
func run(tb testing.TB, of func(context.Context) error) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- of(ctx) }()
	tb.Cleanup(func() {
		cancel()
		require.NoError(tb, <-done)
	})
}

// begin starts a run in a shard.
func (g *growing) begin(run string, shard int) *writer {
	g.TB.Helper()
	x := g.writer(run)
	x.World = &foldtest.World{TB: g.TB, JS: g.JS, Names: schema.NamesOf("default", shard)}
	x.Start()
	return x
}

func TestShards_JustAdded_RunFound(t *testing.T) {
	t.Parallel()
	g := newGrowing(t)
	g.begin("before", 0)
	g.reshard(5)
	// The service did not hear of it: it reads the settings before it answers that a run does not exist.
	x := g.begin("run-1", schema.ShardOf("run-1", 5))
	require.NotZero(t, x.World.Names.Shard)
	reply, _ := g.get("run-1", schema.ViewHead)
	require.Equal(t, x.Model(), reply.Head)
	require.EqualValues(t, 1, g.applied.Load())
	taken, _ := g.recover("run-1", takeover("executor-2", "req-1"))
	require.Equal(t, x.World.Names.Shard, taken.Shard, "the executor is told where to go on")
	taken, _ = g.recover("before", takeover("executor-2", "req-2"))
	require.Zero(t, taken.Shard, "runs stay where they began")
	require.Equal(t, schema.CodeNotFound, g.refused(schema.VerbGet, "unknown", schema.GetRequest{}).Code)
	require.EqualValues(t, 1, g.applied.Load(), "nothing changed since")
}

func TestShards_Added_DaemonTakesThemUp(t *testing.T) {
	t.Parallel()
	g := newGrowing(t)
	run(t, g.liveRuns.Run)
	g.follow()
	require.Eventually(t, g.liveRuns.Synced, time.Minute, 10*time.Millisecond)
	g.reshard(3)
	require.NoError(t, g.client.Publish(schema.SettingsSubject("default"), nil))
	require.Eventually(t, func() bool { return len(g.generations()) == 2 }, time.Minute, 10*time.Millisecond)
	require.Eventually(t, g.liveRuns.Synced, time.Minute, 10*time.Millisecond, "the index of the new shards is followed")
	_, err := g.shards[2].Checkpoints.PutLive(t.Context(), kvstore.LivePut{Live: schema.Live{
		Format: schema.LiveFormat, Run: "run-1", Status: schema.StatusOrphaned, Epoch: 1,
	}})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return g.liveRuns.Counts().Claimable == 1 }, time.Minute, 10*time.Millisecond)
}

func TestSettings_ApplyFails_AppliedLater(t *testing.T) {
	t.Parallel()
	g := newGrowing(t)
	g.reshard(2)
	g.fails.Store(true)
	require.Error(t, g.settings.Refresh(t.Context(), time.Now()))
	require.Len(t, g.generations(), 1)
	g.fails.Store(false)
	require.NoError(t, g.settings.Refresh(t.Context(), time.Now()))
	require.Len(t, g.generations(), 2)
}

func TestShards_RunInTwo_Alarm(t *testing.T) {
	t.Parallel()
	g := newGrowing(t)
	g.reshard(2)
	require.NoError(t, g.settings.Refresh(t.Context(), time.Now()))
	run(t, g.liveRuns.Run)
	live := kvstore.LivePut{Live: schema.Live{Format: schema.LiveFormat, Run: "twin", Executor: "a", Status: schema.StatusRunning, Epoch: 1}}
	var revisions []schema.Revision
	for _, shard := range g.shards {
		require.Zero(t, g.liveRuns.Counts().Twice)
		rev, err := shard.Checkpoints.PutLive(t.Context(), live)
		require.NoError(t, err)
		revisions = append(revisions, rev...)
	}
	require.Eventually(t, func() bool { return g.liveRuns.Counts().Twice == 1 }, time.Minute, 10*time.Millisecond)
	for _, res := range g.shards[0].Checkpoints.EraseLive(t.Context(), kvstore.LiveAt{Run: "twin", Revision: revisions[0]}) {
		require.NoError(t, res.Err)
	}
	require.Eventually(t, func() bool { return g.liveRuns.Counts().Twice == 0 }, time.Minute, 10*time.Millisecond)
}
