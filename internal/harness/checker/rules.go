package checker

import (
	"bytes"
	"maps"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/harness/referencefold"
	"github.com/waymarkio/waymark/schema"
)

// acknowledged: acknowledged events are in the run, at the acknowledged place.
func (c *runCheck) acknowledged() {
	if c.damaged() {
		return // it is said that events are missing
	}
	for _, op := range c.ops {
		if op.Kind != Publish && op.Kind != Control || !op.done() {
			continue
		}
		all := c.entries(op)
		switch {
		case op.Event == "" && op.Token == "":
			c.add(RuleAcknowledged, []int64{op.ID}, "an operation succeeded, and nothing says what of: it has neither event nor token: %s", op)
		case len(all) == 0:
			c.add(RuleAcknowledged, []int64{op.ID}, "an acknowledged event is not in the log: %s", op)
		case op.Evidence:
		case c.counted(op) == 0:
			c.add(RuleAcknowledged, []int64{op.ID}, "an acknowledged event does not count: %s", op)
		case !slices.ContainsFunc(all, op.is):
			c.add(RuleAcknowledged, []int64{op.ID}, "what counts is event %s, and another one was acknowledged: %s", all[0].event.ID, op)
		case op.Stream != 0 && !slices.ContainsFunc(all, func(x *entry) bool { return x.rec.Stream == op.Stream }):
			c.add(RuleAcknowledged, []int64{op.ID}, "an event is at %d and was acknowledged at %d", all[0].rec.Stream, op.Stream)
		}
	}
}

// fields: the large field of an event that counts is there, too.
func (c *runCheck) fields() {
	if c.opts.Damaged[c.f.Run] {
		return // its readers are told
	}
	for i := range c.log {
		x := &c.log[i]
		if x.counts == 0 {
			continue
		}
		if why, unread := c.f.Unread[x.event.DataRef]; unread {
			var ops []int64
			for _, op := range x.ops {
				ops = append(ops, op.ID)
			}
			c.add(RuleAcknowledged, ops, "the large field of event %s cannot be read: %s", x.event.ID, why)
		}
	}
}

// is reports whether an accepted event is the acknowledged one, as far as its id, epoch and sequence were returned.
func (o *Op) is(x *entry) bool {
	return x.counts > 0 && (o.Event == "" || x.event.ID == o.Event) && (o.Epoch == 0 || max(x.event.Epoch, 1) == o.Epoch) &&
		(o.Sequence == 0 || x.event.Sequence == o.Sequence)
}

// takeovers: an executor that got an epoch has opened it, and one that was certainly refused has not.
func (c *runCheck) takeovers() {
	if c.damaged() {
		return // the takeovers themselves may be missing
	}
	opened := map[schema.Epoch]*entry{}
	asked := map[string]*entry{}
	for i := range c.log {
		if x := &c.log[i]; x.request != "" && x.counts > 0 {
			opened[x.event.Epoch], asked[x.request] = x, x
		}
	}
	for _, op := range c.ops {
		if op.Kind != Takeover {
			continue
		}
		if x := asked[op.Request]; op.Outcome == Failed && x != nil {
			c.add(RuleRefused, []int64{op.ID}, "a takeover failed, and it opened epoch %d at %d: %s", x.event.Epoch, x.rec.Stream, op)
		}
		if !op.done() || op.Answer == nil {
			continue
		}
		switch x := opened[op.Answer.Epoch]; {
		case x == nil:
			c.add(RuleAcknowledged, []int64{op.ID}, "epoch %d was handed out, and nothing opens it: %s", op.Answer.Epoch, op)
		case x.request != op.Request || op.Executor != "" && x.executor != op.Executor:
			c.add(RuleAcknowledged, []int64{op.ID}, "epoch %d was handed out, and request %s of %s opened it: %s", op.Answer.Epoch, x.request, x.executor, op)
		}
	}
}

