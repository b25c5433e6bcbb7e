package natsd

import (
	"fmt"
	"time"

	"github.com/waymarkio/waymark/internal/encryption"
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

// Sync says when JetStream writes its files through to the disk.
type Sync int

const (
	// SyncAlways writes every acknowledged message through. The zero value, and the only safe one.
	SyncAlways Sync = iota
	// SyncInterval writes through every two minutes: a power cut takes back what was acknowledged since
	// then. For tests, and for measuring what SyncAlways costs.
	SyncInterval
)

// Config says how to run the embedded server. Only StateDir is required.
type Config struct {
	// StateDir is the directory that the server owns. Required; created with mode 0700 if missing.
	StateDir string

	// Port is the TCP port on 127.0.0.1. 0, the default, means the port of the last start in this
	// directory when it is still free, otherwise any free one: clients that reconnect find a restarted
	// server again, and two servers on one machine do not collide.
	Port int

	// Sync says when files are written through. Default SyncAlways.
	Sync Sync

	// MaxPayload is the largest message in bytes, headers included. 0 means 1 MiB; 4 KiB to 64 MiB.
	MaxPayload int

	// MaxStore bounds JetStream's files, in bytes. 0 means three quarters of the disk that the state directory is on: how much of
	// it is free when the server starts makes no difference.
	MaxStore int64

	// StoreKeys encrypt the store: a new one by the current key. One that is encrypted needs the key that it was given last, and gets the
	// current one. Nil means that the store is not encrypted.
	StoreKeys *encryption.File

	// Keys are public NKeys of users (U…) that may connect with all rights, beside the user of the state directory: a daemon signs by the
	// key that it connects with.
	Keys []string

	// StopTimeout bounds Close. 0 means 30 seconds.
	StopTimeout time.Duration

	// Ping is how often a route or a client that says nothing is asked whether it lives; two questions without an answer end the
	// connection. 0 means 5 seconds: one that is gone without a word is found within 15 seconds. By the server's own defaults that takes
	// 90 seconds for a route and six minutes for a client, and until then requests are sent to subscribers behind it, and lost.
	Ping time.Duration

	// Cluster makes the server one node of a cluster on this machine. Nil, the default, means a lone server.
	Cluster *Cluster

	// Verbose passes the server's notices to the logger as well, at info level. Default: warnings and errors.
	Verbose bool
}

// Cluster names the nodes of a cluster on one machine, for measurements and rehearsals: its routes listen on 127.0.0.1
// and speak no TLS. Every node is given the same name, ports and credentials, and a state directory of its own.
type Cluster struct {
	// Name of the cluster. Required.
	Name string
	// Node is this node's place in Ports, from 0.
	Node int
	// Ports are where the nodes take each other's routes. Required, one a node.
	Ports []int
	// Via are the ports at which this node reaches the others' routes, where that is not at Ports: something that can be cut
	// lies between them. One a node, its own is not used. Nil, the default, means Ports. With it no node tells anybody an address
	// that leads past it.
	Via []int
	// User and Password of clients and routes, instead of those that a lone server makes for itself. Required.
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
