package natsd

import (
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	// DefaultMaxPayload is the largest message in bytes, headers included.
	DefaultMaxPayload = 1 << 20
	// DefaultStopTimeout is that of Config.
	DefaultStopTimeout = 30 * time.Second
	// DefaultPing is how often a silent route or client is pinged; after two pings without an answer the server ends the
	// connection. So one that is silently gone is found within 15 seconds. With the server's defaults that takes 90 seconds
	// for a route and six minutes for a client, and until then requests are sent to subscribers behind it, and lost.
	DefaultPing = 5 * time.Second
)

// maxMemory bounds JetStream's memory streams, in bytes.
const maxMemory = 256 << 20

// Sync is when JetStream syncs its files to the disk.
type Sync int

const (
	// SyncAlways syncs every acknowledged message. The zero value, and the only safe one.
	SyncAlways Sync = iota
	// SyncInterval syncs every two minutes: a power cut loses messages acknowledged since then. For tests, and for
	// measuring the cost of SyncAlways.
	SyncInterval
)

// Config configures the embedded server. Only StateDir is required.
type Config struct {
	// StateDir is the directory that the server owns. Required; created with mode 0700 if missing.
	StateDir string

	// Port is the TCP port on 127.0.0.1. 0, the default, means the port of the last start in this directory if it is
	// still free, otherwise any free one: reconnecting clients find a restarted server again, and two servers on one
	// machine do not collide.
	Port int

	// Sync is when files are synced. Default SyncAlways.
	Sync Sync

	// Keys are public NKeys of users (U…) that may connect with all rights, besides the user of the state directory:
	// a daemon signs with the key that it connects with.
	Keys []string

	// StopTimeout bounds Close. 0 means 30 seconds.
	StopTimeout time.Duration

	// Options changes the server's own options before its start, for measurements and tests. Nil changes none.
	Options func(*server.Options) `json:"-"`
}

// Validate reports the first field that is out of range, by name and value.
func (c Config) Validate() error {
	switch {
	case c.StateDir == "":
		return fmt.Errorf("%w: StateDir is empty: name the directory that the server may own", ErrInvalidConfig)
	case c.Port < 0 || c.Port > 65535:
		return fmt.Errorf("%w: Port is %d: use 1 to 65535, or 0 for a free one", ErrInvalidConfig, c.Port)
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.StopTimeout == 0 {
		c.StopTimeout = DefaultStopTimeout
	}
	return c
}
