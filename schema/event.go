package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

// SpecVersion is the supported CloudEvents version.
const SpecVersion = "1.0"

// ContentTypeJSON is the data content type of all of Waymark's own events.
const ContentTypeJSON = "application/json"

// Event is one CloudEvent. Attributes are kept as the text on the wire, so that the content hash is the same in every
// mode and language.
type Event struct {
	// ID is unique within the source. An SDK's is [EventID], a control event's [ControlID].
	ID string
	// Source is /waymark/<fleet>/<executor> from an SDK; anything from others.
	Source string
	// Type is io.waymark.<name>.v1 for the vocabulary; unknown types are stored and shown.
	Type string
	// Subject is the run id.
	Subject string
	// Time is RFC 3339 text; empty when absent. Waymark writes UTC.
	Time string
	// Epoch of the run the writer holds; 0 when absent.
	Epoch Epoch
	// Sequence of the writer within the epoch; 0 when absent.
	Sequence Sequence
	// Turn the event belongs to; 0 when absent.
	Turn int32
	// TraceParent is the W3C trace context.
	TraceParent string
	// DataRef names the blob of the large field; see [Ref]. Empty when absent.
	DataRef string
	// DataContentType is empty or application/json for JSON.
	DataContentType string
	// DataSchema is a URI; it is kept and never resolved.
	DataSchema string
	// Extensions are further attributes by name, as text.
	Extensions map[string]string
	// Data is the payload as sent.
	Data []byte
}

// Hash is a SHA-256 sum.
type Hash [sha256.Size]byte

// String is lower-case hex.
func (h Hash) String() string {
	var text [2 * sha256.Size]byte
	hex.Encode(text[:], h[:])
	return string(text[:])
}

// ParseHash reads 64 lower-case hex digits; the empty text is the zero Hash, the digest of a run without events.
func ParseHash(s string) (Hash, error) {
	var h Hash
	if s == "" {
		return h, nil
	}
	if !isHash(s) {
		return h, fmt.Errorf("%.80q is not 64 lower-case hex digits", s)
	}
	_, err := hex.Decode(h[:], []byte(s))
	return h, err
}

// Next returns the digest after an event with the given content hash: SHA-256(digest ‖ content). At the
// beginning of a run the digest is 32 zero bytes.
func (h Hash) Next(content Hash) Hash {
	var b [2 * sha256.Size]byte
	copy(b[:], h[:])
	copy(b[sha256.Size:], content[:])
	return sha256.Sum256(b[:])
}

// ContentHash is the SHA-256 of the attributes except id, sorted by name, name=value and a line feed each,
// then an empty line, then the raw data bytes.
func (e *Event) ContentHash() Hash {
	var scratch [768]byte
	b := scratch[:0]
	var names [12]string
	for _, name := range e.attributeNames(names[:0]) {
		if name == "id" {
			continue
		}
		b = append(b, name...)
		b = append(b, '=')
		b = e.appendAttribute(b, name)
		b = append(b, '\n')
	}
	b = append(b, '\n')
	if len(e.Data) <= cap(b)-len(b) {
		return sha256.Sum256(append(b, e.Data...))
	}
	h := sha256.New()
	_, _ = h.Write(b)
	_, _ = h.Write(e.Data)
	var sum Hash
	h.Sum(sum[:0])
	return sum
}

// attributeNames appends the names of the attributes that are set, sorted.
func (e *Event) attributeNames(names []string) []string {
	add := func(name string, set bool) {
		if set {
			names = append(names, name)
		}
	}
	add("datacontenttype", e.DataContentType != "")
	add("dataref", e.DataRef != "")
	add("dataschema", e.DataSchema != "")
	add("epoch", e.Epoch != 0)
	add("id", true)
	add("sequence", e.Sequence != 0)
	add("source", true)
	add("specversion", true)
	add("subject", e.Subject != "")
	add("time", e.Time != "")
	add("traceparent", e.TraceParent != "")
	add("turn", e.Turn != 0)
	add("type", true)
	if len(e.Extensions) > 0 {
		for name := range e.Extensions {
			names = append(names, name)
		}
		slices.Sort(names)
	}
	return names
}

// appendAttribute appends the canonical text of an attribute.
func (e *Event) appendAttribute(b []byte, name string) []byte {
	switch name {
	case "datacontenttype":
		return append(b, e.DataContentType...)
	case "dataref":
		return append(b, e.DataRef...)
	case "dataschema":
		return append(b, e.DataSchema...)
	case "epoch":
		return strconv.AppendUint(b, uint64(e.Epoch), 10)
	case "id":
		return append(b, e.ID...)
	case "sequence":
		return appendSequence(b, e.Sequence)
	case "source":
		return append(b, e.Source...)
	case "specversion":
		return append(b, SpecVersion...)
	case "subject":
		return append(b, e.Subject...)
	case "time":
		return append(b, e.Time...)
	case "traceparent":
		return append(b, e.TraceParent...)
	case "turn":
		return strconv.AppendInt(b, int64(e.Turn), 10)
	case "type":
		return append(b, e.Type...)
	default:
		return append(b, e.Extensions[name]...)
	}
}

