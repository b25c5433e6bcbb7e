package schema

// CallState is the state of an open call. docs/events.md has a table of the events that change it.
type CallState string

// States of an open call.
const (
	// CallRequested: no executor has begun it. An answer requests it, or tool.called says so; another tool.called begins
	// it. A call that is pure or idempotent needs no begin and may have run.
	CallRequested CallState = "requested"
	// CallAgain is a requested call that a person settled as rerun: the end of its turn does not abandon it.
	CallAgain CallState = "requested_again"
	// CallBegun: its executor may run it.
	CallBegun CallState = "begun"
	// CallInDoubt: the epoch or the timeline changed before an outcome was recorded; it must be settled.
	CallInDoubt CallState = "in_doubt"
	// CallHeld: in doubt and left to a person, by its policy or because the run waits for its settlement.
	CallHeld CallState = "held"
	// CallLate: in doubt, and the result of a fenced executor arrived and can be adopted.
	CallLate CallState = "late_result"
)

// Requested reports whether no executor has begun the call. The answer is false for a closed call.
func (s CallState) Requested() bool { return s == CallRequested || s == CallAgain }

// InDoubt reports whether the call must be settled.
func (s CallState) InDoubt() bool { return s == CallInDoubt || s == CallHeld || s == CallLate }

// doubt puts a call in doubt. A late result stays, and a hold call is left to a person.
func (c *OpenCall) doubt() {
	switch {
	case c.State == CallLate:
	case c.Replay == ReplayHold:
		c.State = CallHeld
	default:
		c.State = CallInDoubt
	}
}

// MayHaveRun reports whether an executor of an epoch before the given one may have run an open call: the call is in
// doubt, or its policy needs no begin. The latter matters to an executor with a stricter policy.
func (c *OpenCall) MayHaveRun(epoch Epoch) bool {
	return c.State.InDoubt() || c.State.Requested() && c.Replay.Rerunnable() && c.Epoch < epoch
}
