package fold

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/waymarkio/waymark/consumer/activity"
	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/schema"
)

// DefaultPurgeAfter is how long events stay in the log after they were sealed.
const DefaultPurgeAfter = 10 * time.Minute

// Bounds of Config.Linger for a daemon: how often it puts checkpoints of an active run.
const (
	DefaultLinger = 20 * time.Millisecond
	MinLinger     = time.Millisecond
	// MaxLinger keeps claims, notices to executors and checkpoint observers within a second of the event.
	MaxLinger = time.Second
)

// Config sets how a shard is folded. Zero values mean the defaults, except for the names.
type Config struct {
	// Fleet and Shard to fold. Fleet is required; shards count from 0.
	Fleet string
	Shard int
	// Holder names this daemon replica in the lease and as the source of checkpoints. Required; the grammar of
	// names.
	Holder string
	// BatchEvents and BatchBytes end a batch. If the log has more than another batch, it takes four times as many
	// events. Defaults 1,024 events and 8 MiB.
	BatchEvents int
	BatchBytes  int
	// Linger is how long a batch waits for more events after its first. Each batch puts a checkpoint of each of its
	// runs, so small and fast steps share one. Answers to requests do not wait: they are read from the log. Default
	// 20 ms.
	Linger time.Duration
	// SealBytes and SealEvents are the size of an unsealed tail that is sealed at the next end of a turn.
	// Defaults 256 KiB and 256 events.
	SealBytes  int64
	SealEvents int64
	// SealMaxBytes and SealMaxEvents are the size of a tail that is sealed even in the middle of a turn. Defaults 448
	// KiB, so that an incompressible segment stays within schema.MaxSegment, and 1,024 events.
	SealMaxBytes  int64
	SealMaxEvents int64
	// IdleSealAfter is how long a tail above IdleSealBytes may be idle before it is sealed. Defaults one hour and 16
	// KiB.
	IdleSealAfter time.Duration
	IdleSealBytes int64
	// CachedRuns bounds the runs whose head is kept in memory. Default 8,192, about 32 MiB.
	CachedRuns int
	// TailMemory bounds, in bytes, the memory for tails that wait to be sealed; the others are read from the log
	// again. Default 32 MiB; negative keeps none.
	TailMemory int64
	// LeaseTTL is how long a silent worker keeps its shard. Default 5 s; at least 1 s.
	LeaseTTL time.Duration
	// ReconcileEvery is the interval at which an idle worker compares its position with the log, seals idle tails and
	// moves the safe position. Default 5 s.
	ReconcileEvery time.Duration
	// SafeAfter is the age of the safe position: two sync intervals of the server. Default 5 minutes.
	SafeAfter time.Duration
	// UncleanStart begins at the safe position: the server may have lost unsynced checkpoints in a power cut.
	UncleanStart bool
	// AfterUnclean is called once everything affected by the unclean start was folded again, so that the next start
	// may be a clean one. May be nil.
	AfterUnclean func()
	// LiveRuns and Heartbeats of the fleet, which all workers of a daemon share. Without both, no run is orphaned and
	// no wait expires.
	LiveRuns   *liveness.LiveRuns
	Heartbeats *liveness.Heartbeats
	// Shards is the number of shards of the fleet: an event of a run that belongs to another shard is refused. 0 means
	// that the shard accepts any run.
	Shards int
	// Share spreads the shards over the replicas, for all workers of a daemon; nil means that there are no other replicas.
	Share *Share
	// Silence is how long an executor may be silent before its runs are orphaned, or three of its own intervals if
	// that is longer. Default 10 s.
	Silence time.Duration
	// SweepEvery is the interval of the sweeps for silent executors. Default 1 s.
	SweepEvery time.Duration
	// MaxClaims is the number of claims in a row without progress after which a run is quarantined. Default 3; a
	// negative number means never.
	MaxClaims int
	// PurgeAfter is how long events stay in the log after they were sealed. Default 10 minutes; a negative time means
	// forever.
	PurgeAfter time.Duration
	// Synced: the server syncs each message to the disk before it acknowledges it (sync_interval: always). If not, a
	// power cut can undo a segment but not the purge of its events. So nothing is purged within SafeAfter, however
	// full the log is, and PurgeAfter is at least SafeAfter.
	Synced bool
	// Limits returns the fleet's limits: the tokens of runs are counted for those with a budget. Nil means none.
	Limits func() []schema.Limit
	// Activity counts the work of agents, for all workers of a daemon. Nil counts for this worker alone.
	Activity *activity.Counters
	// Reprovision creates a lost checkpoint bucket again. Nil leaves that to the next start of the daemon.
	Reprovision func(context.Context) error
}

