package serve

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
)

func TestHealth_RestartWouldRepair_NotAlive(t *testing.T) {
	t.Parallel()
	d, _ := aDaemon(t)
	now := time.Now()
	require.Empty(t, d.liveness(t.Context(), now))
	require.Len(t, d.waymark.Workers(), kvstore.LoneShards)
	stats := d.waymark.Workers()[0].Stats()
	stats.Beat.Store(now.Add(-workerSilence + time.Minute).UnixNano())
	require.Empty(t, d.liveness(t.Context(), now))
	stats.Beat.Store(now.Add(-workerSilence - time.Minute).UnixNano())
	list := d.liveness(t.Context(), now)
	require.Len(t, list, 1)
	require.Equal(t, "fold worker of shard 0", list[0].part)
	require.Contains(t, troubles("not alive", list), "not alive\nfold worker of shard 0: has worked on the same batch since ")
	require.Contains(t, list[0].next, "restart the daemon")
	stats.Beat.Store(0)

	// A lock that is held for ever is noticed, and only one check waits for it.
	release := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.True(t, d.locks.held(ctx, func() { <-release }))
	list = d.liveness(ctx, now)
	require.Equal(t, "locks", list[len(list)-1].part)
	require.True(t, d.locks.held(t.Context(), func() { t.Error("a second look waits") }))
	close(release)
	require.Eventually(t, func() bool { return !d.locks.busy.Load() }, time.Minute, time.Millisecond)
	require.Empty(t, d.liveness(t.Context(), now))

	require.NoError(t, d.server.Close())
	list = d.liveness(t.Context(), now)
	require.Len(t, list, 1)
	require.Equal(t, "nats server", list[0].part)
	list = d.readiness(t.Context(), now, proofFresh)
	require.GreaterOrEqual(t, len(list), 1)
}
