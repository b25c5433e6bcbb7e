package conform

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// run is the known state of one run.
type run struct {
	c    *Checker
	name string
	head schema.Head
	// subject under which its events are stored, which names its shard; empty while unknown.
	subject string
	// ids are the content hashes of the latest events without sequence, by source and id, as the fold knows them; recent is
	// their order.
	ids    map[string]schema.Hash
	recent []string
	// numbered: 0 while the executor has published nothing in this epoch, 1 with and 2 without sequences.
	numbered int
	mixed    bool
	// phases that were begun.
	phases map[string]bool
	// summed: a turn with purpose recovery followed the latest limit.
	limit, summed bool
	// returned are the tools of the calls that returned a result, by their ids; handed: another run continues the work.
	returned map[string]string
	handed   bool
	// orphaned in this epoch, and not taken over since.
	orphaned bool
	// missing is the sequence without which later ones are refused, once it was reported.
	missing schema.Sequence
	// steps of each expected scenario that were seen.
	steps []int
	bad   bool
}

func newRun(c *Checker, name string) *run {
	return &run{
		c: c, name: name, head: schema.NewHead(c.cfg.Fleet, name), ids: map[string]schema.Hash{}, phases: map[string]bool{}, returned: map[string]string{},
		steps: make([]int, len(c.scenarios)),
	}
}

// moment is an event and the state before it.
type moment struct {
	*schema.Prepared
	m    *Message
	e    *schema.Event
	name string
	// data is nil for unknown or invalid data.
	data    schema.Data
	control bool
	verdict schema.Verdict
	// epoch, sequence and status before it.
	epoch    schema.Epoch
	sequence schema.Sequence
	status   schema.Status
	turn     int32
	turnOpen bool
	// limit is the reached limit of the run's contract; empty for none.
	limit  string
	events int64
	// open is the event's call, as it was before; nil for none.
	open *schema.OpenCall
	// taken are the policies of the calls that are open at a takeover.
	taken []schema.Replay
}

// add checks one message.
func (r *run) add(m *Message, p *schema.Prepared) {
	at := moment{
		Prepared: p, m: m, e: p.Event, epoch: r.head.Epoch, sequence: r.head.Sequence, status: r.head.Status,
		turn: r.head.Turn, turnOpen: r.head.TurnOpen, events: r.head.Counts.Events,
	}
	if at.e != nil {
		at.name, at.control = at.e.Name(), at.e.IsControl()
		data, err := schema.ParseData(at.e)
		if err == nil {
			at.data = data
		}
		if id, occurrence, ok := schema.CallOf(at.data); ok {
			if i := r.head.FindOpen(at.e.Turn, id, occurrence); i >= 0 {
				open := r.head.OpenCalls[i]
				at.open = &open
			}
		}
	}
	at.limit, _, _ = r.head.ReachedLimit(r.head.MaxTurns, r.head.MaxTokens)
	at.verdict = r.head.ApplyPrepared(p)
	for i := range r.head.OpenCalls {
		if at.name == schema.RunResumed {
			at.taken = append(at.taken, r.head.OpenCalls[i].Replay)
		}
	}
	must := r.c.report.Must
	switch at.verdict.Kind {
	case schema.Rejected:
		r.refused(&at)
	case schema.Duplicate:
		r.duplicate(&at)
	case schema.Evidence:
		if !at.verdict.Boundary {
			r.found(ruleOneOutcome, &at, "/tool_call_id", "the first outcome of the call, and no other", "one more "+at.name)
		}
	case schema.Applied:
		r.accepted(&at)
	default:
	}
	if at.e != nil && !at.control {
		r.envelope(&at)
	}
	r.bad = r.bad || r.c.report.Must > must
	if at.verdict.Kind == schema.Applied || at.verdict.Kind == schema.Evidence {
		r.advance(&at)
	}
}

// keepSubject keeps the subject of the run's first event, unless the recording has no subjects.
func (r *run) keepSubject(subject string) {
	if r.subject == "" && strings.Count(subject, ".") == strings.Count(schema.NamesOf("", 0).EventSubject(""), ".") {
		r.subject = subject
	}
}

// found records a breach by an event.
func (r *run) found(rule string, a *moment, field, expected, found string) {
	f := at(a.m, r.name, a.e)
	r.c.found(rule, &f, field, expected, found)
}

