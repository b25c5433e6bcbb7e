package kvstore

import (
	// The configuration of streams is nats.go's type, written for encoding/json: durations, flags and
	// policies have the server's form only there.
	stdjson "encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/schema"
)

// Sizes of messages and streams.
const (
	// MaxEventMessage is the largest event, headers and body: 512 KiB. So a segment can always hold one.
	MaxEventMessage = 512 << 10
	// maxSegmentStored leaves room for the description beside an event of the largest size that does not compress, alone in
	// its segment.
	maxSegmentStored = schema.MaxSegment + 4<<10
	// maxSegmentMessage leaves room for headers beside that.
	maxSegmentMessage = schema.MaxSegment + 8<<10
	// maxDeadLetter leaves room for the description beside a whole event.
	maxDeadLetter = MaxEventMessage + 16<<10
	// maxDeadLetterBytes bounds a fleet's dead letters: the oldest go first. The events themselves stay in
	// their run's log or segments. The server reserves the bound, so it is a quarter of a small quota.
	maxDeadLetterBytes = 256 << 20
	// fleetHistory keeps a few earlier settings, for whoever wonders what changed.
	fleetHistory = 5
	// minPayload is the smallest max_payload of a server that can carry every message. The largest is a checkpoint, with
	// room for its headers: one that cannot be put holds up the fold of its whole shard.
	minPayload = schema.MaxCheckpoint + 8<<10
	// duplicateWindow is how long message ids are remembered.
	duplicateWindow = 2 * time.Minute
)

// base has every flag at the value that all of Waymark's streams share; no flag is left to a default of
// the client or the server.
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

// kvBase is base for a KV bucket, as the stock KV clients expect it. Where its revisions begin is said when it is made: see [firstRevision].
func kvBase(bucket, description string, replicas int, history int64) jetstream.StreamConfig {
	c := base(bucketPrefix+bucket, description, replicas, "$KV."+bucket+".>")
	c.MaxMsgsPerSubject = history
	c.AllowRollup = true
	c.DenyDelete = true
	return c
}

// firstRevision is where the revisions of a bucket begin that is made at a time: at the microseconds since 1970, which are exact in every
// JSON reader until 2255. A bucket that is deleted and made again would begin at 1 again, and whoever still holds a revision of the one
// before (a worker that stood still, with a put that was not sent yet) could meet its own number under the same key: compare-and-set
// would take another value for the one that it had read. No bucket is written a million times a second, so the numbers of a later one are all new.
func firstRevision(made time.Time) uint64 {
	return uint64(max(made.UnixMicro(), 1)) //nolint:gosec // not negative
}

func eventStream(n schema.Names, s *schema.FleetSettings) jetstream.StreamConfig {
	c := base(n.EventStream(), "Waymark: events of runs, the truth", s.Replicas, n.EventSubjects())
	c.MaxBytes = s.QuotaBytes
	c.MaxMsgSize = MaxEventMessage
	c.DenyDelete = true // purge of what is sealed goes by subject; nobody takes out single events
	c.AllowAtomicPublish = true
	return c
}

func checkpointStream(n schema.Names, s *schema.FleetSettings) jetstream.StreamConfig {
	c := kvBase(n.CheckpointBucket(), "Waymark: checkpoints of runs, derived from the events",
		s.Replicas, int64(s.CheckpointsPerRun))
	// One token: the keys of runs match, the daemon's own (_.fold, _.live.<run>) have more and do not.
	c.RePublish = &jetstream.RePublish{
		Source:      "$KV." + n.CheckpointBucket() + ".*",
		Destination: n.CheckpointSubject("{{wildcard(1)}}"),
	}
	c.PersistMode = derivedPersistMode(s)
	return c
}

// derivedPersistMode is that of what is derived from the log, so that it need not be synced with each put: what a power cut takes back is
// derived once more. On several replicas the server refuses it.
func derivedPersistMode(s *schema.FleetSettings) jetstream.PersistModeType {
	if s.Replicas == 1 {
		return jetstream.AsyncPersistMode
	}
	return jetstream.DefaultPersistMode
}

func segmentStream(n schema.Names, s *schema.FleetSettings) jetstream.StreamConfig {
	c := kvBase(n.SegmentBucket(), "Waymark: sealed events of runs, the truth", s.Replicas, 1)
	c.MaxMsgSize = maxSegmentMessage
	return c
}

