package cli

import (
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// Doctor asks all shards at once: the daemon here answers about none of them before the request about the last one.
func TestDoctor_ManyShards_AreAskedAtOnce(t *testing.T) {
	t.Parallel()
	const shards = 8
	server := natstest.Start(t)
	nc := server.Conn(t)
	require.NoError(t, kvstore.Provision(t.Context(), server.JetStream(t), kvstore.FleetConfig{Fleet: schema.DefaultFleet, Shards: shards, QuotaBytes: 16 << 20}))
	reply := schema.FleetReply{Fleet: schema.DefaultFleet, Replica: "d"}
	for i := range shards {
		reply.Shards = append(reply.Shards, schema.ShardState{Shard: i, Worker: "d"})
	}
	fleet, err := json.Marshal(&reply)
	require.NoError(t, err)
	_, err = nc.Subscribe(schema.ServiceSubject(schema.VerbFleet, schema.DefaultFleet, ""), func(m *nats.Msg) { _ = m.Respond(fleet) })
	require.NoError(t, err)
	var asked []*nats.Msg
	_, err = nc.Subscribe(schema.ServiceSubject(schema.VerbGet, schema.DefaultFleet, "*"), func(m *nats.Msg) {
		if asked = append(asked, m); len(asked) < shards {
			return
		}
		for _, m := range asked {
			_ = m.Respond([]byte("{}")) // doctor reports a lost answer
		}
	})
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	_, text := command(t, t.TempDir(), "--state-dir", server.StateDir(), "--timeout", "1m", "doctor")
	require.Regexp(t, `(?m)^ok +writes +the log of each shard accepts them$`, text)
}
