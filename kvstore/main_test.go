package kvstore_test

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// smallFleet is a fleet whose quota fits on any disk.
func smallFleet() kvstore.FleetConfig {
	return kvstore.FleetConfig{Fleet: "alpha", QuotaBytes: kvstore.MinQuotaBytes, ReserveBytes: 1 << 20}
}

// bench is a server with a provisioned fleet.
type bench struct {
	nc    *nats.Conn
	js    jetstream.JetStream
	names schema.Names
	shard *kvstore.Shard
}

func newBench(tb testing.TB, opts ...natstest.Option) *bench {
	tb.Helper()
	return newBenchOn(tb, natstest.Start(tb, opts...).Conn(tb))
}

func newBenchOn(tb testing.TB, nc *nats.Conn) *bench {
	tb.Helper()
	js, err := jetstream.New(nc)
	require.NoError(tb, err)
	require.NoError(tb, kvstore.Provision(tb.Context(), js, smallFleet()))
	return &bench{nc: nc, js: js, names: schema.NamesOf("alpha", 0), shard: openShard(tb, js, "alpha")}
}

// purge deletes a run's checkpoint and its history, which is at revision rev. A delete marker stays.
func (b *bench) purge(tb testing.TB, run string, rev schema.Revision) {
	tb.Helper()
	kv, err := b.js.KeyValue(tb.Context(), b.names.CheckpointBucket())
	require.NoError(tb, err)
	require.NoError(tb, kv.Purge(tb.Context(), run, jetstream.LastRevision(uint64(rev))))
}

func openShard(tb testing.TB, js jetstream.JetStream, fleet string) *kvstore.Shard {
	tb.Helper()
	settings, _, err := kvstore.NewFleets(js).Get(tb.Context(), fleet)
	require.NoError(tb, err)
	shard, err := kvstore.OpenShard(js, settings, 0, "daemon-1")
	require.NoError(tb, err)
	return shard
}

// checkpoint is a plausible checkpoint after the event at the stream sequence.
func checkpoint(run string, at schema.StreamSequence) *schema.Checkpoint {
	return &schema.Checkpoint{
		Head: schema.Head{
			Fleet: "alpha", Run: run, Agent: "writer", Executor: "exec-1", Status: schema.StatusRunning,
			Epoch: 1, Sequence: schema.Sequence(at),
			Position:  schema.Position{Stream: at, ID: run + ".1.1.deadbeef"},
			StartedAt: "2026-01-02T03:04:05Z", UpdatedAt: "2026-01-02T03:04:06.5Z",
			Counts: schema.Counts{Events: int64(at)}, //nolint:gosec // small
		},
		Incarnation: "2026-01-01T00:00:00Z",
	}
}
