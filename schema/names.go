package schema

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
)

// Epoch is the fencing number of a run, from 1; every takeover adds one. 0 means absent.
type Epoch uint32

// Sequence is an executor's dense counter within (run, epoch), from 1. 0 means absent. It is not the
// stream sequence.
type Sequence uint64

// String returns the 20-digit form of the CloudEvents attribute, which sorts as text.
func (s Sequence) String() string { return fmt.Sprintf("%020d", uint64(s)) }

// StreamSequence is the position of a message in its stream. It can be used again after damage.
type StreamSequence uint64

// Revision is the revision of a key in a bucket.
type Revision uint64

const (
	// MaxName is the longest run id, fleet, agent or executor name, in bytes.
	MaxName = 64
	// BarrierRun is the reserved run of a shard on which the daemon publishes shared barriers. It is
	// outside the grammar of run ids, so that no executor can own it.
	BarrierRun = "_barrier"
	// WatermarkKey is the key of a shard's fold watermark in its checkpoint bucket.
	WatermarkKey = "_.fold"
	// LiveKeyPrefix begins the keys of the index of runs that have not ended.
	LiveKeyPrefix = "_.live."
	// DefaultFleet is the fleet that is provisioned without a name.
	DefaultFleet = "default"
)

// NameError says that a name is outside the grammar [A-Za-z0-9][A-Za-z0-9_-]{0,63}.
type NameError struct {
	// What kind of name it is: run id, fleet, agent, executor.
	What string
	// Name as given.
	Name string
}

// Error names the thing, the value and the grammar.
func (e *NameError) Error() string {
	shown := e.Name
	if len(shown) > 80 {
		shown = shown[:80] + "…"
	}
	return fmt.Sprintf("%s %q is not a valid name: use 1 to %d of A-Z a-z 0-9 _ -, beginning with a letter or digit",
		e.What, shown, MaxName)
}

// ValidName reports whether s is in the grammar of run ids, fleet, agent and executor names.
func ValidName(s string) bool {
	if len(s) == 0 || len(s) > MaxName {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case (c == '_' || c == '-') && i > 0:
		default:
			return false
		}
	}
	return true
}

// CheckName returns a [*NameError] unless s is a valid name; what is used in the message.
func CheckName(what, s string) error {
	if ValidName(s) {
		return nil
	}
	return &NameError{What: what, Name: s}
}

// ShardOf returns the shard of a run in a fleet of n shards: FNV-1a-32 of the run id modulo n, so that
// any client can compute it. n below 2 is one shard.
func ShardOf(run string, n int) int {
	if n < 2 {
		return 0
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(run))
	return int(h.Sum32() % uint32(n)) //nolint:gosec // n is a small positive count
}

// Names are the NATS names of one shard of a fleet. The zero value is not valid; use [NamesOf].
type Names struct {
	// Fleet name.
	Fleet string
	// Shard number, from 0.
	Shard int
}

// NamesOf returns the names of shard i of the fleet.
func NamesOf(fleet string, shard int) Names { return Names{Fleet: fleet, Shard: shard} }

func (n Names) shard() string { return strconv.Itoa(n.Shard) }

// EventStream is the stream of the shard's events.
func (n Names) EventStream() string { return "WAYMARK_EVENTS_" + n.Fleet + "_" + n.shard() }

// EventSubject is the subject of a run's events.
func (n Names) EventSubject(run string) string {
	return "waymark.events." + n.Fleet + "." + n.shard() + "." + run
}

// MappedSubject is a subject of a run's events without the shard. A server with [EventMapping] stores messages on it
// under the [Names.EventSubject] of the run's shard.
func MappedSubject(fleet, run string) string { return "waymark.events." + fleet + "." + run }

// EventMapping is the subject mapping of a NATS account that selects the shard of a run in a fleet of n shards. The
// server's partition function is [ShardOf].
func EventMapping(fleet string, n int) (from, to string) {
	shard := "{{partition(" + strconv.Itoa(max(n, 1)) + ",1)}}"
	return MappedSubject(fleet, "*"), MappedSubject(fleet, shard+".{{wildcard(1)}}")
}

// EventSubjects is the wildcard that the event stream captures.
func (n Names) EventSubjects() string { return n.EventSubject("*") }

