package bench

import (
	"fmt"
	"os/exec"

	"github.com/rs/zerolog"
)

// ServerKind says where the NATS server of a measurement runs.
type ServerKind string

// Kinds of servers.
const (
	// Embedded runs in the measuring process, as in "waymark serve" without further flags.
	Embedded ServerKind = "embedded"
	// OwnProcess is a server in a process of its own, on loopback.
	OwnProcess ServerKind = "process"
	// ThreeNodes is a cluster of three processes on loopback; everything has three replicas.
	ThreeNodes ServerKind = "cluster"
)

// Sync says when the servers write through to the disk.
type Sync string

// When servers write through.
const (
	// SyncAlways writes every acknowledged message through, as Waymark's own server does.
	SyncAlways Sync = "always"
	// SyncDefault writes through at JetStream's default interval of two minutes.
	SyncDefault Sync = "default"
)

// DefaultRounds is the number of rounds of raw and ours each.
const DefaultRounds = 5

// Options say how to measure. The zero value measures in an embedded server that syncs always.
type Options struct {
	// Server and Sync; empty means Embedded, and SyncAlways unless a case is about the other.
	Server ServerKind
	Sync   Sync
	// Rounds of each side; 0 means 5, with Quick 1.
	Rounds int
	// Runs and Turns of the workload; 0 means the values of the case, often several.
	Runs, Turns int
	// Shards of the fleet; 0 means as many as waymark serve makes: 8 on a single server that syncs each message, else 1.
	Shards int
	// Daemons is the number of daemons in processes of their own; 0 means one within the measuring process.
	Daemons int
	// Executors is the number of executor processes that share the runs, at most one a run; 0 means that the measuring
	// process is the executor of all.
	Executors int
	// Store is the directory below which the servers' temporary directories are made; empty means the system's.
	Store string
	// Quick makes every case as small as possible, to see that it works. Its figures mean nothing.
	Quick bool
	// Child makes the command of a process that calls [Child]. Required for the kinds of servers, daemons and executors that are
	// processes; the measurement owns standard input and output.
	Child func() *exec.Cmd
	// Version of Waymark, for the results.
	Version string
	// Progress is called with the name of each measurement; nil means no callback.
	Progress func(text string)
	// Logger of servers, daemons and executors. The zero value is silent.
	Logger zerolog.Logger
}

// Defaults returns the options with defaults in place of zeros, where a default does not depend on the case.
func (o Options) Defaults() Options {
	if o.Server == "" {
		o.Server = Embedded
	}
	if o.Rounds == 0 {
		o.Rounds = o.Pick(0, DefaultRounds, 1)
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	return o
}

// Validate reports the first field that is out of range. The error wraps [ErrOptions].
func (o Options) Validate() error {
	for _, f := range []struct {
		name     string
		n, limit int
	}{
		{"rounds", o.Rounds, 1000},
		{"runs", o.Runs, 1_000_000},
		{"turns", o.Turns, 1_000_000},
		{"shards", o.Shards, 64},
		{"daemons", o.Daemons, 16},
		{"executors", o.Executors, 256},
	} {
		if f.n < 0 || f.n > f.limit {
			return fmt.Errorf("%w: %s is %d: use 1 to %d, or 0 for the default", ErrOptions, f.name, f.n, f.limit)
		}
	}
	if o.Sync != "" && o.Sync != SyncAlways && o.Sync != SyncDefault {
		return fmt.Errorf("%w: sync is %q: use always or default", ErrOptions, o.Sync)
	}
	return nil
}

// Pick chooses a size of a workload: the requested, the usual or the quick one.
func (o Options) Pick(asked, usual, quick int) int {
	switch {
	case asked > 0:
		return asked
	case o.Quick:
		return quick
	}
	return usual
}

// Span is Pick for lists.
func (o Options) Span(asked int, usual, quick []int) []int {
	switch {
	case asked > 0:
		return []int{asked}
	case o.Quick:
		return quick
	}
	return usual
}
