package checker

import (
	"maps"
	"slices"

	"github.com/waymarkio/waymark/schema"
)

// acknowledged: what was acknowledged is in the run, where it was acknowledged.
func (c *runCheck) acknowledged() {
	if c.damaged() {
		return // it is said that events are missing
	}
	for _, op := range c.ops {
		if op.Kind != Publish && op.Kind != Control || !op.done() || op.Event == "" && op.Token == "" {
			continue
		}
		all := c.entries(op)
		switch {
		case len(all) == 0:
			c.add(RuleAcknowledged, []int64{op.ID}, "an acknowledged event is not in the log: %s", op)
		case op.Evidence:
		case c.counted(op) == 0:
			c.add(RuleAcknowledged, []int64{op.ID}, "an acknowledged event does not count: %s", op)
		case op.Stream != 0 && !slices.ContainsFunc(all, func(x *entry) bool { return x.rec.Stream == op.Stream }):
			c.add(RuleAcknowledged, []int64{op.ID}, "an event is at %d and was acknowledged at %d", all[0].rec.Stream, op.Stream)
		}
	}
}

// refused: what certainly failed has no effect, unless another operation published the same, or the executor handed the result
// in as evidence when it was fenced.
func (c *runCheck) refused() {
	for _, op := range c.ops {
		if op.Outcome != Failed || op.Kind != Publish {
			continue
		}
		for _, x := range c.entries(op) {
			if len(x.ops) == 0 && x.counts > 0 && !x.evidence {
				c.add(RuleRefused, []int64{op.ID}, "an operation failed, and its event counts at %d: %s", x.rec.Stream, op)
			}
		}
	}
}

// strangers: what counts was published by somebody, and each takeover was asked for.
func (c *runCheck) strangers() {
	if c.opts.Unlogged {
		return
	}
	asked := map[string]bool{}
	failed := map[string]bool{}
	for _, op := range c.ops {
		if op.Kind == Takeover {
			asked[op.Request] = true
		}
		if op.Kind == Publish && op.Outcome == Failed {
			failed[op.Event], failed[op.Token] = true, true
		}
	}
	for i := range c.log {
		x := &c.log[i]
		switch {
		case x.counts == 0 || x.event == nil:
		case x.request != "" && !asked[x.request]:
			c.add(RuleStranger, nil, "takeover %s at %d was asked for by nobody: request %s", x.event.ID, x.rec.Stream, x.request)
		case x.event.IsControl(), len(x.ops) > 0:
		case failed[x.event.ID] || failed[x.token] && x.token != "": // told by another rule
		default:
			c.add(RuleStranger, nil, "event %s at %d counts and was published by nobody", x.event.ID, x.rec.Stream)
		}
	}
}

// twice: no event and no operation counts more than once.
func (c *runCheck) twice() {
	look := func(all map[string][]*entry, what string) {
		for _, key := range slices.Sorted(maps.Keys(all)) {
			var at []schema.StreamSequence
			var ops []int64
			for _, x := range all[key] {
				if x.counts > 0 {
					at = append(at, x.rec.Stream)
					ops = appendOps(ops, x.ops)
				}
			}
			if len(at) > 1 {
				c.add(RuleTwice, ops, "%s %s counts %d times, at %d", what, key, len(at), at)
			}
		}
	}
	look(c.byEvent, "event")
	look(c.byToken, "operation with")
	// Whoever was acknowledged twice for one operation's token published two events.
	for _, token := range slices.Sorted(maps.Keys(c.byToken)) {
		ids := map[string]bool{}
		var ops []int64
		for _, x := range c.byToken[token] {
			if len(x.ops) > 0 && x.counts == 0 && !x.again {
				ids[x.event.ID], ops = true, appendOps(ops, x.ops)
			}
		}
		for _, x := range c.byToken[token] {
			if len(ids) > 0 && x.counts > 0 && !ids[x.event.ID] {
				c.add(RuleTwice, ops, "operation with %s is in the log as %s and as another event", token, x.event.ID)
				break
			}
		}
	}
}

func appendOps(ids []int64, ops []*Op) []int64 {
	for _, op := range ops {
		if !slices.Contains(ids, op.ID) {
			ids = append(ids, op.ID)
		}
	}
	return ids
}

