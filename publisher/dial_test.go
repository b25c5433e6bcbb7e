package publisher_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
)

func TestConnect_OwnConnection_FindsAPartitionSoonAndNeverGivesUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	options := func(opts ...nats.Option) nats.Options {
		f := w.fleet(func(c *publisher.Config) {
			c.Conn, c.URL, c.Options = nil, w.server.URL(), append(w.server.NATSD().Options(), opts...)
		})
		return publisher.ConnOf(f).Opts
	}
	o := options()
	require.LessOrEqual(t, time.Duration(o.MaxPingsOut+1)*o.PingInterval, 15*time.Second)
	require.Negative(t, o.MaxReconnect)
	require.Less(t, o.ReconnectWait, time.Second)
	require.Equal(t, time.Minute, options(nats.PingInterval(time.Minute)).PingInterval, "the caller's option counts")
}
