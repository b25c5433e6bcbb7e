package schema

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Attributes of a signed control event. They are CloudEvents extensions.
const (
	// AttributeSigner is the public key of the daemon that signed the event, as NATS writes it (U…).
	AttributeSigner = "signer"
	// AttributeRunDigest is the run's digest before the event (64 hex digits): the place for which the event was
	// signed.
	AttributeRunDigest = "rundigest"
	// AttributeSignature is the ed25519 signature over [Event.SignedBytes], in URL-safe base64 without padding.
	AttributeSignature = "signature"
)

// KeyDelay is how long after its storage a change of a fleet's keys takes effect. Readers fold with keys that they
// read at most [KeysFresh] ago, so no reader uses keys from before a change that is in effect.
const (
	KeyDelay  = time.Minute
	KeysFresh = 30 * time.Second
)

// MaxKeys bounds the keys of a fleet, retired ones included.
const MaxKeys = 64

// FleetKey is a key in a fleet's settings.
type FleetKey struct {
	// Key is the public key in the form of NATS (U…).
	Key string `json:"key"`
	// Since and Until are RFC 3339 times of the server's clock: the key signs events that the server stored from
	// Since on and before Until. An empty Since is the fleet's beginning, an empty Until is no end.
	Since string `json:"since,omitzero"`
	Until string `json:"until,omitzero"`
}

// Key is a public key that signs the control events of a fleet for a time.
type Key struct {
	// Name is the key as text, as in [AttributeSigner].
	Name string
	// Public is the ed25519 key.
	Public ed25519.PublicKey
	// Since and Until bound the time at which the server stored an event, in nanoseconds since 1970, with Since
	// included and Until excluded. Until 0 is no end.
	Since, Until int64
}

// Keys check the control events of a fold: they are the keys of one fleet at the time of one read, and never change.
//
// In a fleet with keys the fold refuses, as [ReasonUnsigned], a control event that no key of the fleet signed, and an
// executor's event that speaks for others (a name, or a settlement that only a person may make). It refuses, as
// [ReasonMisplaced], an event that was signed for another place in the run. Events stored before the first key's
// Since are not checked. A nil *Keys refuses every control event, so that missing keys are noticed.
type Keys struct {
	fleet string
	named map[string]Key
	// since is the beginning of the first key.
	since int64
}

// NoKeys are the keys of a fleet without keys: its control events are not checked.
var NoKeys = &Keys{}

// ExecutorsOnly refuses every control event, and everything that only a signed event may do: an executor folds its
// own events with it.
var ExecutorsOnly *Keys

// NewKeys returns the keys of a fleet; none is [NoKeys].
func NewKeys(fleet string, keys []Key) (*Keys, error) {
	if len(keys) == 0 {
		return NoKeys, nil
	}
	if err := CheckName("fleet", fleet); err != nil {
		return nil, err
	}
	k := &Keys{fleet: fleet, named: make(map[string]Key, len(keys)), since: math.MaxInt64}
	for _, key := range keys {
		switch _, twice := k.named[key.Name]; {
		case twice:
			return nil, fmt.Errorf("key %.80q is there twice", key.Name)
		case key.Name == "" || len(key.Public) != ed25519.PublicKeySize:
			return nil, fmt.Errorf("key %.80q is no ed25519 key of %d bytes", key.Name, ed25519.PublicKeySize)
		case key.Since < 0 || key.Until < 0 || key.Until != 0 && key.Until < key.Since:
			return nil, fmt.Errorf("key %.80q: its time ends before it begins", key.Name)
		}
		k.named[key.Name] = key
		k.since = min(k.since, key.Since)
	}
	return k, nil
}

// Any reports whether the fleet has keys.
func (k *Keys) Any() bool { return k != nil && len(k.named) > 0 }