// RunOfSubject returns the last token of an event subject of this shard, or "" for other subjects.
func (n Names) RunOfSubject(s string) string {
	run, ok := strings.CutPrefix(s, n.EventSubject(""))
	if !ok || strings.ContainsAny(run, ". *>") {
		return ""
	}
	return run
}

// CheckpointBucket is the KV bucket of checkpoints.
func (n Names) CheckpointBucket() string { return "WAYMARK_CHECKPOINTS_" + n.Fleet + "_" + n.shard() }

// CheckpointSubject is where a run's checkpoint is republished.
func (n Names) CheckpointSubject(run string) string {
	return "waymark.checkpoints." + n.Fleet + "." + n.shard() + "." + run
}

// SegmentBucket is the KV bucket of segments.
func (n Names) SegmentBucket() string { return "WAYMARK_SEGMENTS_" + n.Fleet + "_" + n.shard() }

// SegmentKey is the key of a run's segment, numbered from 1.
func SegmentKey(run string, number int) string { return run + "." + strconv.Itoa(number) }

// BlobBucket is the fleet's object store of large payloads.
func BlobBucket(fleet string) string { return "WAYMARK_BLOBS_" + fleet }

// DeadLetterStream is the fleet's stream of rejected events.
func DeadLetterStream(fleet string) string { return "WAYMARK_DEADLETTERS_" + fleet }

// DeadLetterSubject is the subject of one dead letter; run may be outside the grammar and becomes "_".
func DeadLetterSubject(fleet string, reason Reason, run string) string {
	if !ValidName(run) {
		run = "_"
	}
	return "waymark.deadletters." + fleet + "." + string(reason) + "." + run
}

// DeadLetterSubjects is the wildcard that the dead letter stream captures.
func DeadLetterSubjects(fleet string) string { return "waymark.deadletters." + fleet + ".>" }

// Buckets that all fleets of an account share.
const (
	FleetBucket = "WAYMARK_FLEETS"
	LeaseBucket = "WAYMARK_LEASES"
)

// ServiceSubject is the request subject of a verb of the service: waymark.<verb>.<fleet>[.<run>].
func ServiceSubject(verb, fleet, run string) string {
	s := "waymark." + verb + "." + fleet
	if run != "" {
		s += "." + run
	}
	return s
}

// ObservedSubject is where an accepted event of a run is announced. The event's name has two tokens, entity and verb.
func ObservedSubject(fleet, name, run string) string {
	return "waymark.observed." + fleet + "." + name + "." + run
}

// Source is the CloudEvents source of an executor's events.
func Source(fleet, executor string) string { return "/waymark/" + fleet + "/" + executor }

// ParseSource splits a source of the form /waymark/<fleet>/<executor>. ok is false for any other.
func ParseSource(s string) (fleet, executor string, ok bool) {
	rest, ok := strings.CutPrefix(s, "/waymark/")
	if !ok {
		return "", "", false
	}
	fleet, executor, ok = strings.Cut(rest, "/")
	if !ok || !ValidName(fleet) || !ValidName(executor) {
		return "", "", false
	}
	return fleet, executor, true
}

const dataRefScheme = "waymark-blob:"

// DataRef is the reference to a run's blob with the given SHA-256 in hex.
func DataRef(run, sha256hex string) string { return dataRefScheme + BlobName(run, sha256hex) }

// BlobName is the object name of a run's blob.
func BlobName(run, sha256hex string) string { return run + ".sha256-" + sha256hex }

// ParseDataRef returns the run and SHA-256 (hex) of a blob reference. Any other scheme or form is an error: no other
// reference is ever resolved.
func ParseDataRef(s string) (run, sha256hex string, err error) {
	name, ok := strings.CutPrefix(s, dataRefScheme)
	if ok {
		run, sha256hex, ok = strings.Cut(name, ".sha256-")
	}
	if !ok || !ValidName(run) || !isHash(sha256hex) {
		return "", "", fmt.Errorf("dataref %.120q is not waymark-blob:<run>.sha256-<64 hex digits>", s)
	}
	return run, sha256hex, nil
}

// isHash reports whether s is a SHA-256 sum in lower-case hex.
func isHash(s string) bool {
	if len(s) != 64 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
