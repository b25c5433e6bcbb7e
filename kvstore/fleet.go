package kvstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/schema"
)

// Defaults and limits of a fleet's settings.
const (
	// DefaultQuotaBytes is the quota of each shard's event stream: 4 GiB. The server reserves [Storage], so that a
	// fleet gets a clean error before the disk is full.
	DefaultQuotaBytes = 4 << 30
	// UnlimitedQuota leaves a fleet bounded by its account and the server's disk only. A full disk stops every fleet
	// until the server restarts.
	UnlimitedQuota = -1
	// MinQuotaBytes is the smallest quota: 16 MiB, room for a few dozen of the largest messages.
	MinQuotaBytes = 16 << 20
	// DefaultReserveBytes is how much each stream of a full shard may grow for what the daemon itself writes: 64 MiB,
	// or as much as a smaller quota.
	DefaultReserveBytes = 64 << 20
	// DefaultCheckpointsPerRun is the number of checkpoints kept of a run.
	DefaultCheckpointsPerRun = 5
	// MaxCheckpointsPerRun is the maximal history of a KV key.
	MaxCheckpointsPerRun = 64
	// LoneShards is the number of shards of a new fleet on a single server that syncs each message. The server syncs
	// the messages of one stream one after the other, and those of several streams at once: the file system writes
	// concurrent syncs with one commit of its journal. More than 8 gain little on a disk that syncs in less than a
	// millisecond.
	LoneShards = 8
	// MaxShards bounds the shards of a fleet.
	MaxShards = 256
	// MinSilence and MaxSilence bound the silence of executors. A machine may pause for a moment, and runs of a dead
	// executor must not wait for days.
	MinSilence = 2 * time.Second
	MaxSilence = 24 * time.Hour
	// MaxReplicas is the most replicas a JetStream stream can have.
	MaxReplicas = 5
)

// FleetConfig is the requested configuration of a fleet.
type FleetConfig struct {
	// Fleet name. Required; [schema.DefaultFleet] by default.
	Fleet string
	// Shards that runs are spread over, at most [MaxShards]; 0 means NewShards for a new fleet, and the number that an
	// existing fleet has. It never changes.
	Shards int
	// NewShards is the default for a new fleet; 0 means 1.
	NewShards int
	// Replicas of every stream: 1 on a single server, 3 on a cluster; 0 means 1. A change from 1 to more creates the
	// checkpoint buckets and the stream of dead letters again, because a stream with asynchronous persistence cannot
	// be replicated. Dead letters of events that are still in the log come back, older ones do not.
	Replicas int
	// QuotaBytes bounds the event stream of each shard, its segments, its checkpoints, and its share of the blobs, each,
	// as JetStream counts bytes; 0 means [DefaultQuotaBytes], [UnlimitedQuota] none.
	QuotaBytes int64
	// ReserveBytes is how far beyond the quota the daemon itself may go in each of them but the blobs; 0 means
	// [DefaultReserveBytes], or a smaller quota. It has no effect if the quota is unlimited.
	ReserveBytes int64
	// CheckpointsPerRun is the number of checkpoints kept of each run; 0 means [DefaultCheckpointsPerRun], at
	// most [MaxCheckpointsPerRun].
	CheckpointsPerRun int
	// Retention says how long runs are kept after their end; zero keeps all of them.
	Retention schema.RetentionPolicy
	// Silence is how long an executor may be silent before its runs are orphaned, whole milliseconds from [MinSilence] to [MaxSilence]; 0
	// means schema.DefaultSilenceMS.
	Silence time.Duration
}

// CheckSilence returns an error that matches [ErrSettings] unless a fleet may have the silence. 0 means schema.DefaultSilenceMS.
func CheckSilence(d time.Duration) error {
	if d != 0 && (d < MinSilence || d > MaxSilence || d%time.Millisecond != 0) {
		return fmt.Errorf("%w: silence is %s, use %s to %s in whole milliseconds", ErrSettings, d, MinSilence, MaxSilence)
	}
	return nil
}

// Defaults returns the configuration with the defaults instead of zeros.
func (c FleetConfig) Defaults() FleetConfig {
	c.Shards, c.NewShards = cmp.Or(c.Shards, c.NewShards, 1), 0
	c.Replicas, c.CheckpointsPerRun = cmp.Or(c.Replicas, 1), cmp.Or(c.CheckpointsPerRun, DefaultCheckpointsPerRun)
	c.QuotaBytes = cmp.Or(c.QuotaBytes, DefaultQuotaBytes)
	c.ReserveBytes = cmp.Or(c.ReserveBytes, reserveOf(c.QuotaBytes))
	return c
}

// reserveOf is the default reserve for a quota.
func reserveOf(quota int64) int64 {
	if quota == UnlimitedQuota {
		return DefaultReserveBytes
	}
	return min(quota, DefaultReserveBytes)
}