// refused: a certain failure has no effect, unless another operation published the same, or the fenced executor
// delivered the result as evidence.
func (c *runCheck) refused() {
	if c.damaged() {
		return // the takeover that they were refused for may be missing
	}
	for _, op := range c.ops {
		if op.Outcome != Failed || op.Kind != Publish && op.Kind != Control {
			continue
		}
		for _, x := range c.entries(op) {
			if len(x.ops) == 0 && x.counts > 0 && !x.evidence {
				c.add(RuleRefused, []int64{op.ID}, "an operation failed, and its event counts at %d: %s", x.rec.Stream, op)
			}
		}
	}
}

// strangers: every accepted event has a publisher, and every takeover and operator's event has a request.
func (c *runCheck) strangers() {
	if c.opts.Unlogged {
		return
	}
	asked := map[string]bool{}
	failed := map[string]bool{}
	unknown := 0 // operators' requests without an answer: their events are unknown
	for _, op := range c.ops {
		if op.Kind == Control && op.Outcome != OK && op.maybe() && op.Event == "" && op.Token == "" {
			unknown++
		}
		if op.Kind == Takeover {
			asked[op.Request] = true
		}
		if (op.Kind == Publish || op.Kind == Control) && op.Outcome == Failed {
			failed[op.Event], failed[op.Token] = true, true
		}
	}
	for i := range c.log {
		x := &c.log[i]
		switch {
		case x.counts == 0 || x.event == nil:
		case x.request != "" && !asked[x.request]:
			c.add(RuleStranger, nil, "takeover %s at %d has no request: %s", x.event.ID, x.rec.Stream, x.request)
		case len(x.ops) > 0, x.event.IsControl() && byDaemon(x.event):
		case failed[x.event.ID] || failed[x.token] && x.token != "": // reported by another rule
		case x.event.IsControl() && unknown > 0:
			unknown--
		default:
			c.add(RuleStranger, nil, "event %s at %d is accepted but has no publisher", x.event.ID, x.rec.Stream)
		}
	}
}

