package kvstore

import (
	// The configuration of streams is nats.go's type, written for encoding/json: only there durations, flags and
	// policies have the server's form.
	stdjson "encoding/json"
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/schema"
)

// Sizes of messages and streams.
const (
	// MaxEventMessage is the largest event, headers and body: 512 KiB. So a segment can always hold one.
	MaxEventMessage = 512 << 10
	// maxSegmentStored leaves room for the description of a segment that contains a single incompressible event of
	// the largest size.
	maxSegmentStored = schema.MaxSegment + 4<<10
	// maxSegmentMessage leaves further room for headers.
	maxSegmentMessage = schema.MaxSegment + 8<<10
	// maxDeadLetter leaves room for the description of a complete event.
	maxDeadLetter = MaxEventMessage + 16<<10
	// MaxDeadLetterBytes bounds a fleet's dead letters: the oldest are dropped first. The events themselves stay in
	// their run's log or segments. The server reserves the bound, so it is a quarter of a small quota.
	MaxDeadLetterBytes = 256 << 20
	// fleetHistory keeps a few earlier settings, to show what changed.
	fleetHistory = 5
	// minPayload is the smallest max_payload of a server that can carry every message. The largest is a checkpoint
	// with its headers: one that cannot be put blocks the fold of its whole shard.
	minPayload = schema.MaxCheckpoint + 8<<10
	// duplicateWindow is how long message ids are remembered.
	duplicateWindow = 2 * time.Minute
)

// base has every flag at the value that all of Waymark's streams share; no flag is left to a default of the client or
// the server.
func base(name, description string, replicas int, subjects ...string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:                   name,
		Description:            description,
		Subjects:               subjects,
		Retention:              jetstream.LimitsPolicy,
		MaxConsumers:           -1,
		MaxMsgs:                -1,
		MaxBytes:               -1,
		Discard:                jetstream.DiscardNew,
		DiscardNewPerSubject:   false,
		MaxAge:                 0,
		MaxMsgsPerSubject:      -1,
		MaxMsgSize:             -1,
		Storage:                jetstream.FileStorage,
		Replicas:               replicas,
		NoAck:                  false,
		Duplicates:             duplicateWindow,
		Mirror:                 nil,
		Sources:                nil,
		Sealed:                 false,
		DenyDelete:             false,
		DenyPurge:              false,
		AllowRollup:            false,
		Compression:            jetstream.NoCompression,
		FirstSeq:               0,
		SubjectTransform:       nil,
		RePublish:              nil,
		AllowDirect:            true,
		MirrorDirect:           false,
		ConsumerLimits:         jetstream.StreamConsumerLimits{},
		AllowMsgTTL:            false,
		SubjectDeleteMarkerTTL: 0,
		AllowMsgCounter:        false,
		AllowAtomicPublish:     false,
		AllowMsgSchedules:      false,
		PersistMode:            jetstream.DefaultPersistMode,
		AllowBatchPublish:      false,
	}
}

// bucketPrefix begins the name of the stream of a KV bucket.
const bucketPrefix = "KV_"

// kvBase is base for a KV bucket, as the stock KV clients expect it. Its first revision is set when it is created:
// see [firstRevision].
func kvBase(bucket, description string, replicas int, history int64) jetstream.StreamConfig {
	c := base(bucketPrefix+bucket, description, replicas, "$KV."+bucket+".>")
	c.MaxMsgsPerSubject = history
	c.AllowRollup = true
	return c
}

// firstRevision is the first revision of a bucket created at a time: the microseconds since 1970, which are exact in
// every JSON reader until 2255. Otherwise a bucket that is deleted and created again would begin at 1 again. Then a
// process with a revision of the old bucket (a paused worker, with a put that was not sent yet) could find the same
// number under the same key, and its compare-and-set would replace a value that it had not read. No bucket gets a
// million writes a second, so the revisions of a later one are all new.
func firstRevision(made time.Time) uint64 {
	return uint64(max(made.UnixMicro(), 1)) //nolint:gosec // not negative
}

func eventStream(n schema.Names, s *schema.FleetSettings) jetstream.StreamConfig {
	c := base(n.EventStream(), "Waymark: events of runs, the truth", s.Replicas, n.EventSubjects())
	c.MaxBytes = s.QuotaBytes
	c.MaxMsgSize = MaxEventMessage
	c.AllowAtomicPublish = true
	return c
}

