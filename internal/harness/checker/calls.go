package checker

import (
	"maps"
	"slices"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// expand replaces an operation that publishes several events by one per event: the acknowledged ones are ok, and
// later ones in the same epoch have an unknown outcome.
func (c *runCheck) expand() {
	published := map[epochSequence]bool{}
	for _, op := range c.ops {
		if op.Kind == Publish && op.maybe() && op.Sequence != 0 {
			published[epochSequence{op.Epoch, op.Sequence}] = true
		}
	}
	at := map[epochSequence]string{}
	for i := range c.f.Log {
		if e, err := schema.Decode(c.f.Log[i].Header, c.f.Log[i].Body); err == nil && e.Sequence != 0 {
			at[epochSequence{e.Epoch, e.Sequence}] = e.ID
		}
	}
	var all []*Op
	for _, op := range c.ops {
		all = append(all, op)
		if op.Kind != Call || op.Epoch == 0 {
			continue
		}
		for s := op.Sequence; ; s++ {
			place := epochSequence{op.Epoch, s}
			event, there := at[place]
			if s > op.Last && (!there || published[place]) {
				break
			}
			published[place] = true
			one := &Op{
				ID: op.ID, Actor: op.Actor, Kind: Publish, Run: op.Run, Start: op.Start, End: op.End, Outcome: OK, Epoch: op.Epoch, Sequence: s,
				Event: event, Detail: op.Detail, Tool: op.Tool,
			}
			if s > op.Last || op.End == 0 {
				one.Outcome = Unknown
			}
			if !there {
				one.Event = "an event of a tool call"
			}
			all = append(all, one)
		}
	}
	c.ops = all
}

// epochSequence is an executor event's place among its own.
type epochSequence struct {
	epoch    schema.Epoch
	sequence schema.Sequence
}

// callStory is one call in the log.
type callStory struct {
	// called is the epoch in which it was recorded; free says that an answer requests it, and that it may run without
	// a begin.
	called schema.Epoch
	replay schema.Replay
	free   bool
	// begun are the epochs in which it began, or in which its executor ran it again.
	begun []schema.Epoch
	// reruns are the epochs in which it was settled as rerun, by a person if byPerson says so.
	reruns   []schema.Epoch
	byPerson []bool
	// closed is the epoch in which it ended, result its outcome.
	closed schema.Epoch
	result string
	late   bool
}

// stories reads the log for calls. Violations by one event alone are reported at once.
func (c *runCheck) stories() map[string]*callStory {
	stories := map[string]*callStory{}
	of := func(id string) *callStory {
		if stories[id] == nil {
			stories[id] = new(callStory)
		}
		return stories[id]
	}
	epoch := schema.Epoch(1)
	for i := range c.log {
		x := &c.log[i]
		if x.event == nil || x.counts == 0 {
			continue
		}
		if x.request != "" {
			epoch = max(epoch, x.event.Epoch)
		}
		data, err := schema.ParseData(x.event)
		if err != nil {
			continue
		}
		switch d := data.(type) {
		case *schema.TurnAnsweredData:
			for i := range d.Calls {
				s := of(d.Calls[i].ToolCallID)
				s.called, s.replay, s.free = epoch, d.Calls[i].Replay, d.Calls[i].Replay.Rerunnable()
			}
		case *schema.ToolCalledData:
			s := of(d.ToolCallID)
			if s.called == 0 {
				s.called, s.replay = epoch, d.Replay
			}
			if !d.Requested {
				s.begun, s.free = append(s.begun, epoch), false
			}
		case *schema.ToolReturnedData:
			if x.evidence {
				of(d.ToolCallID).late = true
			} else {
				of(d.ToolCallID).closed, of(d.ToolCallID).result = epoch, string(d.Result)
			}
		case *schema.ToolFailedData:
			if !x.evidence {
				of(d.ToolCallID).closed = epoch
			}
		case *schema.ToolSettledData:
			s := of(d.ToolCallID)
			if d.How != schema.SettledRerun {
				s.closed, s.result = epoch, string(d.Result)
				continue
			}
			person := x.event.IsControl()
			if s.late && !person {
				c.add(RuleCalls, appendOps(nil, x.ops), "call %s is run again at %d, and its late result was there", d.ToolCallID, x.rec.Stream)
			}
			if !person {
				s.begun = append(s.begun, epoch)
			}
			s.reruns, s.byPerson, s.late = append(s.reruns, epoch), append(s.byPerson, person), false
		}
	}
	return stories
}

// calls checks the rules of tool calls:
//   - A tool runs once for each begin and each settlement as rerun of its call, in that epoch. Where the policy leaves the settlement
//     to a person, a person settles.
//   - A pure or idempotent call of an answer runs in any epoch until its outcome is recorded.
//   - A closed call does not run. Its recorded result is one that its tool returned.
//   - A tool that can be asked about a call has its effect once.
func (c *runCheck) calls() {
	if c.opts.Damaged[c.f.Run] {
		return
	}
	runs := map[string][]*Op{}
	for _, op := range c.ops {
		if op.Kind == Execute {
			runs[op.Tool] = append(runs[op.Tool], op)
		}
	}
	stories := c.stories()
	for _, id := range slices.Sorted(maps.Keys(runs)) {
		s := stories[id]
		if s == nil || s.called == 0 {
			c.add(RuleCalls, ids(runs[id]), "the tool of call %s ran, and the call is not in the log", id)
			continue
		}
		c.runsOf(id, s, runs[id])
		c.whenRun(id, s, runs[id])
	}
}

// proofLasts is how long after the takeover that ended its epoch the tool of a guarded call may begin: the validity
// of its executor's proof of the epoch, and a moment to begin. See
// docs/decisions/0044-tools-begin-after-a-fresh-acknowledgement.md.
const proofLasts = 2500 * time.Millisecond

// whenRun compares the times at which the tool of a hold or verify call ran with the epochs: none begins once its
// epoch is over, and none after one of a later epoch.
func (c *runCheck) whenRun(id string, s *callStory, runs []*Op) {
	if s.replay.Rerunnable() {
		return
	}
	for _, op := range runs {
		for _, over := range c.ops {
			if over.Kind == Takeover && over.done() && over.Answer != nil && over.Answer.Epoch > op.Epoch && op.Start > over.End+int64(proofLasts) {
				c.add(RuleCalls, []int64{over.ID, op.ID}, "the tool of call %s, policy %s, began in epoch %d, %s after it was known that epoch %d stands",
					id, s.replay, op.Epoch, time.Duration(op.Start-over.End), over.Answer.Epoch)
				break
			}
		}
		for _, later := range runs {
			if later.Epoch > op.Epoch && op.Start > later.Start {
				c.add(RuleCalls, []int64{later.ID, op.ID}, "the tool of call %s, policy %s, began in epoch %d after it had begun in epoch %d", id, s.replay, op.Epoch, later.Epoch)
				break
			}
		}
	}
}

// runsOf compares the runs of one call's tool with the log.
func (c *runCheck) runsOf(id string, s *callStory, runs []*Op) {
	slices.SortStableFunc(runs, func(a, b *Op) int { return compare(int64(a.Epoch), int64(b.Epoch)) })
	effects := 0
	given := s.result == ""
	for i, op := range runs {
		if op.Outcome == OK {
			effects++
		}
		given = given || op.Result == s.result
		switch {
		case op.Epoch < s.called:
			c.add(RuleCalls, []int64{op.ID}, "call %s was recorded in epoch %d, and its tool ran in epoch %d", id, s.called, op.Epoch)
		case s.closed != 0 && op.Epoch > s.closed:
			c.add(RuleCalls, []int64{op.ID}, "call %s came to its end in epoch %d, and its tool ran in epoch %d", id, s.closed, op.Epoch)
		case i > 0 && runs[i-1].Epoch == op.Epoch:
			c.add(RuleCalls, ids(runs[i-1:i+1]), "the tool of call %s ran twice in epoch %d", id, op.Epoch)
		}
		if s.free {
			continue
		}
		if !s.replay.Rerunnable() && !slices.Contains(s.begun, op.Epoch) {
			c.add(RuleCalls, []int64{op.ID}, "the tool of call %s, policy %s, ran in epoch %d, and it was not begun there", id, s.replay, op.Epoch)
			continue
		}
		after := s.called
		if len(s.begun) > 0 {
			after = s.begun[0]
		}
		if i > 0 {
			after = runs[i-1].Epoch
		} else if op.Epoch == after {
			continue // the run for which it had begun
		}
		at := slices.IndexFunc(s.reruns, func(e schema.Epoch) bool { return e > after && e <= op.Epoch })
		switch {
		case op.Epoch == after: // already reported
		case at < 0:
			c.add(RuleCalls, []int64{op.ID}, "the tool of call %s, policy %s, ran in epoch %d, and nothing settled it as rerun since epoch %d", id, s.replay, op.Epoch, after)
		case s.replay == schema.ReplayHold && !s.byPerson[at]:
			c.add(RuleCalls, []int64{op.ID}, "the tool of call %s ran again in epoch %d, and no person said so: its policy is hold", id, op.Epoch)
		}
	}
	if !given {
		c.add(RuleCalls, ids(runs), "call %s came to %s, which no run of its tool returned", id, s.result)
	}
	if effects > 1 && (s.replay == schema.ReplayVerify || s.replay == schema.ReplayHold) {
		c.add(RuleCalls, ids(runs), "the tool of call %s, policy %s, had its effect %d times", id, s.replay, effects)
	}
}

func ids(ops []*Op) []int64 { return appendOps(nil, ops) }
