package loadgen_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/internal/harness/loadgen"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// Every run exists once, is folded, and matches its number.
func TestLoadgen_Fill_RunsMatchTheirNumbers(t *testing.T) {
	t.Parallel()
	const runs, live, shards = 300, 30, 2
	js := natstest.Start(t).JetStream(t)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: "default", Shards: shards, QuotaBytes: 128 << 20}))
	settings, _, err := kvstore.NewFleets(js).Get(t.Context(), "default")
	require.NoError(t, err)
	cfg := loadgen.Config{Fleet: "default", Runs: runs, Live: live, Began: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	require.NoError(t, loadgen.Fill(t.Context(), js, cfg))

	ctx, cancel := context.WithCancel(t.Context())
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
	require.NoError(t, loadgen.AwaitFolded(t.Context(), js, "default"))
	cancel()
	require.NoError(t, <-done)
	head := func(ctx context.Context, run string) (*schema.Head, error) {
		c, _, err := list[schema.ShardOf(run, shards)].Checkpoints.GetFresh(ctx, run)
		if err != nil {
			return nil, err
		}
		return &c.Head, nil
	}
	require.NoError(t, loadgen.Check(t.Context(), cfg, runs, head))
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
	require.ErrorIs(t, loadgen.Check(t.Context(), cfg, runs, wrong), loadgen.ErrDiffers)
	lost := errors.New("lost")
	require.ErrorIs(t, loadgen.Check(t.Context(), cfg, 1, func(context.Context, string) (*schema.Head, error) { return nil, lost }), lost)
}