// Concern reports whether the verdict about a record depends on the fleet's keys, because it needs a signature.
func (k *Keys) Concern(rec *Record) bool {
	if !k.Any() {
		return false
	}
	e, err := Decode(rec.Header, rec.Body)
	if err != nil {
		return false
	}
	data, err := ParseData(e)
	if err != nil {
		data = nil
	}
	if _, settled := data.(*ToolSettledData); settled {
		return true // it depends on the call
	}
	_, _, names := named(data)
	return names || needsSignature(e)
}

// Since is when the fleet's first key takes effect, in nanoseconds since 1970: control events that the server stored before are not checked.
func (k *Keys) Since() int64 { return k.since }

// Fleet is the fleet whose keys these are; empty for [NoKeys].
func (k *Keys) Fleet() string { return k.fleet }

// Key returns a key by its name.
func (k *Keys) Key(name string) (Key, bool) {
	if k == nil {
		return Key{}, false
	}
	key, ok := k.named[name]
	return key, ok
}

// SignedBytes are the bytes that a control event's signature covers: the line "waymark control event 1", the event's
// id, and in hex the SHA-256 of its other attributes except the signature, and its data, in the form of
// [Event.ContentHash].
//
// They include fleet and daemon (source), run (subject), type, epoch, turn and time, and the run's digest before the
// event. So a signature is valid for one event at one place of one run of one fleet: after the event the run has
// another digest.
func (e *Event) SignedBytes() []byte {
	unsigned := *e
	if _, ok := e.Extensions[AttributeSignature]; ok {
		unsigned.Extensions = maps.Clone(e.Extensions)
		delete(unsigned.Extensions, AttributeSignature)
	}
	return fmt.Appendf(nil, "waymark control event 1\n%s\n%s", e.ID, unsigned.ContentHash())
}

// Sign signs a control event with a named key, for the place after a run's digest. Set every other attribute before.
func (e *Event) Sign(name, digest string, sign func([]byte) ([]byte, error)) error {
	if e.Extensions == nil {
		e.Extensions = make(map[string]string, 3)
	}
	delete(e.Extensions, AttributeSignature)
	e.Extensions[AttributeSigner], e.Extensions[AttributeRunDigest] = name, digest
	signature, err := sign(e.SignedBytes())
	if err != nil {
		return fmt.Errorf("sign event %s: %w", e.ID, err)
	}
	e.Extensions[AttributeSignature] = base64.RawURLEncoding.EncodeToString(signature)
	return nil
}

// needsSignature reports whether only the daemon may write an event: it is a control event by its id or its type. For
// other events it depends on the run: see [Head.unsigned].
func needsSignature(e *Event) bool { return e.IsControl() || ErasedMark(e) || ControlOnly(e.Name()) }

// named returns the names in an event that an executor may write, and whether there are any.
func named(data Data) (by, claimed string, any bool) {
	switch d := data.(type) {
	case *ToolSettledData:
		by, claimed = d.By, d.Claimed
	case *CheckpointMarkedData:
		by, claimed = d.By, d.Claimed
	case *ToolDecidedData:
		var extra struct {
			Claimed jsontext.Value `json:"claimed"`
		}
		if len(d.Extra) > 0 && json.Unmarshal(d.Extra, &extra) == nil {
			claimed = string(extra.Claimed)
		}
		by = d.By
	}
	return by, claimed, by != "" || claimed != ""
}

// unsigned returns why an executor's event, which no key of the fleet signed, must be refused in the run's state, or
// "". An executor does not speak for others: it names only itself, and does not decide a call that is left to a
// person.
func (h *Head) unsigned(e *Event, data Data) string {
	by, claimed, _ := named(data)
	decided, policy := data.(*ToolDecidedData)
	switch {
	case claimed != "":
		return "it has a claimed name, which only a control event may have"
	case policy && strings.Contains(decided.By, ":"):
		return fmt.Sprintf("it names %.160q, the form of a verified key", by)
	case !policy && by != "" && by != h.Executor:
		return fmt.Sprintf("it names %.160q, and the run's executor is %.80q", by, h.Executor)
	}
	settled, ok := data.(*ToolSettledData)
	if !ok {
		return ""
	}
	i := h.FindOpen(e.Turn, settled.ToolCallID, settled.Occurrence)
	if i < 0 || h.OpenCalls[i].Replay != ReplayHold || h.OpenCalls[i].selfSettled(settled) {
		return ""
	}
	return fmt.Sprintf("only a person may settle call %.80q, whose replay is hold", settled.ToolCallID)
}