func checkpointStream(n schema.Names, s *schema.FleetSettings) jetstream.StreamConfig {
	c := kvBase(n.CheckpointBucket(), "Waymark: checkpoints of runs, derived from the events",
		s.Replicas, int64(s.CheckpointsPerRun))
	c.MaxBytes = withReserve(s)
	// One token: the keys of runs match; the daemon's own (_.fold, _.live.<run>) have more and do not match.
	c.RePublish = &jetstream.RePublish{
		Source:      "$KV." + n.CheckpointBucket() + ".*",
		Destination: n.CheckpointSubject("{{wildcard(1)}}"),
	}
	c.PersistMode = derivedPersistMode(s)
	c.AllowMsgTTL = true // for the delete markers of the live index
	return c
}

// derivedPersistMode is for data derived from the log. It need not be synced with each put, because data lost in a
// power cut is derived again. With several replicas the server refuses it.
func derivedPersistMode(s *schema.FleetSettings) jetstream.PersistModeType {
	if s.Replicas == 1 {
		return jetstream.AsyncPersistMode
	}
	return jetstream.DefaultPersistMode
}

func segmentStream(n schema.Names, s *schema.FleetSettings) jetstream.StreamConfig {
	c := kvBase(n.SegmentBucket(), "Waymark: sealed events of runs, the truth", s.Replicas, 1)
	c.MaxBytes = withReserve(s)
	c.MaxMsgSize = maxSegmentMessage
	return c
}

func blobStream(fleet string, s *schema.FleetSettings) jetstream.StreamConfig {
	bucket := schema.BlobBucket(fleet)
	c := base("OBJ_"+bucket, "Waymark: large payloads of runs, the truth", s.Replicas,
		"$O."+bucket+".C.>", "$O."+bucket+".M.>")
	c.AllowRollup = true // the object store uses it to replace an object's description
	c.MaxBytes = s.QuotaBytes
	if s.QuotaBytes != UnlimitedQuota {
		c.MaxBytes *= int64(s.Shards)
	}
	return c
}

// withReserve is the limit of a bucket that only the daemon writes. Executors let it grow to the quota by their
// events; the reserve is for removals, which make room, and for events that are not folded yet.
func withReserve(s *schema.FleetSettings) int64 {
	if s.QuotaBytes == UnlimitedQuota {
		return UnlimitedQuota
	}
	return s.QuotaBytes + s.ReserveBytes
}

func deadLetterStream(fleet string, s *schema.FleetSettings) jetstream.StreamConfig {
	c := base(schema.DeadLetterStream(fleet), "Waymark: events that were rejected, with the reason", s.Replicas,
		schema.DeadLetterSubjects(fleet))
	// A flood of bad events must not stop the fold worker, which stores the letter first: old letters make room.
	c.Discard = jetstream.DiscardOld
	c.MaxBytes = deadLetterBytes(s.QuotaBytes)
	c.MaxMsgSize = maxDeadLetter
	c.PersistMode = derivedPersistMode(s)
	return c
}

// deadLetterBytes is the bound of a fleet's dead letters, given its quota.
func deadLetterBytes(quota int64) int64 {
	if quota == UnlimitedQuota {
		return MaxDeadLetterBytes
	}
	return min(MaxDeadLetterBytes, quota/4)
}

// Storage is how many bytes the streams of a fleet can have, in one copy: log, segments, checkpoints and blobs of each
// shard the quota, all but the blobs a reserve above it, and the dead letters. A server reserves that much.
func Storage(shards int, quota, reserve int64) int64 {
	return int64(shards)*(4*quota+3*reserve) + deadLetterBytes(quota)
}

// LargestQuota returns the largest quota, in whole MiB, for a number of shards on a server that can reserve room
// bytes. If it is below [MinQuotaBytes], the fleet does not fit.
func LargestQuota(room int64, shards int) int64 {
	quota := sort.Search(int(room>>20)+1, func(mib int) bool {
		return Storage(shards, int64(mib)<<20, reserveOf(int64(mib)<<20)) > room
	})
	return max(int64(quota)-1, 0) << 20
}

// LeastRoom is the storage that a server must be able to reserve for a number of shards with the smallest quota.
func LeastRoom(shards int) int64 { return Storage(shards, MinQuotaBytes, reserveOf(MinQuotaBytes)) }

func sharedStreams(replicas int) []jetstream.StreamConfig {
	return []jetstream.StreamConfig{
		kvBase(schema.FleetBucket, "Waymark: settings of fleets", replicas, fleetHistory),
		kvBase(schema.LeaseBucket, "Waymark: leases of fold workers", replicas, 1),
	}
}

// unchecked are the flags that may have any value: text for people, an operator's placement, and the first sequence.
var unchecked = []string{"name", "description", "placement", "metadata", "template_owner", "first_seq"}

