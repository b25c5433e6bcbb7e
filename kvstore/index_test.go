package kvstore_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
)

// behind returns a client whose direct gets of the checkpoint bucket go to a copy of its stream, and a function that
// stops the copy once it has everything.
func behind(tb testing.TB, b *bench) (jetstream.JetStream, func()) {
	tb.Helper()
	const copyName = "STALE_COPY"
	real := "KV_" + b.names.CheckpointBucket()
	js := natstest.Between(tb, b.nc, func(m *nats.Msg, subject string) {
		if subject == "$JS.API.DIRECT.GET."+real {
			subject = "$JS.API.DIRECT.GET." + copyName
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
	}
}

func TestCheckpoints_ReplicaBehind_NamesItsRevision(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	js, freeze := behind(t, b)
	cps := openShard(t, js, "alpha").Checkpoints
	rev, err := cps.Put(t.Context(), checkpoint("run-1", 1), 0)
	require.NoError(t, err)
	freeze()
	_, err = cps.Put(t.Context(), checkpoint("run-1", 5), rev)
	require.NoError(t, err)
	stale, upTo, err := cps.Of(t.Context(), []string{"run-1", "run-2"})
	require.NoError(t, err)
	require.Equal(t, rev, upTo)
	require.EqualValues(t, 1, stale[0].Checkpoint.Position.Stream)
	require.ErrorIs(t, stale[1].Err, kvstore.ErrNotFound)
}
