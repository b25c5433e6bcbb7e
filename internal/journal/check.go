package journal

import "fmt"

// Event is one event of a run as read back: in log order, only accepted ones.
type Event struct {
	Epoch, Sequence uint64
	// Kind is called or returned for a tool call's two events, else anything.
	Kind string
	Call Call
}

// Facts are the results of the checker; without Problems the proof holds.
type Facts struct {
	// Acknowledged boundaries, how many of them came back, and how many did not.
	Acknowledged, Recovered, Lost int
	// Executions of tools, Calls they belong to, and calls that were run twice although they must not be.
	Executions, Calls, Twice int
	// Reruns are permitted executions: the call was in doubt, and its policy or a person allowed the rerun.
	Reruns int
	// Takeovers that were answered.
	Takeovers int
	// Problems are the violations, in words.
	Problems []string
}

func (f *Facts) problem(format string, args ...any) {
	f.Problems = append(f.Problems, fmt.Sprintf(format, args...))
}

type runCall struct {
	run string
	Call
}

type place struct {
	run             string
	epoch, sequence uint64
}

// Check compares a history with the recovered events, by run. It goes through both in order and trusts neither:
//
//   - every acknowledged boundary is among the recovered events, with the same content;
//   - the recovered events of an epoch have no gap, epochs increase, and there are no duplicates;
//   - a takeover continues from no earlier place than the last boundary acknowledged before its request, and
//     no event of the older epoch that began after it is acknowledged;
//   - a tool whose result was acknowledged is not run again; a call that had begun is run again only after a
//     takeover, and then only if its policy is pure or idempotent, or a person has allowed it.
func Check(history []Entry, recovered map[string][]Event) Facts {
	var f Facts
	events := make(map[place]Event)
	for run, list := range recovered {
		var epoch, sequence uint64
		for i, e := range list {
			at := place{run, e.Epoch, e.Sequence}
			if _, twice := events[at]; twice {
				f.problem("%s: epoch %d sequence %d is recovered twice", run, e.Epoch, e.Sequence)
				continue
			}
			events[at] = e
			switch {
			case e.Epoch < epoch:
				f.problem("%s: event %d is of epoch %d, after one of epoch %d", run, i, e.Epoch, epoch)
			case e.Epoch > epoch && e.Sequence != 1, e.Epoch == epoch && e.Sequence != sequence+1:
				f.problem("%s: sequence %d of epoch %d follows %d of epoch %d", run, e.Sequence, e.Epoch, sequence, epoch)
			}
			epoch, sequence = e.Epoch, e.Sequence
		}
	}
	f.acknowledged(history, events)
	f.takeovers(history)
	f.executions(history)
	return f
}

func (f *Facts) acknowledged(history []Entry, events map[place]Event) {
	seen := make(map[place]bool)
	for _, h := range history {
		if h.Op != Ack {
			continue
		}
		at := place{h.Run, h.Epoch, h.Sequence}
		if seen[at] {
			f.problem("%s: epoch %d sequence %d was acknowledged twice", h.Run, h.Epoch, h.Sequence)
			continue
		}
		seen[at] = true
		f.Acknowledged++
		e, ok := events[at]
		if !ok {
			f.Lost++
			f.problem("%s: epoch %d sequence %d was acknowledged and is lost", h.Run, h.Epoch, h.Sequence)
			continue
		}
		f.Recovered++
		if (h.Kind == KindCalled || h.Kind == KindReturned) && (e.Kind != h.Kind || e.Call != h.Call) {
			f.problem("%s: epoch %d sequence %d was acknowledged as %s %s and came back as %s %s",
				h.Run, h.Epoch, h.Sequence, h.Kind, h.Call, e.Kind, e.Call)
		}
	}
}

func (f *Facts) takeovers(history []Entry) {
	for i, h := range history {
		if h.Op != Resumed {
			continue
		}
		f.Takeovers++
		for j, a := range history {
			if a.Op != Ack || a.Run != h.Run || a.Epoch > h.Epoch {
				continue
			}
			later := a.Epoch == h.Epoch && a.Sequence > h.Sequence
			switch {
			case later && a.At < h.Start:
				f.problem("%s: the takeover went on from epoch %d sequence %d, although %d was acknowledged before",
					h.Run, h.Epoch, h.Sequence, a.Sequence)
			case later && j > i:
				f.problem("%s: epoch %d sequence %d was acknowledged after the takeover from sequence %d",
					h.Run, a.Epoch, a.Sequence, h.Sequence)
			}
		}
	}
}

// execution is the known state of a call while the history is read.
type execution struct {
	begun, returned bool
	// takenOver and settled since it last began.
	takenOver, settled bool
}

func (f *Facts) executions(history []Entry) {
	calls := make(map[runCall]*execution)
	for _, h := range history {
		key := runCall{h.Run, h.Call}
		c := calls[key]
		if c == nil {
			c = new(execution)
			calls[key] = c
		}
		switch {
		case h.Op == Ack && h.Kind == KindReturned:
			c.returned = true
		case h.Op == Settled && h.Note == Rerun:
			c.settled = true
		case h.Op == Resumed:
			for key, c := range calls {
				c.takenOver = c.takenOver || key.run == h.Run
			}
		case h.Op == Begin:
			f.Executions++
			if c.begun {
				f.again(h, c)
			} else {
				f.Calls++
			}
			c.begun, c.takenOver, c.settled = true, false, false
		}
	}
}

// again judges an execution that is not a call's first.
func (f *Facts) again(h Entry, c *execution) {
	why := ""
	switch {
	case c.returned:
		why = "although its result was recorded"
	case !c.takenOver:
		why = "by the same executor"
	case h.Replay != "pure" && h.Replay != "idempotent" && !c.settled:
		why = "although no person settled it as rerun"
	default:
		f.Reruns++
		return
	}
	f.Twice++
	f.problem("%s: %s (%s) was run again %s", h.Run, h.Call, h.Name, why)
}