// unchangeable are the flags that a server refuses to change on an existing stream.
var unchangeable = []string{
	"storage", "sealed", "deny_delete", "deny_purge", "allow_msg_ttl", "allow_msg_counter",
	"allow_msg_schedules", "persist_mode", "retention", "mirror",
}

// flag is one field of a stream's configuration.
type flag struct {
	name  string
	index int
}

// checkedFlags are all fields of the configuration, except the unchecked ones, by name: a flag of a later nats.go is
// checked automatically.
func checkedFlags() []flag {
	t := reflect.TypeFor[jetstream.StreamConfig]()
	flags := make([]flag, 0, t.NumField())
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if !slices.Contains(unchecked, name) {
			flags = append(flags, flag{name, i})
		}
	}
	slices.SortFunc(flags, func(a, b flag) int { return strings.Compare(a.name, b.name) })
	return flags
}

func (f flag) of(c *jetstream.StreamConfig) any {
	return reflect.ValueOf(c).Elem().Field(f.index).Interface()
}

func (f flag) set(c *jetstream.StreamConfig, from *jetstream.StreamConfig) {
	reflect.ValueOf(c).Elem().Field(f.index).Set(reflect.ValueOf(from).Elem().Field(f.index))
}

func (f flag) same(a, b *jetstream.StreamConfig) bool {
	va, vb := f.of(a), f.of(b)
	if reflect.ValueOf(va).Kind() == reflect.Slice && reflect.ValueOf(va).Len() == 0 && reflect.ValueOf(vb).Len() == 0 {
		return true // nil and empty are the same to the server
	}
	return reflect.DeepEqual(va, vb)
}

// show returns the flag's value for people.
func (f flag) show(c *jetstream.StreamConfig) string {
	v := f.of(c)
	if d, ok := v.(time.Duration); ok {
		return d.String()
	}
	b, err := stdjson.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

// limits says how far the byte limit of a stream may be above the expected one.
type limits struct{ low, high int64 }

// comparison of a stream's configuration with the expected one.
type comparison struct {
	// foreign differences do not come from any settings.
	foreign []flag
	// pending differences come from new settings.
	pending []flag
}

// compare sorts the flags in which have differs from want: those with the old value are pending, the others foreign.
// lift is the accepted range of the byte limit.
func compare(have, old, want *jetstream.StreamConfig, lift limits) comparison {
	var c comparison
	for _, f := range checkedFlags() {
		if f.same(have, want) {
			continue
		}
		if f.name == "max_bytes" && want.MaxBytes > 0 && have.MaxBytes >= lift.low {
			if have.MaxBytes <= lift.high {
				continue
			}
			if old != nil {
				c.pending = append(c.pending, f) // the stream had more than a lowered quota, and has less by now
				continue
			}
		}
		if f.name == "max_msgs_per_subject" && want.RePublish != nil && have.MaxMsgsPerSubject == 1 {
			continue // a full bucket of checkpoints keeps the last of each run
		}
		if f.name == "persist_mode" && have.PersistMode == jetstream.DefaultPersistMode {
			continue // safer than expected, and slower: no reason to refuse a stream of an earlier version
		}
		if f.name == "allow_msg_ttl" && want.AllowMsgTTL {
			c.pending = append(c.pending, f) // a stream of an earlier version: the server turns it on, and never off
			continue
		}
		if old != nil && f.same(have, old) {
			c.pending = append(c.pending, f)
			continue
		}
		c.foreign = append(c.foreign, f)
	}
	return c
}

// configError describes foreign differences and how to correct them.
func configError(api string, have, want *jetstream.StreamConfig, foreign []flag, derived bool) *ConfigError {
	e := &ConfigError{Stream: want.Name}
	mended, stuck := *have, false
	for _, f := range foreign {
		e.Differences = append(e.Differences, Difference{Flag: f.name, Want: f.show(want), Have: f.show(have)})
		f.set(&mended, want)
		stuck = stuck || slices.Contains(unchangeable, f.name)
	}
	switch {
	case !stuck:
		b, err := stdjson.Marshal(mended)
		if err == nil {
			e.Command = "nats req '" + api + "STREAM.UPDATE." + want.Name + "' '" + strings.ReplaceAll(string(b), "'", `'\''`) + "'"
		}
	case derived:
		e.Command = "nats stream rm --force " + want.Name
		e.Hint = "the server cannot change this flag on an existing stream; its content is derived and will be rebuilt"
	default:
		e.Hint = "the server cannot change this flag on an existing stream; back up the fleet, and restore it into a new stream"
	}
	return e
}
