package schema

import (
	"cmp"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// SettingsFormat is the format version of [FleetSettings].
const SettingsFormat = 1

// FleetSettings are a fleet's settings as stored. That they are stored is the marker that the fleet was
// provisioned.
type FleetSettings struct {
	// Format is [SettingsFormat].
	Format int `json:"format"`
	// Fleet name.
	Fleet string `json:"fleet"`
	// Generations are the numbers of shards that runs were spread over, oldest first, at most kvstore.MaxGenerations different ones. The first
	// never changes, and may be there once more; the others are there once. The last is current.
	Generations []int `json:"generations"`
	// Provisioned shards: those below this number existed once, and are never made again.
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
	// Keys are the public keys of the daemons whose signature makes a control event, oldest first; none means that control events
	// are not checked. A new fleet has the key of the connection that makes it, if it has one. See [Keys].
	Keys []FleetKey `json:"keys,omitzero"`
	// Extra keeps the members of later versions.
	Extra jsontext.Value `json:",embed"`
}

// Silence is how long an executor may be silent before its runs are orphaned.
func (s *FleetSettings) Silence() time.Duration {
	return time.Duration(cmp.Or(s.SilenceMS, DefaultSilenceMS)) * time.Millisecond
}

// Heartbeat is the pace at which executors of the fleet send heartbeats: three fit into the silence, and a tenth of it is left for delays.
// It is [DefaultHeartbeatMS] at most.
func (s *FleetSettings) Heartbeat() time.Duration {
	return min(DefaultHeartbeatMS*time.Millisecond, s.Silence()*3/10)
}

// Shards is the number of shards that exist: the largest of all generations.
func (s *FleetSettings) Shards() int { return slices.Max(s.Generations) }

// Mapped is the number of shards by which a server maps [MappedSubject] to the shard of a run: the first that the fleet had. A plain
// client goes on with its run under that subject, however often the number changes. The shard that it gives is the run's home:
// an executor that begins the run in another shard first leaves a mark there ([Placed]).
func (s *FleetSettings) Mapped() int { return s.Generations[0] }

// Holds reports whether a shard is one of the [ShardsOf] a run.
func (s *FleetSettings) Holds(run string, shard int) bool {
	return slices.ContainsFunc(s.Generations, func(n int) bool { return ShardOf(run, n) == shard })
}
