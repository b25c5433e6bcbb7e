package deploy_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// The server's partition and [schema.ShardOf] must be one function, for runs that programs without the SDK begin are
// looked for where the latter says.
func TestSubjectMapping_Events_RoutedToShard(t *testing.T) {
	const shards, runs = 4, 10_000
	s := startConfigured(t, filepath.Join("nats", "sharded.conf"))
	nc := connectTo(t, s)

	// Ten thousand names of every kind, over core NATS: what the mapping makes of the subject is all that counts.
	routed := make(chan *nats.Msg, runs)
	sub, err := nc.ChanSubscribe("waymark.events.default.*.*", routed)
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	for i := range runs {
		require.NoError(t, nc.Publish("waymark.events.default."+runName(i), nil))
	}
	require.NoError(t, nc.Flush())
	count := make(map[string]int)
	for i := range runs {
		var m *nats.Msg
		select {
		case m = <-routed:
		case <-time.After(time.Minute):
			require.Fail(t, "an event was not routed", "%d of %d came", i, runs)
		}
		token := strings.Split(m.Subject, ".")
		require.Equal(t, schema.NamesOf("default", schema.ShardOf(token[4], shards)).EventSubject(token[4]), m.Subject)
		count[token[3]]++
	}
	require.Len(t, count, shards)
	require.NoError(t, sub.Unsubscribe())

	// And with streams: acknowledged by the shard's, fenced there, and addressed to a shard by name as well.
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: schema.DefaultFleet, Shards: shards, QuotaBytes: kvstore.MinQuotaBytes}))
	for i := range 20 {
		run := runName(i)
		want := schema.NamesOf("default", schema.ShardOf(run, shards))
		first := jetstream.WithExpectLastSequencePerSubject(0)
		ack, err := js.Publish(t.Context(), "waymark.events.default."+run, []byte("{}"), first)
		require.NoError(t, err)
		require.Equal(t, want.EventStream(), ack.Stream)
		_, err = js.Publish(t.Context(), "waymark.events.default."+run, []byte("{}"), first)
		require.ErrorContains(t, err, "wrong last sequence", "the compare-and-set is on the subject as mapped")
		ack, err = js.Publish(t.Context(), want.EventSubject(run), []byte("{}"), jetstream.WithExpectLastSequencePerSubject(ack.Sequence))
		require.NoError(t, err, "a program that knows the shard may name it")
		require.Equal(t, want.EventStream(), ack.Stream)
	}
}

func startConfigured(t *testing.T, file string) *server.Server {
	t.Helper()
	t.Setenv("WAYMARK_NATS_PASSWORD", "correct-horse")
	opts, err := server.ProcessConfigFile(file)
	require.NoError(t, err)
	require.True(t, opts.SyncAlways, "what one-node.conf says holds here, too")
	if opts.Port == server.DEFAULT_PORT { // not changed by the test
		opts.Port, opts.StoreDir = -1, t.TempDir()
	}
	opts.NoSigs, opts.NoLog = true, true
	s, err := server.NewServer(opts)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	require.True(t, s.ReadyForConnections(time.Minute))
	return s
}

func connectTo(t *testing.T, s *server.Server) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL(), nats.UserInfo("waymark", "correct-horse"))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// runName makes names of many lengths and alphabets.
func runName(i int) string {
	switch i % 4 {
	case 0:
		return fmt.Sprintf("run-%d", i)
	case 1:
		return fmt.Sprintf("%x", i*2654435761)
	case 2:
		return fmt.Sprintf("Fix_Login-%s%d", strings.Repeat("z", i%40), i)
	default:
		return fmt.Sprintf("%d", i)
	}
}
