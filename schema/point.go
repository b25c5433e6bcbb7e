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
	// PointStep is before a tool call was decided about or begun. The calls of a run are its steps, counted from 1 in
	// the order of recording, those of an answer in its order. At that point a call is not recorded if the event that
	// recorded it also began it; a call that an answer requested is, and so are the calls after it.
	PointStep PointKind = "step"
	// PointResult is after the outcome of a step: the call returned, failed, was settled or abandoned. Other calls of
	// its answer are as they were then.
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
//	seq:120  seq:2.14  turn:7  step:3  result:3  checkpoint:5120  mark:before-deploy  event:ID  record:125  end
type Point struct {
	Kind PointKind
	// Number is the sequence, turn, step, revision or message.
	Number uint64
	// Epoch of a sequence; 0 means the only epoch that has it.
	Epoch Epoch
	// Name is the mark's name or the event's id.
	Name string
}

// MaxPoint bounds the text form of a point, in bytes.
const MaxPoint = 512

// ErrPoint is returned for text that is no point; the message lists the valid forms.
var ErrPoint = errors.New("not a point of a run: use seq:N, seq:EPOCH.N, turn:N, step:N, result:N, checkpoint:REVISION, mark:NAME, event:ID, record:N or end")

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
	case PointTurn, PointCheckpoint, PointStep, PointResult, PointRecord:
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
//	Before(head, record) ── head.Apply(record) ── Behind(head, verdict)
//
// Both report whether the point is there: before the record, or after it. The finder of a checkpoint searches for the
// checkpoint's position, see [PositionFinder].
type Finder struct {
	point Point
	at    Position
	// superseded are the records that are not searched for turns and steps.
	superseded []Superseded
	// records of the run before the current one.
	records int64
	// step is the call of a step, once an answer has requested it.
	step CallKey
	// pending: superseded records requested the call of the step. The rewind after them decides whether it still is
	// requested.
	pending bool
}

// NewFinder returns a finder of a point that the records themselves show: all kinds but checkpoint. superseded is
// from the run's head: turns and steps after a rewind continue the numbers of those it abandoned.
func NewFinder(p Point, superseded []Superseded) *Finder {
	f := &Finder{point: p}
	if p.Kind == PointTurn || p.Kind == PointStep || p.Kind == PointResult {
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
func (f *Finder) Before(h *Head, p *Prepared) bool {
	f.records = h.Records
	if f.point.Kind == PointResult {
		return false
	}
	if superseded(f.superseded, h.Records+1) {
		enters := !f.pending && f.requested(h)
		f.pending = f.pending || enters
		return enters
	}
	if f.pending {
		return false
	}
	switch f.point.Kind {
	case PointStep:
		return f.requested(h) || p.name == ToolCalled && h.Counts.ToolCalls+1 == int64(f.point.Number) //nolint:gosec // a count
	case PointTurn:
		// The next turn also ends a turn that has an answer.
		return f.point.Number == 0 && h.Turn == 0 && h.Status != "" ||
			f.point.Number != 0 && uint64(h.Turn) == f.point.Number && h.TurnOpen && h.TurnAnswered //nolint:gosec // turns are from 1
	default:
		return false
	}
}

// Pending reports whether the place that Before found last is not decided yet.
func (f *Finder) Pending() bool { return f.pending }

// Confirmed reports whether the match of Before holds: the fold accepted the record.
func (f *Finder) Confirmed(v Verdict) bool {
	if f.pending {
		d, ok := v.Data.(*RunResumedData)
		if !ok || v.Kind != Applied || superseded(f.superseded, f.records+1) {
			return false
		}
		f.pending = false
		return d.To != nil && slices.ContainsFunc(d.To.Head.OpenCalls, func(c OpenCall) bool { return c.CallKey == f.step && c.doubtful() })
	}
	switch {
	case v.Kind != Applied:
		return false
	case f.step.ToolCallID != "":
		return v.Call == f.step || slices.Contains(v.Abandoned, f.step)
	case f.point.Kind == PointTurn:
		_, start := v.Data.(*TurnStartedData)
		_, end := v.Data.(*TurnEndedData)
		return v.Opened || start && !v.Superseded || end && f.point.Number == 0
	default:
		return !v.Begun
	}
}

// requested reports whether the call of the step is requested, and not begun.
func (f *Finder) requested(h *Head) bool {
	return f.step.ToolCallID != "" && slices.ContainsFunc(h.OpenCalls, func(c OpenCall) bool { return c.CallKey == f.step && c.State.Requested() })
}

// AtEnd reports whether the point is after all records, given the head there and that no record matched.
func (f *Finder) AtEnd(h *Head) bool {
	return f.at.ID == "" && f.point.Kind == PointEnd || f.point.Kind == PointTurn && f.point.Number == 0 && h.Turn == 0 ||
		f.point.Kind == PointStep && f.requested(h)
}

// Behind reports whether the point is after the record that was applied last. Call it once for each record, unless
// Before returned true.
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
	case PointStep:
		return f.answered(h, v)
	case PointResult:
		return f.closed(h, v)
	case PointMark:
		d, ok := v.Data.(*CheckpointMarkedData)
		return ok && !d.Fork && d.Name == f.point.Name
	default:
		return false
	}
}

// closed notes the step's call once it is recorded, and reports whether it has an outcome.
func (f *Finder) closed(h *Head, v Verdict) bool {
	if f.step.ToolCallID == "" {
		n := int64(f.point.Number) - (h.Counts.ToolCalls - int64(len(v.Calls))) //nolint:gosec // a count
		_, called := v.Data.(*ToolCalledData)
		switch {
		case n >= 1 && n <= int64(len(v.Calls)):
			f.step = v.Calls[n-1]
		case called && !v.Begun && h.Counts.ToolCalls == int64(f.point.Number): //nolint:gosec // a count
			f.step = v.Call
		default:
			return false
		}
	}
	return !slices.ContainsFunc(h.OpenCalls, func(c OpenCall) bool { return c.CallKey == f.step })
}

// answered notes the step's call once an answer requests it. The point is right after the answer if the answer says
// that the call cannot be made.
func (f *Finder) answered(h *Head, v Verdict) bool {
	n := int64(f.point.Number) - (h.Counts.ToolCalls - int64(len(v.Calls))) //nolint:gosec // a count
	if n < 1 || n > int64(len(v.Calls)) {
		return false
	}
	f.step = v.Calls[n-1]
	return !f.requested(h)
}
