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

// The server itself refuses payloads above 64 MiB; below 4 KiB its own API answers would not fit.
const (
	minMaxPayload = 4 << 10
	maxMaxPayload = 64 << 20
)

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

	// MaxPayload is the largest message in bytes, headers included. 0 means 1 MiB; 4 KiB to 64 MiB.
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

func (c *Cluster) valid() bool {
	return c == nil || c.Name != "" && c.Node >= 0 && c.Node < len(c.Ports) && (len(c.Via) == 0 || len(c.Via) == len(c.Ports)) && c.User != "" && c.Password != ""
}

// Validate reports the first field that is out of range, by name and value.
func (c Config) Validate() error {
	bad := func(field string, value any, want string) error {
		return fmt.Errorf("%w: %s is %v: %s", ErrInvalidConfig, field, value, want)
	}
	switch {
	case c.StateDir == "":
		return bad("StateDir", `""`, "name the directory that the server may own")
	case c.Port < 0 || c.Port > 65535:
		return bad("Port", c.Port, "use 1 to 65535, or 0 for a free one")
	case c.Sync != SyncAlways && c.Sync != SyncInterval:
		return bad("Sync", int(c.Sync), "use SyncAlways or SyncInterval")
	case c.MaxPayload != 0 && (c.MaxPayload < minMaxPayload || c.MaxPayload > maxMaxPayload):
		return bad("MaxPayload", c.MaxPayload, fmt.Sprintf("use %d to %d bytes, or 0 for %d",
			minMaxPayload, maxMaxPayload, DefaultMaxPayload))
	case c.MaxStore < 0:
		return bad("MaxStore", c.MaxStore, "use a number of bytes, or 0 for what the server chooses")
	case !c.Cluster.valid():
		return bad("Cluster", fmt.Sprintf("%q, node %d of %d", c.Cluster.Name, c.Cluster.Node, len(c.Cluster.Ports)),
			"give it a name, the ports of all nodes, one of them as node, and credentials")
	case c.StopTimeout < 0:
		return bad("StopTimeout", c.StopTimeout, fmt.Sprintf("use a duration above 0, or 0 for %s", DefaultStopTimeout))
	case c.Ping < 0:
		return bad("Ping", c.Ping, fmt.Sprintf("use a duration above 0, or 0 for %s", DefaultPing))
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
