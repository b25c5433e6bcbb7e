package serve

import (
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
	require.Equal(t, "fold worker of shard 0", list[0].Check)
	require.Contains(t, troubles("not alive", list), "not alive\nfold worker of shard 0: has worked on the same batch since ")
	require.Contains(t, list[0].Do, "restart the daemon")
	stats.Beat.Store(0)

	require.NoError(t, d.server.Close())
	list = d.liveness(t.Context(), now)
	require.Len(t, list, 1)
	require.Equal(t, "nats server", list[0].Check)
	list = d.readiness(t.Context(), now, proofFresh)
	require.GreaterOrEqual(t, len(list), 1)
}
