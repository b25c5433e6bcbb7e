package schema

import (
	"fmt"
	"slices"
)

// MaxRewinds bounds the ranges that rewinds left behind in front of the record that a run goes on behind.
const MaxRewinds = 64

// Superseded is a range of a run's records that a rewind left behind: they stay in the log, and their content is not part of the state.
type Superseded struct {
	// After is the number of the record that the run went on behind, Through that of the last record left behind. Records are counted
	// from 1, as [PointRecord] counts them.
	After   int64 `json:"after"`
	Through int64 `json:"through"`
	// Epoch of the rewind.
	Epoch Epoch `json:"epoch"`
}

// superseded reports whether a rewind left record n behind.
func superseded(ranges []Superseded, n int64) bool {
	return slices.ContainsFunc(ranges, func(r Superseded) bool { return r.After < n && n <= r.Through })
}

// LeftBehind reports whether a rewind left a record behind. Records are counted from 1, as [PointRecord] counts them.
func (h *Head) LeftBehind(record int64) bool { return superseded(h.Superseded, record) }

// RewindTo returns where a run goes on behind one of its own records, for run.resumed with the reason rewind. later has seen all records
// behind it: calls that were begun there are in doubt, and signals that were sent there are open again. Other than in a fork, a call
// that is still requested stays so, because the takeover itself fences the executor that could begin it.
func RewindTo(point Point, head *Head, later *Later) (*Base, error) {
	b := BaseOf(point, head.Records, head, later.begun)
	b.Head.Superseded = slices.Clone(head.Superseded)
	b.Head.Signals = append(slices.Clone(head.Signals), later.signals...)
	if n := len(b.Head.Signals); n > MaxSignals {
		return nil, fmt.Errorf("%d signals would be open behind record %d, at most %d can be: go on behind a later record", n, head.Records, MaxSignals)
	}
	if len(b.Head.Superseded) >= MaxRewinds {
		return nil, tooManyRanges(head.Records)
	}
	return b, nil
}

func tooManyRanges(record int64) error {
	return fmt.Errorf("rewinds left %d ranges behind in front of record %d, the most there can be: go on behind an earlier record, or fork the run", MaxRewinds, record)
}

// mayRewind checks a rewind against the fold.
func (h *Head) mayRewind(to *Base) Verdict {
	switch {
	case to.Run != h.Run:
		return rejected(ReasonInvalidData, "a rewind to run %s, the run is %s", to.Run, h.Run)
	case to.Records > h.Records || to.Head.Records != to.Records:
		return rejected(ReasonStaleTakeover, "a rewind to record %d, the run has %d", to.Records, h.Records)
	case len(to.Head.Superseded) >= MaxRewinds:
		return rejected(ReasonTooMany, "%s", tooManyRanges(to.Records))
	}
	end := int64(0)
	for _, r := range to.Head.Superseded {
		// A range ends in front of its rewind, which is a record itself.
		if r.After < max(end, 1) || r.Through < r.After || r.Through >= to.Records || r.Epoch < 1 || r.Epoch > to.Head.Epoch {
			return rejected(ReasonInvalidData, "records %d to %d cannot have been left behind at record %d", r.After+1, r.Through, to.Records)
		}
		end = r.Through + 1
	}
	return Verdict{}
}

// rewind goes on behind an earlier record of the run. What the head says of the content is as it was there. What it says of the log,
// and the tokens used, goes on.
func (h *Head) rewind(to *Base) {
	h.goOnFrom(to)
	h.Counts.Errors, h.Counts.Unknown = to.Head.Counts.Errors, to.Head.Counts.Unknown
	h.Superseded = append(slices.Clone(to.Head.Superseded), Superseded{After: to.Records, Through: h.Records, Epoch: h.Epoch})
	h.Signals = slices.Clone(to.Head.Signals)
	h.Limit, h.LimitTurn, h.CancelRequested = to.Head.Limit, to.Head.LimitTurn, false
}

// scope of the idempotency keys of new calls; see [OpenCall]. It is empty as long as the run's id will do.
func (h *Head) scope() string {
	if n := len(h.Superseded); n > 0 {
		return fmt.Sprintf("%s@%d", h.Run, h.Superseded[n-1].Epoch)
	}
	return ""
}

// Expect tells a state that has no event yet which records are left behind by rewinds among the records that it is about to fold: those
// of a head at or behind the last of them. A state that meets a rewind it does not expect is [State.Stale].
func (s *State) Expect(ranges []Superseded) { s.expected = ranges }

// Keeps reports whether the state has content of the record that was applied last, given what became of it.
func (s *State) Keeps(v Verdict) bool {
	switch {
	case v.Kind == Applied && superseded(s.expected, s.Head.Records):
		return ofOthers(v.Data)
	case v.Kind == Evidence:
		return !superseded(s.expected, s.Head.Records)
	}
	return v.Kind == Applied
}

// ofOthers reports whether an event is a fact of others, which stays when a rewind leaves the event behind.
func ofOthers(d Data) bool {
	switch d.(type) {
	case *RunResumedData, *SignalSentData, *HandoffOfferedData, *HandoffAcceptedData, *HandoffDeclinedData, *HandoffClosedData:
		return true
	}
	return false
}

// leftBehind follows a record that a rewind leaves behind.
func (s *State) leftBehind(v Verdict) {
	resumed, takeover := v.Data.(*RunResumedData)
	switch {
	case v.Kind != Applied || !ofOthers(v.Data):
	case takeover:
		s.Takeovers = append(s.Takeovers, *resumed)
	default:
		s.add(v)
	}
}

// rewound follows a rewind: what it left behind was not added.
func (s *State) rewound(to *Base) {
	want := Superseded{After: to.Records, Through: s.Head.Superseded[len(s.Head.Superseded)-1].Through}
	if !superseded(s.expected, want.Through) && want.After < want.Through {
		s.Stale = true
	}
}
