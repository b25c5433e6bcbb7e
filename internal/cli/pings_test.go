package cli

import (
	"bytes"
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

func TestDoctor_Pings_SlowServerIsWarnedOf(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		every time.Duration
		want  string
	}{
		{0, "a dead client is detected after 6m0s"},
		{5 * time.Second, "a dead connection is detected within 15s"},
	} {
		t.Run(test.every.String(), func(t *testing.T) {
			t.Parallel()
			s, err := server.NewServer(&server.Options{
				Host: "127.0.0.1", Port: server.RANDOM_PORT, HTTPHost: "127.0.0.1", HTTPPort: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(),
				NoLog: true, NoSigs: true, SyncAlways: true, PingInterval: test.every,
			})
			require.NoError(t, err)
			s.Start()
			t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
			require.True(t, s.ReadyForConnections(time.Minute))
			nc, err := nats.Connect(s.ClientURL())
			require.NoError(t, err)
			t.Cleanup(nc.Close)
			js, err := jetstream.New(nc)
			require.NoError(t, err)
			require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: schema.DefaultFleet, QuotaBytes: 64 << 20}))
			var out, complaints bytes.Buffer
			Run(t.Context(), []string{"doctor", "--timeout", "2s", "--nats", s.ClientURL(), "--monitor", "http://" + s.MonitorAddr().String()},
				func(string) string { return "" }, strings.NewReader(""), &out, &complaints)
			require.Contains(t, out.String(), test.want, complaints.String())
			require.Equal(t, test.every == 0, strings.Contains(out.String(), `set ping_interval: "5s" and ping_max: 2`))
		})
	}
}