// selfSettled reports whether an executor may settle a call in doubt that is left to a person: it adopts the recorded
// late result.
func (c *OpenCall) selfSettled(d *ToolSettledData) bool {
	return d.How == SettledAdopted && c.State == CallLate && len(d.Result) == 0 && len(d.Refs) == 0
}

// check returns why an event that the server stored at a time must be refused, or "". bound: it is valid at its place
// only. own: no key signed it, and the fleet has keys.
func (k *Keys) check(e *Event, stored int64) (refusal string, bound, own bool) {
	claims := e.Extensions[AttributeSignature] != ""
	switch {
	case k != nil && len(k.named) == 0, k != nil && stored != 0 && stored < k.since:
		return "", false, false
	case !needsSignature(e) && (k == nil || !claims || k.verify(e, stored) != ""):
		return "", false, true
	case k == nil:
		return "its reader has no keys to check it by", false, false
	}
	if refusal = k.verify(e, stored); refusal != "" {
		return fmt.Sprintf("%s of fleet %s: %s", e.Name(), k.fleet, refusal), false, false
	}
	return "", true, false
}

// verify returns why an event's signature is not valid at the time at which the server stored it, or "".
func (k *Keys) verify(e *Event, stored int64) string {
	name := e.Extensions[AttributeSigner]
	if name == "" {
		return "it is not signed, and the fleet has keys"
	}
	key, ok := k.named[name]
	if !ok {
		return fmt.Sprintf("it is signed by %.80q, which is no key of the fleet", name)
	}
	if fleet, _, ok := ParseSource(e.Source); !ok || fleet != k.fleet {
		return fmt.Sprintf("it is signed for source %.160q", e.Source)
	}
	// An event without a time of storage is being published now.
	switch {
	case stored != 0 && stored < key.Since:
		return fmt.Sprintf("it was stored before its key %s is valid (%s)", name, FormatTime(time.Unix(0, key.Since)))
	case key.Until != 0 && (stored == 0 || stored >= key.Until):
		return fmt.Sprintf("its key %s was retired at %s", name, FormatTime(time.Unix(0, key.Until)))
	}
	signature, err := base64.RawURLEncoding.Strict().DecodeString(e.Extensions[AttributeSignature])
	if err != nil || !ed25519.Verify(key.Public, e.SignedBytes(), signature) {
		return fmt.Sprintf("its signature is not that of key %s", name)
	}
	return ""
}

// Refuses returns why the fold refuses an event that the server stored at a time (nanoseconds since 1970), by its
// signature alone, or "". Only the fold knows whether a signed event is at the place for which it was signed.
func (k *Keys) Refuses(e *Event, stored int64) string {
	refusal, _, _ := k.check(e, stored)
	return refusal
}

// Signed reports whether a key of the fleet has signed an event that the server stored at a time.
func (k *Keys) Signed(e *Event, stored int64) bool { return k.Any() && k.verify(e, stored) == "" }

// DigestAfter returns a run's digest after an accepted event, given the digest before it.
func DigestAfter(digest string, e *Event) string {
	prev, err := ParseHash(digest)
	if err != nil {
		prev = Hash{}
	}
	return prev.Next(e.ContentHash()).String()
}

// Signers returns the names of the keys, sorted.
func (k *Keys) Signers() []string { return slices.Sorted(maps.Keys(k.named)) }
