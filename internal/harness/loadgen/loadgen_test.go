package loadgen_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/internal/harness/loadgen"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestMain(m *testing.M) { natstest.Main(m) }

func config(runs, live int) loadgen.Config {
	return loadgen.Config{Fleet: "default", Runs: runs, Live: live, Began: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
}

// A fill that is stopped in the middle continues, and every run exists once, folded, and matches its number.
func TestLoadgen_Store_RunsRecoverable(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a store of 2,000 runs")
	}
	t.Parallel()
	const runs, live, shards = 2000, 100, 2
	nc := natstest.Start(t).Conn(t)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: "default", Shards: shards, QuotaBytes: 128 << 20}))
	settings, _, err := kvstore.NewFleets(js).Get(t.Context(), "default")
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	var found, published atomic.Int64
	err = loadgen.Fill(ctx, js, config(runs, live), loadgen.Progress{Found: func(n int) { found.Add(int64(n)) }, Published: func(n int) {
		if published.Add(int64(n)) >= runs/3 {
			cancel()
		}
	}})
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, found.Load())
	count := loadgen.Progress{Found: func(n int) { found.Add(int64(n)) }, Published: func(n int) { published.Add(int64(n)) }}
	require.NoError(t, loadgen.Fill(t.Context(), js, config(runs, live), count))
	require.EqualValues(t, runs, published.Load())
	require.GreaterOrEqual(t, found.Load(), int64(runs/3))

	ctx, cancel = context.WithCancel(t.Context())
	var list []*kvstore.Shard
	for i := range shards {
		shard, err := kvstore.OpenShard(js, settings, i, "test")
		require.NoError(t, err)
		list = append(list, shard)
	}
	daemon, err := consumer.New(t.Context(), consumer.Config{Fleet: "default", Name: "daemon", Service: js, Fold: js, Alone: true}, time.Now, natstest.Logger(t))
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- daemon.Run(ctx) }()
	behind := uint64(1)
	require.NoError(t, loadgen.AwaitFolded(t.Context(), js, "default", loadgen.Progress{Folded: func(n uint64) { behind = n }}))
	require.Zero(t, behind)
	cancel()
	require.NoError(t, <-done)
	head := func(ctx context.Context, run string) (*schema.Head, error) {
		c, _, err := list[schema.ShardOf(run, shards)].Checkpoints.GetFresh(ctx, run)
		if err != nil {
			return nil, err
		}
		return &c.Head, nil
	}
	require.NoError(t, loadgen.Check(t.Context(), config(runs, live), runs, head))
	lives := 0
	for _, s := range list {
		require.NoError(t, s.Checkpoints.Live(t.Context(), func(e kvstore.LiveEntry) bool {
			if e.Live != nil {
				lives++
			}
			return true
		}))
	}
	require.Equal(t, live, lives)
	wrong := func(ctx context.Context, run string) (*schema.Head, error) {
		h, err := head(ctx, run)
		if err == nil && run == loadgen.RunID(7) {
			h.Digest = "another"
		}
		return h, err
	}
	require.ErrorIs(t, loadgen.Check(t.Context(), config(runs, live), runs, wrong), loadgen.ErrDiffers)
	lost := errors.New("lost")
	require.ErrorIs(t, loadgen.Check(t.Context(), config(runs, live), 1, func(context.Context, string) (*schema.Head, error) { return nil, lost }), lost)
}

func TestLoadgen_Impossible_RefusedByName(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*loadgen.Config){
		"fleet": func(c *loadgen.Config) { c.Fleet = "a b" }, "runs": func(c *loadgen.Config) { c.Runs = 0 },
		"live": func(c *loadgen.Config) { c.Live = 100 }, "turns": func(c *loadgen.Config) { c.Turns = -1 },
		"payload": func(c *loadgen.Config) { c.Payload = 1 << 20 }, "time": func(c *loadgen.Config) { c.Began = time.Time{} },
	} {
		c := config(10, 1)
		change(&c)
		require.ErrorContains(t, c.Validate(), name)
	}
}
