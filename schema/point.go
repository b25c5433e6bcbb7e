package schema

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// PointKind is how a [Point] names a place in a run.
type PointKind string

// Kinds of points.
const (
	// PointEnd is the run's last event; the zero Point.
	PointEnd PointKind = ""
	// PointSequence is after the executor's event with a sequence, of an epoch or of the only epoch that has it.
	PointSequence PointKind = "seq"
	// PointTurn is after the end of a turn; turn 0 is before the first turn.
	PointTurn PointKind = "turn"
	// PointCheckpoint is the position of the checkpoint at a revision of its bucket.
	PointCheckpoint PointKind = "checkpoint"
	// PointMark is after the latest event checkpoint.marked of a name.
	PointMark PointKind = "mark"
	// PointResult is after the outcome of a tool call: it returned, failed, was settled or abandoned. The calls of a run
	// are counted from 1 in the order of recording, those of an answer in its order. Other calls of its answer are as they
	// were then.
	PointResult PointKind = "result"
	// PointEvent is after the message with an id, as in [Position]: any event, control events and refused ones
	// included.
	PointEvent PointKind = "event"
	// PointRecord is after the run's message with a number, counted from 1. Refused messages and duplicates count
	// too. A fork names its base by it, because a duplicate has the same id as the first message.
	PointRecord PointKind = "record"
)

// Point names a place in a run's history, at which the run can be restored: everything up to it and nothing after it.
// Requests and commands use its text form.
//
//	seq:120  seq:2.14  turn:7  result:3  checkpoint:5120  mark:before-deploy  event:ID  record:125  end
type Point struct {
	Kind PointKind
	// Number is the sequence, turn, call, revision or message.
	Number uint64
	// Epoch of a sequence; 0 means the only epoch that has it.
	Epoch Epoch
	// Name is the mark's name or the event's id.
	Name string
}

// MaxPoint bounds the text form of a point, in bytes.
const MaxPoint = 512

// ErrPoint is returned for text that is no point; the message lists the valid forms.
var ErrPoint = errors.New("not a point of a run: use seq:N, seq:EPOCH.N, turn:N, result:N, checkpoint:REVISION, mark:NAME, event:ID, record:N or end")

// ParsePoint reads the text form of a point. Errors wrap [ErrPoint].
func ParsePoint(s string) (Point, error) {
	if s == "" || s == "end" {
		return Point{}, nil
	}
	bad := func(why string) (Point, error) {
		return Point{}, fmt.Errorf("%.80q: %s: %w", s, why, ErrPoint)
	}
	kind, rest, ok := strings.Cut(s, ":")
	if !ok {
		return bad("it has no kind")
	}
	p := Point{Kind: PointKind(kind)}
	if len(s) > MaxPoint {
		return bad(fmt.Sprintf("it has %d bytes, at most %d are allowed", len(s), MaxPoint))
	}
	switch p.Kind {
	case PointMark, PointEvent:
		if rest == "" {
			return bad("the name is missing")
		}
		p.Name = rest
		return p, nil
	case PointSequence:
		if epoch, sequence, both := strings.Cut(rest, "."); both {
			n, err := strconv.ParseUint(epoch, 10, 32)
			if err != nil || n == 0 {
				return bad("the epoch is no number from 1")
			}
			p.Epoch, rest = Epoch(n), sequence
		}
	case PointTurn, PointCheckpoint, PointResult, PointRecord:
	default:
		return bad("its kind is not known")
	}
	n, err := strconv.ParseUint(rest, 10, 64)
	switch {
	case err != nil:
		return bad("it needs a number")
	case n == 0 && p.Kind != PointTurn:
		return bad("numbers begin with 1")
	}
	p.Number = n
	return p, nil
}

// String is the text form.
func (p Point) String() string {
	switch p.Kind {
	case PointEnd:
		return "end"
	case PointMark, PointEvent:
		return string(p.Kind) + ":" + p.Name
	case PointSequence:
		if p.Epoch != 0 {
			return fmt.Sprintf("seq:%d.%d", p.Epoch, p.Number)
		}
	default:
	}
	return fmt.Sprintf("%s:%d", p.Kind, p.Number)
}

// Moment is the place where a point of a run was found.
type Moment struct {
	// Point as requested.
	Point string `json:"point"`
	// Records counts the run's messages up to it, accepted or not, from the run's first.
	Records int64 `json:"records"`
	// Position of the last of them, and when the server stored it; empty if that is unknown.
	Position Position `json:"position"`
	Time     string   `json:"time,omitzero"`
}

