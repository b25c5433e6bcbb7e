package schema

import (
	"cmp"
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
	// Shards is the number of shards, from 1 to kvstore.MaxShards. It is chosen when the fleet is created and never
	// changes: the shard of a run is [ShardOf] its id.
	Shards int `json:"shards"`
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
	// Pauses are in effect, at most [MaxPauses] and [MaxBudgetPauses], oldest first.
	Pauses []Pause `json:"pauses,omitzero" check:"max=320"`
	// Limits are in effect, at most [MaxLimits], oldest first.
	Limits []Limit `json:"limits,omitzero" check:"max=64"`
	// Schedules are in effect, at most [MaxSchedules], in the order in which they were first set.
	Schedules []Schedule `json:"schedules,omitzero" check:"max=64"`
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
