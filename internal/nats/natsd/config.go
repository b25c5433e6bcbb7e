package natsd

import (
	"fmt"
	"time"

	"github.com/waymarkio/waymark/internal/base/encryption"
)

// Defaults of Config.
const (
	DefaultMaxPayload  = 1 << 20
	DefaultStopTimeout = 30 * time.Second
	DefaultPing        = 5 * time.Second
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

	// MaxPayload is the largest message in bytes, headers included. 0 means 1 MiB.
	MaxPayload int

	// MaxStore bounds JetStream's files, in bytes. 0 means three quarters of the disk of the state directory, however
	// much of it is free at the start.
	MaxStore int64

	// StoreKeys encrypt the store: a new one with the current key. An encrypted store needs its latest key, and is
	// switched to the current one. Nil means that the store is not encrypted.
	StoreKeys *encryption.File

	// Keys are public NKeys of users (U…) that may connect with all rights, besides the user of the state directory:
	// a daemon signs with the key that it connects with.
	Keys []string

	// StopTimeout bounds Close. 0 means 30 seconds.
	StopTimeout time.Duration

	// Ping is how often a silent route or client is pinged; after two pings without an answer the server ends the
	// connection. 0 means 5 seconds: a connection that is silently gone is found within 15 seconds. With the server's
	// defaults that takes 90 seconds for a route and six minutes for a client, and until then requests are sent to
	// subscribers behind it, and lost.
	Ping time.Duration

	// Cluster makes the server one node of a cluster on this machine. Nil, the default, means a single server.
	Cluster *Cluster

	// Verbose passes the server's notices to the logger as well, at info level. Default: warnings and errors.
	Verbose bool
}

// Cluster configures the nodes of a cluster on one machine, for measurements and tests: its routes listen on
// 127.0.0.1 without TLS. Every node has the same name, ports and credentials, and its own state directory.
type Cluster struct {
	// Name of the cluster. Required.
	Name string
	// Node is this node's index in Ports, from 0.
	Node int
	// Ports are the ports of the nodes' routes. Required, one per node.
	Ports []int
	// Via are the ports at which this node reaches the others' routes, if not at Ports: for example of a proxy that
	// can be cut. One per node, its own is not used. Nil, the default, means Ports. With it, nodes do not tell each
	// other addresses that bypass it.
	Via []int
	// User and Password of clients and routes, instead of those that a single server generates. Required.
	User, Password string
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
	if c.MaxPayload == 0 {
		c.MaxPayload = DefaultMaxPayload
	}
	if c.StopTimeout == 0 {
		c.StopTimeout = DefaultStopTimeout
	}
	if c.Ping == 0 {
		c.Ping = DefaultPing
	}
	return c
}