// withDefaults returns the configuration with every default filled in.
func (c Config) withDefaults() Config {
	if c.Activity == nil {
		c.Activity = activity.New(c.Fleet)
	}
	if c.Limits == nil {
		c.Limits = func() []schema.Limit { return nil }
	}
	c.BatchEvents = cmp.Or(c.BatchEvents, 1024)
	c.BatchBytes = cmp.Or(c.BatchBytes, 8<<20)
	c.Linger = cmp.Or(c.Linger, DefaultLinger)
	c.SealBytes = cmp.Or(c.SealBytes, 256<<10)
	c.SealEvents = cmp.Or(c.SealEvents, 256)
	c.SealMaxBytes = cmp.Or(c.SealMaxBytes, 448<<10)
	c.SealMaxEvents = cmp.Or(c.SealMaxEvents, 1024)
	c.IdleSealAfter = cmp.Or(c.IdleSealAfter, time.Hour)
	c.IdleSealBytes = cmp.Or(c.IdleSealBytes, 16<<10)
	c.CachedRuns = cmp.Or(c.CachedRuns, 8192)
	c.TailMemory = cmp.Or(c.TailMemory, 32<<20)
	c.LeaseTTL = cmp.Or(c.LeaseTTL, defaultLeaseTTL)
	c.ReconcileEvery = cmp.Or(c.ReconcileEvery, 5*time.Second)
	c.SafeAfter = cmp.Or(c.SafeAfter, 5*time.Minute)
	c.PurgeAfter = cmp.Or(c.PurgeAfter, DefaultPurgeAfter)
	c.Silence = cmp.Or(c.Silence, schema.DefaultSilenceMS*time.Millisecond)
	c.SweepEvery = cmp.Or(c.SweepEvery, time.Second)
	c.MaxClaims = cmp.Or(c.MaxClaims, schema.DefaultMaxClaims)
	return c
}

// Validate names the first invalid field, with its value.
func (c Config) Validate() error {
	c = c.withDefaults()
	if err := schema.CheckName("fleet", c.Fleet); err != nil {
		return err
	}
	if err := schema.CheckName("holder", c.Holder); err != nil {
		return err
	}
	for _, f := range []struct {
		name     string
		got, min int64
	}{
		{"Shard", int64(c.Shard), 0},
		{"Linger", int64(c.Linger), 0},
		{"LeaseTTL", int64(c.LeaseTTL), int64(time.Second)},
		{"Silence", int64(c.Silence), 3 * int64(c.SweepEvery)},
	} {
		if f.got < f.min {
			return fmt.Errorf("fold worker: %s is %d, at least %d", f.name, f.got, f.min)
		}
	}
	if c.purges() && !c.Synced && c.PurgeAfter < c.SafeAfter {
		return fmt.Errorf("fold worker: PurgeAfter is %s, at least SafeAfter, %s, with a server that does not sync each message", c.PurgeAfter, c.SafeAfter)
	}
	if c.SealMaxBytes > schema.MaxSegment-(32<<10) {
		return fmt.Errorf("fold worker: SealMaxBytes is %d, at most %d: an incompressible segment must fit", c.SealMaxBytes, schema.MaxSegment-(32<<10))
	}
	return nil
}

// sweeper returns the configuration of the shard's sweeper.
func (c *Config) sweeper() liveness.SweeperConfig {
	return liveness.SweeperConfig{Fleet: c.Fleet, Holder: c.Holder, Shard: c.Shard, Silence: c.Silence, Every: c.SweepEvery}
}

// purges reports whether sealed events are ever purged.
func (c *Config) purges() bool { return c.PurgeAfter > 0 }

// leastGrace is how long sealed events stay even in a full log: two sync intervals of a server that may lose
// acknowledged messages.
func (c *Config) leastGrace() time.Duration {
	if c.Synced {
		return 0
	}
	return c.SafeAfter
}
