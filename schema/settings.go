package schema

import (
	"cmp"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// SettingsFormat is the format version of [FleetSettings].
const SettingsFormat = 1

// FleetSettings are a fleet's stored settings. A fleet with stored settings is provisioned.
type FleetSettings struct {
	// Format is [SettingsFormat].
	Format int `json:"format"`
	// Fleet name.
	Fleet string `json:"fleet"`
	// Generations are the numbers of shards that runs were spread over, oldest first, at most kvstore.MaxGenerations
	// different ones. The first never changes, and may be listed twice; the others are listed once. The last is
	// current.
	Generations []int `json:"generations"`
	// Provisioned shards: those below this number existed once, and are never created again.
	Provisioned int `json:"provisioned_shards"`
	// Replicas, QuotaBytes, ReserveBytes and CheckpointsPerRun are those of kvstore.FleetConfig.
	Replicas          int   `json:"replicas"`
	QuotaBytes        int64 `json:"quota_bytes"`
	ReserveBytes      int64 `json:"reserve_bytes"`
	CheckpointsPerRun int   `json:"checkpoints_per_run"`
	// Retention is that of kvstore.FleetConfig.
	Retention RetentionPolicy `json:"retention,omitzero"`
	// SilenceMS is how long an executor may be silent before its runs are orphaned, in milliseconds; 0 means [DefaultSilenceMS].
	SilenceMS int64 `json:"silence_ms,omitzero"`
	// Keys are the public keys of the daemons that sign control events, oldest first; without any, control events are
	// not checked. A new fleet has the key of the connection that provisions it, if it has one. See [Keys].
	Keys []FleetKey `json:"keys,omitzero"`
	// Extra keeps the members of later versions.
	Extra jsontext.Value `json:",embed"`
}

// Silence is how long an executor may be silent before its runs are orphaned.
func (s *FleetSettings) Silence() time.Duration {
	return time.Duration(cmp.Or(s.SilenceMS, DefaultSilenceMS)) * time.Millisecond
}

// Heartbeat is the interval at which executors of the fleet send heartbeats: three fit into the silence, and a tenth
// of it is left for delays. It is at most [DefaultHeartbeatMS].
func (s *FleetSettings) Heartbeat() time.Duration {
	return min(DefaultHeartbeatMS*time.Millisecond, s.Silence()*3/10)
}

// Shards is the number of shards that exist: the largest of all generations.
func (s *FleetSettings) Shards() int { return slices.Max(s.Generations) }

// Mapped is the number of shards by which a server maps [MappedSubject] to the shard of a run: the fleet's first
// number. A plain client keeps publishing its run on that subject, however often the number changes. The mapped shard
// is the run's home: an executor that begins the run in another shard first stores a tombstone there ([Placed]).
func (s *FleetSettings) Mapped() int { return s.Generations[0] }

// Holds reports whether a shard is one of the [ShardsOf] a run.
func (s *FleetSettings) Holds(run string, shard int) bool {
	return slices.ContainsFunc(s.Generations, func(n int) bool { return ShardOf(run, n) == shard })
}