// byDaemon reports whether the daemon adds a control event without a request, or whether it is a takeover, which its
// request identifies.
func byDaemon(e *schema.Event) bool {
	data, err := schema.ParseData(e)
	if err != nil {
		return false
	}
	switch d := data.(type) {
	case *schema.RunResumedData, *schema.RunOrphanedData:
		return true
	case *schema.RunInputData:
		return d.Status == schema.InputExpired
	}
	return false
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
	// Two acknowledgements for one operation's token mean two published events.
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

// fenced: behind an accepted takeover, the log has no event of an older epoch, acknowledged or not.
func (c *runCheck) fenced() {
	if c.damaged() {
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
}

// sameAsModel: the answered head, the stored checkpoint, the state with its messages and results, and the fold of the
// log all equal the model's fold of the log; and no event is reported missing without cause.
func (c *runCheck) sameAsModel() {
	if c.damaged() {
		return
	}
	if c.model.Beyond {
		c.add(RuleModel, nil, "the log has something that the model does not know, so that nothing can be said about it")
		return
	}
	c.differ("", c.model.Differences(&c.f.Head))
	if c.f.Stored != nil {
		c.differ("stored checkpoint: ", c.model.Differences(c.f.Stored))
	}
	folded := schema.NewState(c.opts.Fleet, c.f.Run)
	for i := range c.f.Log {
		folded.Apply(c.opts.Keys, &c.f.Log[i])
	}
	c.differ("fold of the log: ", c.model.StateDifferences(folded))
	if c.f.State != nil && !sameJSON(c.f.State, folded.View()) {
		c.add(RuleModel, nil, "the answered state is not what the log adds up to")
	}
	if !c.f.Complete || !c.f.Head.Complete() {
		c.add(RuleModel, nil, "the run is called incomplete, with gaps %v", c.f.Head.Gaps)
	}
}

// sameJSON reports whether two values are the same once written.
func sameJSON(a, b any) bool {
	x, xerr := json.Marshal(a, json.Deterministic(true))
	y, yerr := json.Marshal(b, json.Deterministic(true))
	return xerr == nil && yerr == nil && bytes.Equal(x, y)
}

func (c *runCheck) differ(where string, all []referencefold.Difference) {
	for _, d := range all {
		c.add(RuleModel, nil, "%s%s", where, d)
	}
}

// converged: all places agree, and the stored checkpoint equals the answer's head.
func (c *runCheck) converged() {
	if c.f.Stored != nil && !c.damaged() {
		for _, field := range unlike(&c.f.Head, c.f.Stored) {
			c.add(RuleConverged, nil, "the stored checkpoint has another %s than the run's events", field)
		}
	}
	want := AnswerOf(&c.f.Head, c.f.Complete)
	for _, place := range slices.Sorted(maps.Keys(c.f.Places)) {
		if got := c.f.Places[place]; got != want {
			c.add(RuleConverged, nil, "%s says %+v, the run's events say %+v", place, got, want)
		}
	}
}

// told reports whether an answer was true during its request: that a damaged run misses events.
func (c *runCheck) told(op *Op) bool {
	return c.opts.Damaged[c.f.Run] && op.Answer != nil && !op.Answer.Complete
}

// answers: each is a prefix of the log, with all that was acknowledged before it was asked for, and all that was answered
// before.
func (c *runCheck) answers() {
	if c.damaged() {
		return
	}
	for _, op := range c.ops {
		a := op.Answer
		if !op.answered() || c.told(op) {
			continue
		}
		switch {
		case a.Events < 0 || a.Events >= int64(len(c.was)):
			c.add(RulePast, []int64{op.ID}, "an answer has %d events, the run has %d: %s", a.Events, len(c.was)-1, op)
		case !a.Complete:
			c.add(RulePast, []int64{op.ID}, "an answer calls events missing of a run that has them all: %s", op)
		case c.was[a.Events].Digest != a.Digest:
			c.add(RulePast, []int64{op.ID}, "an answer's digest is none that the run had: %s", op)
		case c.was[a.Events].Calls != a.Calls:
			c.add(RuleCalls, []int64{op.ID}, "an answer has the open calls %q, and the log up to there %q", a.Calls, c.was[a.Events].Calls)
		case c.was[a.Events] != *a:
			c.add(RulePast, []int64{op.ID}, "an answer says %+v, and the run was %+v at that event", *a, c.was[a.Events])
		}
		for _, before := range c.ops {
			if before.End == 0 || before.End >= op.Start || !before.done() && !before.answered() {
				continue
			}
			switch n := c.counted(before); {
			case before.done() && int64(n) > a.Events:
				c.add(RuleWhole, []int64{before.ID, op.ID}, "an answer has %d events and misses one, the run's %d., that was acknowledged before it was asked for", a.Events, n)
			case before.done() && before.Epoch > a.Epoch:
				c.add(RuleWhole, []int64{before.ID, op.ID}, "an answer is of epoch %d, and an event of epoch %d was acknowledged before", a.Epoch, before.Epoch)
			}
			if b := before.Answer; b != nil && !c.told(before) && (b.Events > a.Events || b.Epoch > a.Epoch) {
				c.add(RuleBackwards, []int64{before.ID, op.ID}, "an answer has %d events in epoch %d, one before it %d in epoch %d", a.Events, a.Epoch, b.Events, b.Epoch)
			}
		}
	}
}

// unlike names the members in which two heads differ.
func unlike(a, b *schema.Head) []string {
	members := func(h *schema.Head) map[string]jsontext.Value {
		text, err := json.Marshal(h, json.Deterministic(true))
		if err != nil {
			return map[string]jsontext.Value{err.Error(): nil}
		}
		m := map[string]jsontext.Value{}
		if err := json.Unmarshal(text, &m); err != nil {
			return map[string]jsontext.Value{err.Error(): nil}
		}
		return m
	}
	of, in := members(a), members(b)
	all := maps.Clone(of)
	maps.Copy(all, in)
	var names []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !bytes.Equal(of[name], in[name]) {
			names = append(names, name)
		}
	}
	return names
}
