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

// behind returns a client whose direct gets of the checkpoint bucket go to a copy of its stream, a function that stops
// the copy once it has everything, and the number of those gets.
func behind(tb testing.TB, b *bench) (jetstream.JetStream, func(), *atomic.Int64) {
	tb.Helper()
	const copyName = "STALE_COPY"
	real := "KV_" + b.names.CheckpointBucket()
	asked := new(atomic.Int64)
	js := natstest.Between(tb, b.nc, func(m *nats.Msg, subject string) {
		if subject == "$JS.API.DIRECT.GET."+real {
			subject = "$JS.API.DIRECT.GET." + copyName
			asked.Add(1)
		}
		natstest.Forward(b.nc, m, subject)
	})
	cfg := jetstream.StreamConfig{Name: copyName, Mirror: &jetstream.StreamSource{Name: real}, AllowDirect: true}
	copied, err := b.js.CreateStream(tb.Context(), cfg)
	require.NoError(tb, err)
	return js, func() {
		tb.Helper()
		stream, err := b.js.Stream(tb.Context(), real)
		require.NoError(tb, err)
		want := stream.CachedInfo().State.LastSeq
		require.Eventually(tb, func() bool {
			info, err := copied.Info(tb.Context())
			return err == nil && info.State.LastSeq >= want
		}, time.Minute, 5*time.Millisecond)
		cfg.Mirror, cfg.Subjects = nil, []string{"stale.copy"}
		_, err = b.js.UpdateStream(tb.Context(), cfg)
		require.NoError(tb, err)
	}, asked
}

func TestCheckpoints_ReplicaBehind_ReadFromLeader(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	js, freeze, asked := behind(t, b)
	cps := openShard(t, js, "alpha").Checkpoints
	rev, err := cps.Put(t.Context(), checkpoint("run-1", 1), 0)
	require.NoError(t, err)
	freeze()
	runs := []string{"run-1", "run-2", "run-3"}
	list, err := cps.OfFresh(t.Context(), runs)
	require.NoError(t, err)
	require.EqualValues(t, 1, list[0].Checkpoint.Position.Stream)

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