// dense: of what executors published, each epoch has the sequences 1, 2, 3 … in the order of the log.
func (c *runCheck) dense() {
	if c.damaged() {
		return
	}
	next := map[schema.Epoch]schema.Sequence{}
	for i := range c.log {
		x := &c.log[i]
		if x.event == nil || x.event.Sequence == 0 || len(x.ops) == 0 || x.again || x.evidence || x.ops[0].Evidence {
			continue
		}
		epoch := x.event.Epoch
		if want := next[epoch] + 1; x.event.Sequence != want {
			c.add(RuleDense, appendOps(nil, x.ops), "sequence %d of epoch %d stands at %d, where %d is next", uint64(x.event.Sequence), epoch, x.rec.Stream, uint64(want))
		}
		next[epoch] = max(next[epoch], x.event.Sequence)
	}
}

// fenced: behind a takeover that counts, nothing of an older epoch is acknowledged; and nothing is that began when it was
// known to be over.
func (c *runCheck) fenced() {
	if c.opts.Damaged[c.f.Run] {
		return // the takeovers themselves may be missing
	}
	now := schema.Epoch(0)
	for i := range c.log {
		x := &c.log[i]
		switch {
		case x.event == nil:
		case x.request != "":
			if x.counts > 0 {
				now = max(now, x.event.Epoch)
			}
		case x.event.Epoch != 0 && x.event.Epoch < now && len(x.ops) > 0 && !x.again && !x.evidence && !x.ops[0].Evidence:
			c.add(RuleFenced, appendOps(nil, x.ops), "event %s of epoch %d stands at %d, behind the takeover to epoch %d", x.event.ID, x.event.Epoch, x.rec.Stream, now)
		}
	}
	for _, take := range c.ops {
		if take.Kind != Takeover || !take.done() || take.Answer == nil {
			continue
		}
		for _, op := range c.ops {
			if op.Kind == Publish && op.done() && !op.Evidence && op.Epoch != 0 && op.Epoch < take.Answer.Epoch && op.Start > take.End {
				c.add(RuleFenced, []int64{take.ID, op.ID}, "an event of epoch %d was acknowledged that began after epoch %d was taken over", op.Epoch, take.Answer.Epoch)
			}
		}
	}
}

// sameAsModel: the head that was answered is what the log adds up to, and nothing is said to be missing without cause.
func (c *runCheck) sameAsModel() {
	if c.damaged() || c.model.Beyond {
		return
	}
	for _, d := range c.model.Differences(&c.f.Head) {
		c.add(RuleModel, nil, "%s", d)
	}
	if !c.f.Complete {
		c.add(RuleModel, nil, "the run is called incomplete, with gaps %v", c.f.Head.Gaps)
	}
}

// converged: every place says the same.
func (c *runCheck) converged() {
	want := AnswerOf(&c.f.Head, c.f.Complete)
	for _, place := range slices.Sorted(maps.Keys(c.f.Places)) {
		if got := c.f.Places[place]; got != want {
			c.add(RuleConverged, nil, "%s says %+v, the run's events say %+v", place, got, want)
		}
	}
}

// answers: each is a prefix of the log, with all that was acknowledged before it was asked for, and all that was answered
// before.
func (c *runCheck) answers() {
	if c.opts.Damaged[c.f.Run] {
		return
	}
	for _, op := range c.ops {
		a := op.Answer
		if a == nil || !op.done() {
			continue
		}
		switch {
		case a.Events < 0 || a.Events >= int64(len(c.digests)):
			c.add(RulePast, []int64{op.ID}, "an answer has %d events, the run has %d: %s", a.Events, len(c.digests)-1, op)
		case c.digests[a.Events] != a.Digest:
			c.add(RulePast, []int64{op.ID}, "an answer's digest is none that the run had: %s", op)
		case !a.Complete:
			c.add(RulePast, []int64{op.ID}, "an answer calls events missing of a run that has them all: %s", op)
		}
		for _, before := range c.ops {
			if before.End == 0 || before.End >= op.Start || !before.done() {
				continue
			}
			switch n := c.counted(before); {
			case before.Kind == Publish && int64(n) > a.Events:
				c.add(RuleWhole, []int64{before.ID, op.ID}, "an answer has %d events and misses one, the run's %d., that was acknowledged before it was asked for", a.Events, n)
			case before.Kind == Publish && before.Epoch > a.Epoch:
				c.add(RuleWhole, []int64{before.ID, op.ID}, "an answer is of epoch %d, and an event of epoch %d was acknowledged before", a.Epoch, before.Epoch)
			}
			if b := before.Answer; b != nil && (b.Events > a.Events || b.Epoch > a.Epoch) {
				c.add(RuleBackwards, []int64{before.ID, op.ID}, "an answer has %d events in epoch %d, one before it %d in epoch %d", a.Events, a.Epoch, b.Events, b.Epoch)
			}
		}
	}
}