// Validate reports every field that is out of range; zeros mean the defaults. The errors match [ErrSettings].
func (c FleetConfig) Validate() error {
	c = c.Defaults()
	var errs []error
	bad := func(field string, value any, rule string) {
		errs = append(errs, fmt.Errorf("%w: %s is %v, %s", ErrSettings, field, value, rule))
	}
	if err := schema.CheckName("fleet", c.Fleet); err != nil {
		errs = append(errs, fmt.Errorf("%w: %w", ErrSettings, err))
	}
	if c.Shards < 1 || c.Shards > MaxShards {
		bad("shards", c.Shards, fmt.Sprintf("use 1 to %d", MaxShards))
	}
	if c.Replicas < 1 || c.Replicas > MaxReplicas {
		bad("replicas", c.Replicas, fmt.Sprintf("use 1 to %d (3 on a cluster of three)", MaxReplicas))
	}
	if c.QuotaBytes != UnlimitedQuota && c.QuotaBytes < MinQuotaBytes {
		bad("quota_bytes", c.QuotaBytes, fmt.Sprintf("use at least %d, or %d for none", MinQuotaBytes, UnlimitedQuota))
	}
	if c.ReserveBytes < 0 || c.QuotaBytes > 0 && c.ReserveBytes > 1<<62-c.QuotaBytes {
		bad("reserve_bytes", c.ReserveBytes, "use a number of bytes above 0 that can be added to the quota")
	}
	if c.CheckpointsPerRun < 1 || c.CheckpointsPerRun > MaxCheckpointsPerRun {
		bad("checkpoints_per_run", c.CheckpointsPerRun, fmt.Sprintf("use 1 to %d", MaxCheckpointsPerRun))
	}
	if err := CheckSilence(c.Silence); err != nil {
		errs = append(errs, err)
	}
	if err := schema.Check(&c.Retention); err != nil {
		errs = append(errs, fmt.Errorf("%w: retention: %w", ErrSettings, err))
	}
	return errors.Join(errs...)
}

// ConfigOf returns the configuration that corresponds to a fleet's settings.
func ConfigOf(s *schema.FleetSettings) FleetConfig {
	return FleetConfig{
		Fleet: s.Fleet, Shards: s.Shards, Replicas: s.Replicas,
		QuotaBytes: s.QuotaBytes, ReserveBytes: s.ReserveBytes, CheckpointsPerRun: s.CheckpointsPerRun, Retention: s.Retention,
		Silence: time.Duration(s.SilenceMS) * time.Millisecond,
	}
}

// withConfig returns the settings after a configuration, which has its defaults, was applied.
func withConfig(s *schema.FleetSettings, c FleetConfig) schema.FleetSettings {
	next := *s
	next.Format, next.Fleet, next.Shards = schema.SettingsFormat, c.Fleet, c.Shards
	next.Replicas, next.CheckpointsPerRun = c.Replicas, c.CheckpointsPerRun
	next.QuotaBytes, next.ReserveBytes, next.Retention = c.QuotaBytes, c.ReserveBytes, c.Retention
	next.SilenceMS = c.Silence.Milliseconds()
	return next
}

// CheckSettings reports invalid stored settings. The errors match [ErrSettings].
func CheckSettings(s *schema.FleetSettings) error {
	if _, err := keyring.Parse(s.Fleet, s.Keys); err != nil {
		return fmt.Errorf("%w: %w", ErrSettings, err)
	}
	if err := schema.Check(s); err != nil {
		return fmt.Errorf("%w: %w", ErrSettings, err)
	}
	c := ConfigOf(s)
	if c != c.Defaults() {
		return fmt.Errorf("%w: a setting is 0, stored settings have their defaults", ErrSettings)
	}
	return c.Validate()
}

// decodeSettings reads and validates stored settings.
func decodeSettings(fleet string, b []byte) (schema.FleetSettings, error) {
	s, err := decodeFormat[schema.FleetSettings](b, schema.SettingsFormat)
	if err != nil {
		return s, fmt.Errorf("settings of fleet %s: %w", fleet, err)
	}
	if err := CheckSettings(&s); err != nil {
		return s, fmt.Errorf("settings of fleet %s: %w: %w", fleet, ErrCorrupt, err)
	}
	if s.Fleet != fleet {
		return s, fmt.Errorf("settings of fleet %s are those of fleet %s: %w", fleet, s.Fleet, ErrCorrupt)
	}
	return s, nil
}

// Fleets reads the settings of the fleets of an account.
type Fleets struct{ bucket bucket }

// NewFleets returns the fleets of the account that js speaks to. It does no I/O.
func NewFleets(js jetstream.JetStream) *Fleets { return &Fleets{newBucket(js, schema.FleetBucket)} }

// Get returns a fleet's settings from the leader, with their revision. It returns [ErrNotFound] for a fleet that was
// not provisioned, [ErrStreamMissing] if no fleet ever was, [ErrCorrupt], schema.ErrFormat.
func (f *Fleets) Get(ctx context.Context, fleet string) (schema.FleetSettings, schema.Revision, error) {
	if err := schema.CheckName("fleet", fleet); err != nil {
		return schema.FleetSettings{}, 0, err
	}
	e, err := f.bucket.getFresh(ctx, fleet)
	if err != nil {
		return schema.FleetSettings{}, e.rev, fmt.Errorf("settings of fleet %s: %w", fleet, err)
	}
	s, err := decodeSettings(fleet, e.value)
	return s, e.rev, err
}

// put stores settings by compare-and-set.
func (f *Fleets) put(ctx context.Context, s *schema.FleetSettings, rev schema.Revision) error {
	b, err := json.Marshal(s, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("settings of fleet %s: %w", s.Fleet, err)
	}
	if _, err := f.bucket.put(ctx, s.Fleet, b, rev); err != nil {
		return fmt.Errorf("put settings of fleet %s: %w", s.Fleet, err)
	}
	return nil
}
