package kvstore_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// Direct gets of the bucket go to a copy of its stream that stopped at some moment, as can happen on a cluster.
func TestCheckpoints_ReplicaBehind_ReadFromLeader(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const copyName = "STALE_COPY"
	real := "KV_" + b.names.CheckpointBucket()
	var asked atomic.Int64
	js := natstest.Between(t, b.nc, func(m *nats.Msg, subject string) {
		if subject == "$JS.API.DIRECT.GET."+real {
			subject = "$JS.API.DIRECT.GET." + copyName
			asked.Add(1)
		}
		natstest.Forward(b.nc, m, subject)
	})
	cps := openShard(t, js, "alpha").Checkpoints

	rev, err := cps.Put(t.Context(), checkpoint("run-1", 1), 0)
	require.NoError(t, err)
	cfg := jetstream.StreamConfig{Name: copyName, Mirror: &jetstream.StreamSource{Name: real}, AllowDirect: true}
	stream, err := b.js.CreateStream(t.Context(), cfg)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		info, err := stream.Info(t.Context())
		return err == nil && info.State.LastSeq >= uint64(rev)
	}, time.Minute, 5*time.Millisecond)
	runs := []string{"run-1", "run-2", "run-3"}
	list, err := cps.OfFresh(t.Context(), runs)
	require.NoError(t, err)
	require.EqualValues(t, 1, list[0].Checkpoint.Position.Stream)
	cfg.Mirror, cfg.Subjects = nil, []string{"stale.copy"}
	_, err = b.js.UpdateStream(t.Context(), cfg)
	require.NoError(t, err)

	_, err = cps.Put(t.Context(), checkpoint("run-1", 5), rev)
	require.NoError(t, err)
	_, err = cps.Put(t.Context(), checkpoint("run-3", 7), 0)
	require.NoError(t, err)
	stale, upTo, err := cps.Of(t.Context(), runs)
	require.NoError(t, err)
	require.Equal(t, rev, upTo)
	require.EqualValues(t, 1, stale[0].Checkpoint.Position.Stream)
	list, err = cps.OfFresh(t.Context(), runs)
	require.NoError(t, err)
	require.EqualValues(t, 5, list[0].Checkpoint.Position.Stream)
	require.ErrorIs(t, list[1].Err, kvstore.ErrNotFound)
	require.Equal(t, []schema.StreamSequence{5, 7}, []schema.StreamSequence{list[0].Checkpoint.Position.Stream, list[2].Checkpoint.Position.Stream})
	require.EqualValues(t, 3, asked.Load())
}