func appendSequence(b []byte, s Sequence) []byte {
	var digits [20]byte
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i] = '0' + byte(s%10)
		s /= 10
	}
	return append(b, digits[:]...)
}

// Name returns the event's name (tool.called) for a type of the vocabulary, or "" for a foreign type.
func (e *Event) Name() string {
	if rest, ok := strings.CutPrefix(e.Type, TypePrefix); ok {
		if name, ok := strings.CutSuffix(rest, TypeSuffix); ok {
			return name
		}
	}
	return ""
}

// IsControl reports whether the id has the form of a control event of this run and epoch.
func (e *Event) IsControl() bool {
	if e.Epoch == 0 || e.Sequence != 0 {
		return false
	}
	prefix := e.Subject + "." + strconv.FormatUint(uint64(e.Epoch), 10) + ".c."
	nonce, ok := strings.CutPrefix(e.ID, prefix)
	return ok && nonce != ""
}

// EventID is the id of an executor's event: <run>.<epoch>.<sequence>.<first 8 hex of the content hash>. It is also
// the Nats-Msg-Id: a retry is the same message, a fork is a different one.
func EventID(run string, epoch Epoch, seq Sequence, content Hash) string {
	return run + "." + strconv.FormatUint(uint64(epoch), 10) + "." + strconv.FormatUint(uint64(seq), 10) + "." +
		hex.EncodeToString(content[:4])
}

// ControlID is the id of a control event. A new nonce is made only after the event's compare-and-set was refused.
func ControlID(run string, epoch Epoch, nonce string) string {
	return run + "." + strconv.FormatUint(uint64(epoch), 10) + ".c." + nonce
}

// FormatTime is the text of a time in an event: RFC 3339 in UTC with the digits it needs.
func FormatTime(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// StoredTime returns the text of the time at which the server stored a record, see [Record]; empty if it is unknown.
func StoredTime(stored int64) string {
	if stored == 0 {
		return ""
	}
	return FormatTime(time.Unix(0, stored))
}

// ParseTime reads the text of a time in an event; invalid text is the zero time.
func ParseTime(text string) time.Time {
	t, _ := time.Parse(time.RFC3339Nano, text) // an error comes with the zero time
	return t
}

// Writer makes the events of one executor within one epoch of a run, with ids and a sequence without gaps. It is a
// value without I/O; the owner advances it with Commit once the event is durable, so that a refused event leaves no
// gap.
type Writer struct {
	// Fleet, Run and Executor the events are of.
	Fleet, Run, Executor string
	// Epoch held.
	Epoch Epoch
	// Last sequence that is durable.
	Last Sequence
}

// Event builds the event that follows offset events after the last durable one (0 for the next).
func (w *Writer) Event(data Data, turn int32, at time.Time, offset int) (*Event, error) {
	body, err := MarshalData(data)
	if err != nil {
		return nil, err
	}
	e := &Event{
		Source:          Source(w.Fleet, w.Executor),
		Type:            TypeOf(data.EventName()),
		Subject:         w.Run,
		Time:            FormatTime(at),
		Epoch:           w.Epoch,
		Sequence:        w.Last + Sequence(offset) + 1, //nolint:gosec // offset is a small count
		Turn:            turn,
		DataContentType: ContentTypeJSON,
		Data:            body,
	}
	e.Seal()
	return e, nil
}

// Seal sets the id of an executor's event whose other attributes are final, and returns its content hash. It is for
// callers that add attributes (traceparent, dataref) after [Writer.Event].
func (e *Event) Seal() Hash {
	content := e.ContentHash()
	e.ID = EventID(e.Subject, e.Epoch, e.Sequence, content)
	return content
}

// Commit advances the writer past an event that is durable.
func (w *Writer) Commit(e *Event) error {
	if e.Epoch != w.Epoch || e.Sequence != w.Last+1 {
		return fmt.Errorf("commit of event %s after epoch %d sequence %d", e.ID, w.Epoch, w.Last)
	}
	w.Last = e.Sequence
	return nil
}

// NewControl builds a control event of the daemon or an operator.
func NewControl(fleet, actor, run string, epoch Epoch, nonce string, data Data, at time.Time) (*Event, error) {
	body, err := MarshalData(data)
	if err != nil {
		return nil, err
	}
	return &Event{
		ID:              ControlID(run, epoch, nonce),
		Source:          Source(fleet, actor),
		Type:            TypeOf(data.EventName()),
		Subject:         run,
		Time:            FormatTime(at),
		Epoch:           epoch,
		DataContentType: ContentTypeJSON,
		Data:            body,
	}, nil
}

// MarshalData validates an event's data and returns its JSON, so that only valid data is written.
func MarshalData(data Data) ([]byte, error) {
	if err := Validate(data); err != nil {
		return nil, err
	}
	b, err := json.Marshal(data, json.Deterministic(true))
	if err != nil {
		return nil, DataErrorOf(data.EventName(), err)
	}
	return b, nil
}
