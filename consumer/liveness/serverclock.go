package liveness

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/kvstore"
)

// serverClockEvery is how often the server is asked for its time. In between, this machine's monotonic clock measures
// the time, which no correction of its wall clock moves.
const serverClockEvery = 10 * time.Second

// ServerClock is the clock of the server that stamps a stream's messages: their leader. It is behind by the answer's
// latency, never ahead. One goroutine uses it.
type ServerClock struct {
	js    jetstream.JetStream
	shard *kvstore.Shard
	// daemon is the daemon's clock: this machine's, unless a test moves it, and the server's time with it.
	daemon func() time.Time
	// said is the server's answer, and heard its arrival.
	said, heard time.Time
}

// NewServerClock returns the clock of the leader of a shard's log. daemon is the daemon's clock.
func NewServerClock(js jetstream.JetStream, shard *kvstore.Shard, daemon func() time.Time) *ServerClock {
	return &ServerClock{js: js, shard: shard, daemon: daemon}
}

// Now is the time of the server.
func (c *ServerClock) Now(ctx context.Context) (time.Time, error) {
	if c.said.IsZero() || time.Since(c.heard) >= serverClockEvery {
		said, err := kvstore.ServerTime(ctx, c.js, c.shard.Names.EventStream())
		if err != nil {
			return time.Time{}, fmt.Errorf("no wait expires, no pause ends and no schedule is due until it is known: %w", err)
		}
		c.said, c.heard = said, time.Now()
	}
	ahead := time.Until(c.daemon())
	return c.said.Add(time.Since(c.heard) + ahead), nil
}
