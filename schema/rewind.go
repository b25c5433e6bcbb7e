package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
)

// MaxRewinds bounds the abandoned ranges before the record at which a run continues.
const MaxRewinds = 64

// Superseded is a range of a run's records that a rewind abandoned: they stay in the log, and their content is not
// part of the state.
type Superseded struct {
	// After is the number of the record after which the run continues, Through that of the last abandoned record.
	// Records are counted from 1, as in [PointRecord].
	After   int64 `json:"after"`
	Through int64 `json:"through"`
	// Epoch and Time of the rewind.
	Epoch Epoch  `json:"epoch"`
	Time  string `json:"time,omitzero" check:"time"`
	// Tokens that the range used. They stay in the run's usage, but do not count towards its limit.
	Tokens int64 `json:"tokens,omitzero" check:"min=0"`
}

// superseded reports whether a rewind abandoned record n.
func superseded(ranges []Superseded, n int64) bool {
	return slices.ContainsFunc(ranges, func(r Superseded) bool { return r.After < n && n <= r.Through })
}

// LeftBehind reports whether a rewind abandoned a record. Records are counted from 1, as in [PointRecord].
func (h *Head) LeftBehind(record int64) bool { return superseded(h.Superseded, record) }

// SentSignal returns the signal that an applied record put into the head, if it did.
func SentSignal(h *Head, v Verdict) []OpenSignal {
	if _, sent := v.Data.(*SignalSentData); !sent || v.Kind != Applied {
		return nil
	}
	return h.Signals[len(h.Signals)-1:]
}

// RewindTo returns the point after one of a run's own records at which it continues, for run.resumed with the reason
// rewind. later are the signals that were sent after it, which are open again.
func RewindTo(point Point, head *Head, later []OpenSignal) (*Base, error) {
	b := BaseOf(point, head.Records, head)
	b.Head.Superseded = slices.Clone(head.Superseded)
	b.Head.Signals = append(slices.Clone(head.Signals), later...)
	if n := len(b.Head.Signals); n > MaxSignals {
		return nil, fmt.Errorf("%d signals would be open after record %d, at most %d can be: continue after a later record", n, head.Records, MaxSignals)
	}
	if len(b.Head.Superseded) >= MaxRewinds {
		return nil, tooManyRanges(head.Records)
	}
	return b, b.Fits()
}

func tooManyRanges(record int64) error {
	return fmt.Errorf("rewinds abandoned %d ranges before record %d, the maximum: continue after an earlier record, or fork the run", MaxRewinds, record)
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
		// A range ends before its rewind, which is a record itself.
		if r.After < max(end, 1) || r.Through < r.After || r.Through >= to.Records || r.Epoch < 1 || r.Epoch > to.Head.Epoch {
			return rejected(ReasonInvalidData, "records %d to %d cannot be abandoned at record %d", r.After+1, r.Through, to.Records)
		}
		end = r.Through + 1
	}
	return Verdict{}
}

// rewind continues after an earlier record of the run. The head's content fields return to their values there. Its
// log fields, and its usage, do not. at is the time of the event, now the server's time.
func (h *Head) rewind(to *Base, at, now string) {
	h.goOnFrom(to, now)
	h.Counts.Errors, h.Counts.Unknown = to.Head.Counts.Errors, to.Head.Counts.Unknown
	h.Superseded = append(slices.Clone(to.Head.Superseded), Superseded{
		After: to.Records, Through: h.Records, Epoch: h.Epoch, Time: at, Tokens: max(0, h.Usage.Tokens()-to.Head.Usage.Tokens()),
	})
	h.Signals = slices.Clone(to.Head.Signals)
	h.endSignalWaits()
	h.Limit, h.LimitTurn, h.CancelRequested = to.Head.Limit, to.Head.LimitTurn, false
}

// TimelineStart is when the present timeline of the run began: at its start, or at its latest rewind.
func (h *Head) TimelineStart() string {
	if n := len(h.Superseded); n > 0 {
		return h.Superseded[n-1].Time
	}
	return h.StartedAt
}

// scope of the idempotency keys of new calls; see [OpenCall]. It is empty while the run's id is unique enough.
func (h *Head) scope() string {
	if at := h.timeline(); at != "" {
		return h.Run + at
	}
	return ""
}

// timeline distinguishes what follows a rewind from the records that rewinds abandoned; empty before the first one.
func (h *Head) timeline() string {
	if n := len(h.Superseded); n > 0 {
		return fmt.Sprintf("@%d", h.Superseded[n-1].Epoch)
	}
	return ""
}

// DerivedID is an id that each executor of the run derives by itself, so that it is the same after a takeover. Behind a
// rewind it differs from those in the abandoned records.
func (h *Head) DerivedID(prefix, name string) string {
	at := h.timeline()
	if len(prefix)+len(name)+len(at) > MaxIdentifier {
		sum := sha256.Sum256([]byte(name))
		name = "sha256-" + hex.EncodeToString(sum[:])
	}
	return prefix + name + at
}