func blobStream(fleet string, s *schema.FleetSettings) jetstream.StreamConfig {
	bucket := schema.BlobBucket(fleet)
	c := base("OBJ_"+bucket, "Waymark: large payloads of runs, the truth", s.Replicas,
		"$O."+bucket+".C.>", "$O."+bucket+".M.>")
	c.AllowRollup = true // the object store replaces an object's description so
	return c
}

func deadLetterStream(fleet string, s *schema.FleetSettings) jetstream.StreamConfig {
	c := base(schema.DeadLetterStream(fleet), "Waymark: events that were rejected, with the reason", s.Replicas,
		schema.DeadLetterSubjects(fleet))
	// A flood of bad events must not stop the fold, which stores the letter first: old ones make room.
	c.Discard = jetstream.DiscardOld
	c.MaxBytes = deadLetterBytes(s.QuotaBytes)
	c.MaxMsgSize = maxDeadLetter
	c.PersistMode = derivedPersistMode(s)
	return c
}

// deadLetterBytes is the bound of the dead letters of a fleet with the quota.
func deadLetterBytes(quota int64) int64 {
	if quota == UnlimitedQuota {
		return maxDeadLetterBytes
	}
	return min(maxDeadLetterBytes, quota/4)
}

// LargestQuota returns the largest quota that so many shards can have on a server which can reserve room bytes, in whole MiB. It may be below
// [MinQuotaBytes]: then the fleet does not fit.
func LargestQuota(room int64, shards int) int64 {
	n := int64(shards)
	quota := max(room-maxDeadLetterBytes, 0) / n
	if quota/4 < maxDeadLetterBytes {
		quota = room / (4*n + 1) * 4
	}
	return quota >> 20 << 20
}

// LeastRoom is what a server must be able to reserve for a fleet with so many shards and the smallest quota.
func LeastRoom(shards int) int64 {
	return int64(shards)*MinQuotaBytes + deadLetterBytes(MinQuotaBytes)
}

func sharedStreams(replicas int) []jetstream.StreamConfig {
	return []jetstream.StreamConfig{
		kvBase(schema.FleetBucket, "Waymark: settings of fleets", replicas, fleetHistory),
		kvBase(schema.LeaseBucket, "Waymark: who folds which shard", replicas, 1),
	}
}

// unchecked are the flags that may be anything: words for people, where an operator places a stream, and where its numbers begin.
var unchecked = []string{"name", "description", "placement", "metadata", "template_owner", "first_seq"}

// unchangeable are the flags that a server refuses to set back on an existing stream.
var unchangeable = []string{
	"storage", "sealed", "deny_delete", "deny_purge", "allow_msg_ttl", "allow_msg_counter",
	"allow_msg_schedules", "persist_mode", "retention", "mirror",
}

// flag is one field of a stream's configuration.
type flag struct {
	name  string
	index int
}

// checkedFlags are all fields of the configuration, save the unchecked ones, by name: a flag that a later
// nats.go adds is checked without further ado.
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

// show is the flag's value for people.
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

// limits says how far the byte limit of a stream may be above what is wanted.
type limits struct{ low, high int64 }

// comparison of a stream's configuration with what it must be.
type comparison struct {
	// foreign differences are those that nobody asked for.
	foreign []flag
	// pending are those that new settings ask for.
	pending []flag
}

// compare sorts the flags in which have differs from want: those that are as old wants them are pending,
// the others foreign. lift is the range in which the byte limit is as good as wanted.
func compare(have, old, want *jetstream.StreamConfig, lift limits) comparison {
	var c comparison
	for _, f := range checkedFlags() {
		if f.same(have, want) {
			continue
		}
		if f.name == "max_bytes" && want.MaxBytes > 0 && have.MaxBytes >= lift.low && have.MaxBytes <= lift.high {
			continue
		}
		if f.name == "persist_mode" && have.PersistMode == jetstream.DefaultPersistMode {
			continue // safer than wanted, and slower: no reason to refuse a stream that an earlier version made
		}
		if old != nil && f.same(have, old) {
			c.pending = append(c.pending, f)
			continue
		}
		c.foreign = append(c.foreign, f)
	}
	return c
}

// configError describes foreign differences and how to mend them.
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