// Finder searches a run's records, given in log order, for a point.
//
//	Before(head) ── head.Apply(record) ── Behind(head, verdict)
//
// Both report whether the point is there: before the record, or after it. The finder of a checkpoint searches for the
// checkpoint's position, see [PositionFinder].
type Finder struct {
	point Point
	at    Position
	// superseded are the records that are not searched for turns and results.
	superseded []Superseded
	// call is the call of a result, once it is recorded.
	call CallKey
}

// NewFinder returns a finder of a point that the records themselves show: all kinds but checkpoint. superseded is
// from the run's head: turns and calls after a rewind continue the numbers of those it abandoned.
func NewFinder(p Point, superseded []Superseded) *Finder {
	f := &Finder{point: p}
	if p.Kind == PointTurn || p.Kind == PointResult {
		f.superseded = superseded
	}
	return f
}

// PositionFinder returns a finder of the place after the record at a position.
func PositionFinder(at Position) *Finder { return &Finder{at: at} }

// Many reports whether a run at an epoch can have the point more than once: then the search must go on after the
// first match.
func (f *Finder) Many(epoch Epoch) bool {
	return f.point.Kind == PointSequence && f.point.Epoch == 0 && epoch > 1
}

// Before reports whether the point may be before the record that is about to be applied; [Finder.Confirmed] decides.
// The next turn also ends a turn that has an answer.
func (f *Finder) Before(h *Head) bool {
	if f.point.Kind != PointTurn || superseded(f.superseded, h.Records+1) {
		return false
	}
	if f.point.Number == 0 {
		return h.Turn == 0 && h.Status != ""
	}
	return uint64(h.Turn) == f.point.Number && h.TurnOpen && h.TurnAnswered //nolint:gosec // turns are from 1
}

// Confirmed reports whether the match of Before holds: the fold accepted the record, and it ends the turn.
func (f *Finder) Confirmed(v Verdict) bool {
	_, start := v.Data.(*TurnStartedData)
	_, end := v.Data.(*TurnEndedData)
	return v.Kind == Applied && (v.Opened || start && !v.Superseded || end && f.point.Number == 0)
}

// AtEnd reports whether the point is after all records, given the head there and that no record matched.
func (f *Finder) AtEnd(h *Head) bool {
	return f.at.ID == "" && f.point.Kind == PointEnd || f.point.Kind == PointTurn && f.point.Number == 0 && h.Turn == 0
}

// Behind reports whether the point is after the record that was applied last. Call it once for each record.
func (f *Finder) Behind(h *Head, v Verdict) bool {
	if f.at.ID != "" {
		return h.Position == f.at
	}
	if f.point.Kind == PointEvent {
		return h.Position.ID == f.point.Name && v.Kind != Replayed && v.Kind != Regressed
	}
	if f.point.Kind == PointRecord {
		return v.Kind != Skipped && uint64(h.Records) == f.point.Number //nolint:gosec // a count
	}
	if v.Kind != Applied || superseded(f.superseded, h.Records) {
		return false
	}
	switch f.point.Kind {
	case PointSequence:
		return v.Event.Sequence == Sequence(f.point.Number) && (f.point.Epoch == 0 || max(v.Event.Epoch, 1) == f.point.Epoch)
	case PointTurn:
		return v.Over && f.point.Number != 0 && uint64(h.Turn) == f.point.Number //nolint:gosec // turns are from 1
	case PointResult:
		return f.closed(h, v)
	case PointMark:
		d, ok := v.Data.(*CheckpointMarkedData)
		return ok && !d.Fork && d.Name == f.point.Name
	default:
		return false
	}
}

// closed notes the call of the result once it is recorded, and reports whether it has an outcome.
func (f *Finder) closed(h *Head, v Verdict) bool {
	if f.call.ToolCallID == "" {
		n := int64(f.point.Number) - (h.Counts.ToolCalls - int64(len(v.Calls))) //nolint:gosec // a count
		_, called := v.Data.(*ToolCalledData)
		switch {
		case n >= 1 && n <= int64(len(v.Calls)):
			f.call = v.Calls[n-1]
		case called && !v.Begun && h.Counts.ToolCalls == int64(f.point.Number): //nolint:gosec // a count
			f.call = v.Call
		default:
			return false
		}
	}
	return !slices.ContainsFunc(h.OpenCalls, func(c OpenCall) bool { return c.CallKey == f.call })
}