// refused finds the rule of a refusal, with the expected value.
func (r *run) refused(a *moment) {
	v, e := &a.verdict, a.e
	rule := reasonRules[v.Reason]
	if next := a.sequence + 1; e != nil && e.Sequence >= next && r.head.Sequence == a.sequence && r.head.Epoch == a.epoch {
		if r.missing == next && v.Reason == schema.ReasonGap {
			return // it follows from an earlier finding
		}
		r.missing = next
	}
	switch v.Reason {
	case schema.ReasonNotCloudEvent:
		r.found(rule, a, "", "a CloudEvent", v.Detail)
	case schema.ReasonInvalidAttribute:
		r.attribute(a)
	case schema.ReasonInvalidData:
		field, found := "", v.Detail
		_, err := schema.ParseData(e)
		if bad, ok := errors.AsType[*schema.DataError](err); ok {
			field, found = bad.Path, bad.Path+" "+bad.Problem
			if field == "" {
				field, found = "/", "the data "+bad.Problem
			}
		}
		r.found(rule, a, field, "data in the form of "+a.name, found)
	case schema.ReasonFenced:
		r.found(rule, a, "ce-epoch", fmt.Sprintf("nothing: the run is at epoch %d", a.epoch), epochText(e))
	case schema.ReasonEpochAhead:
		r.found(rule, a, "ce-epoch", fmt.Sprintf("epoch %d, which the run is at", max(a.epoch, 1)), epochText(e))
	case schema.ReasonGap, schema.ReasonStale, schema.ReasonForked:
		r.found(rule, a, "ce-sequence", fmt.Sprintf("%d, the next of epoch %d", uint64(a.sequence)+1, max(a.epoch, 1)), fmt.Sprintf("%d", uint64(e.Sequence)))
	case schema.ReasonRunEnded:
		r.found(rule, a, "ce-type", "nothing: the run is "+string(a.status), a.name)
	case schema.ReasonTurnOrder:
		r.found(rule, a, "/turn", fmt.Sprintf("a turn above %d, or the open one", a.turn), v.Detail)
	case schema.ReasonUnknownCall, schema.ReasonNotInDoubt:
		if a.name == schema.RunWaiting {
			rule = ruleWaitDoubt
		}
		r.found(rule, a, "/tool_call_id", "a call that is open, and for a settlement in doubt", v.Detail)
	case schema.ReasonNotAllowed:
		if a.open != nil && a.open.Decision == schema.DecisionDeny {
			r.found(ruleDenied, a, "/tool_call_id", "tool.failed of type denied", a.name+": "+v.Detail)
			return
		}
		r.found(rule, a, "/tool_call_id", "run.input and tool.decided with allow before", a.name+": "+v.Detail)
	case schema.ReasonSignal:
		if a.name == schema.SignalSent {
			r.found(ruleSignalOnce, a, "/signal_id", "an id that no open signal has", v.Detail)
			return
		}
		r.found(rule, a, "", strings.TrimSuffix(lower(ruleText(rule)), "."), v.Detail)
	default:
		r.found(rule, a, "", strings.TrimSuffix(lower(ruleText(rule)), "."), v.Detail)
	}
}

func ruleText(id string) string {
	r, _ := RuleOf(id)
	return r.Text
}

func lower(s string) string { return strings.ToLower(s[:1]) + s[1:] }

func epochText(e *schema.Event) string {
	if e.Epoch == 0 {
		return "no epoch"
	}
	return fmt.Sprintf("epoch %d", e.Epoch)
}

// attribute distinguishes the fold's invalid attributes.
func (r *run) attribute(a *moment) {
	e := a.e
	if e == nil {
		_, err := schema.Decode(a.m.Record.Header, a.m.Record.Body)
		if bad, ok := errors.AsType[*schema.AttributeError](err); ok {
			r.found(ruleAttributes, a, "ce-"+strings.Trim(bad.Name, `"`), "an attribute that is well formed", bad.Name+" "+bad.Problem)
			return
		}
		r.found(ruleAttributes, a, "", "attributes that are well formed", a.verdict.Detail)
		return
	}
	fleet, _, ours := schema.ParseSource(e.Source)
	switch {
	case e.Subject != "" && e.Subject != r.name:
		r.found(ruleSubject, a, "ce-subject", r.name, e.Subject)
	case ours && fleet != r.head.Fleet:
		r.found(ruleFleet, a, "ce-source", "fleet "+r.head.Fleet, e.Source)
	default:
		r.found(ruleIDHash, a, "ce-id", schema.EventID(e.Subject, e.Epoch, e.Sequence, e.ContentHash()), e.ID)
	}
}

// duplicate distinguishes a retry from a reused id.
func (r *run) duplicate(a *moment) {
	if a.e.Sequence != 0 {
		return
	}
	key := a.e.Source + "\n" + a.e.ID
	if was, ok := r.ids[key]; ok && was != a.e.ContentHash() {
		r.found(ruleIDOnce, a, "ce-id", "an id that no other event has", a.e.ID+", which belongs to an earlier event with other content: this one was dropped")
	}
}

// advance remembers an accepted event.
func (r *run) advance(a *moment) {
	e := a.e
	if e.Sequence == 0 {
		key := e.Source + "\n" + e.ID
		r.ids[key] = e.ContentHash()
		if r.recent = append(r.recent, key); len(r.recent) > schema.WindowEvents {
			delete(r.ids, r.recent[0])
			r.recent = slices.Delete(r.recent, 0, 1)
		}
	}
	for i := range r.c.scenarios {
		steps := r.c.scenarios[i].steps
		if n := r.steps[i]; n < len(steps) && steps[n].seen(a) {
			r.steps[i]++
		}
	}
}
