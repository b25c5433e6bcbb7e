package checker

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/internal/harness/referencefold"
	"github.com/waymarkio/waymark/schema"
)

// Rule is an invariant; see the package's page.
type Rule string

// Rules.
const (
	RuleAcknowledged Rule = "acknowledged"
	RuleRefused      Rule = "refused"
	RuleStranger     Rule = "stranger"
	RuleTwice        Rule = "twice"
	RuleModel        Rule = "model"
	RuleFenced       Rule = "fenced"
	RuleConverged    Rule = "converged"
	RulePast         Rule = "past"
	RuleWhole        Rule = "whole"
	RuleBackwards    Rule = "backwards"
	RuleOrder        Rule = "order"
	RuleCalls        Rule = "calls"
	RuleEnough       Rule = "enough"
)

// Violation is one violation of a rule.
type Violation struct {
	Rule Rule
	Run  string
	// Ops are the operations that it is about.
	Ops    []int64
	Detail string
}

// String is one line.
func (v Violation) String() string {
	s := string(v.Rule)
	if v.Run != "" {
		s += ", run " + v.Run
	}
	s += ": " + v.Detail
	if len(v.Ops) > 0 {
		s += fmt.Sprintf(" (operations %v)", v.Ops)
	}
	return s
}

// Options say what is valid in this run of a test.
type Options struct {
	Fleet string
	// Keys that the fleet's control events are checked by; schema.NoKeys for a fleet without. Required.
	Keys *schema.Keys
	// Least is how many operations of each kind must have succeeded. Nil asks for one event that was acknowledged: a history in which
	// nothing succeeded proves nothing.
	Least map[Kind]int
	// Damaged are runs whose log was damaged on purpose: events may be missing, and then it must be said so.
	Damaged map[string]bool
	// Unlogged are kinds of operations that some actors did not record: unknown events and takeovers are accepted
	// then.
	Unlogged bool
}

// Report is the result.
type Report struct {
	Violations []Violation
	// OK, Failed and Unknown count the operations by kind, Faults the effective faults, Events the accepted ones.
	OK, Failed, Unknown map[Kind]int
	Faults, Events      int
}

// Broken reports whether a rule was broken.
func (r *Report) Broken(rule Rule) bool {
	return slices.ContainsFunc(r.Violations, func(v Violation) bool { return v.Rule == rule })
}

// Rules are those that were broken, sorted.
func (r *Report) Rules() []Rule {
	seen := map[Rule]bool{}
	for _, v := range r.Violations {
		seen[v.Rule] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

// Error is nil when all rules hold.
func (r *Report) Error() error {
	if len(r.Violations) == 0 {
		return nil
	}
	lines := make([]string, 0, len(r.Violations))
	for _, v := range r.Violations {
		lines = append(lines, v.String())
	}
	return fmt.Errorf("%d violations:\n%s", len(lines), strings.Join(lines, "\n"))
}

// Write writes the violations, and the history with those operations marked that they are about.
func (r *Report) Write(w io.Writer, h *History) error {
	about := map[int64]bool{}
	for _, v := range r.Violations {
		if _, err := fmt.Fprintln(w, v); err != nil {
			return err
		}
		for _, id := range v.Ops {
			about[id] = true
		}
	}
	return h.Timeline(w, func(op *Op) bool { return about[op.ID] })
}

func (r *Report) add(rule Rule, run string, ops []int64, format string, args ...any) {
	r.Violations = append(r.Violations, Violation{Rule: rule, Run: run, Ops: ops, Detail: fmt.Sprintf(format, args...)})
}

// Check judges a history by the final state of the runs.
func Check(h *History, finals []Final, opts Options) *Report {
	r := &Report{OK: map[Kind]int{}, Failed: map[Kind]int{}, Unknown: map[Kind]int{}}
	byRun := map[string][]*Op{}
	for i := range h.Ops {
		op := &h.Ops[i]
		switch {
		case op.Kind == Fault:
			if op.done() {
				r.Faults++
			}
			continue
		case op.done():
			r.OK[op.Kind]++
		case op.Outcome == Failed:
			r.Failed[op.Kind]++
		default:
			r.Unknown[op.Kind]++
		}
		if op.Run != "" {
			byRun[op.Run] = append(byRun[op.Run], op)
		}
	}
	found := map[string]bool{}
	for i := range finals {
		f := &finals[i]
		found[f.Run] = true
		c := newRunCheck(r, f, byRun[f.Run], &opts)
		c.all()
		r.Events += len(c.model.Accepted)
	}
	for _, run := range slices.Sorted(maps.Keys(byRun)) {
		if found[run] {
			continue
		}
		for _, op := range byRun[run] {
			if op.done() && (op.Answer == nil || *op.Answer != *Absent()) {
				r.add(RuleAcknowledged, run, []int64{op.ID}, "an operation on it succeeded, and nothing was found of the run")
				break
			}
		}
	}
	least := opts.Least
	if least == nil {
		least = map[Kind]int{Publish: 1}
	}
	for _, kind := range slices.Sorted(maps.Keys(least)) {
		if r.OK[kind] < least[kind] {
			r.add(RuleEnough, "", nil, "%d operations of kind %s succeeded, %d are needed for the run to mean anything", r.OK[kind], kind, least[kind])
		}
	}
	return r
}

// Token returns a text for an event's data by which its operation is found whatever the event's id.
func Token(actor string, n int) string { return fmt.Sprintf("%s%s.%d;", tokenBegin, actor, n) }

const tokenBegin = "wm-token:"

// tokenIn returns the token in an event's data, or "".
func tokenIn(data []byte) string {
	text := string(data)
	_, behind, found := strings.Cut(text, tokenBegin)
	if !found {
		return ""
	}
	token, _, found := strings.Cut(behind, ";")
	if !found {
		return ""
	}
	return tokenBegin + token + ";"
}

// entry is a record of the log, with its analysis.
type entry struct {
	rec   *schema.Record
	event *schema.Event
	token string
	// ops that may have published it.
	ops []*Op
	// counts is its number among the events that count, from 1; 0 for one that does not.
	counts int
	// request of a takeover, and the executor that it names.
	request, executor string
	// again: the same event precedes it.
	again bool
	// evidence: the late result of a fenced executor, kept with its call.
	evidence bool
}

// runCheck is the check of one run.
type runCheck struct {
	r     *Report
	f     *Final
	ops   []*Op
	opts  *Options
	model *referencefold.Model
	log   []entry
	// was is the run's state after each number of events.
	was     []Answer
	byEvent map[string][]*entry
	byToken map[string][]*entry
}

func newRunCheck(r *Report, f *Final, ops []*Op, opts *Options) *runCheck {
	c := &runCheck{
		r: r, f: f, ops: ops, opts: opts, model: referencefold.New(opts.Fleet, f.Run), log: make([]entry, 0, len(f.Log)),
		byEvent: map[string][]*entry{}, byToken: map[string][]*entry{}, was: []Answer{*Absent()},
	}
	c.expand()
	published := map[string][]*Op{}
	for _, op := range c.ops {
		if op.Kind != Publish && op.Kind != Control || !op.maybe() {
			continue
		}
		if op.Event != "" {
			published[op.Event] = append(published[op.Event], op)
		}
		if op.Token != "" {
			published[op.Token] = append(published[op.Token], op)
		}
	}
	for i := range f.Log {
		rec := &f.Log[i]
		before := len(c.model.Accepted)
		c.model.Apply(c.opts.Keys, rec)
		x := entry{rec: rec}
		if len(c.model.Accepted) > before {
			x.counts = len(c.model.Accepted)
			x.evidence = c.model.Accepted[before].Evidence
			now := Answer{Epoch: c.model.Epoch(), Sequence: c.model.Sequence(), Events: int64(x.counts), Complete: true, Calls: c.model.OpenCalls()}
			now.Status, _ = c.model.Status()
			c.was = append(c.was, now)
		}
		if e, err := schema.Decode(rec.Header, rec.Body); err == nil {
			x.event, x.token = e, tokenIn(e.Data)
			x.ops = append(x.ops, published[e.ID]...)
			if x.token != "" {
				x.ops = append(x.ops, published[x.token]...)
			}
			if data, err := schema.ParseData(e); err == nil {
				if d, ok := data.(*schema.RunResumedData); ok {
					x.request, x.executor = d.RequestID, d.Executor
				}
			}
		}
		c.log = append(c.log, x)
	}
	for i := range c.log {
		x := &c.log[i]
		if x.event == nil {
			continue
		}
		x.again = len(c.byEvent[x.event.ID]) > 0
		c.byEvent[x.event.ID] = append(c.byEvent[x.event.ID], x)
		if x.token != "" {
			c.byToken[x.token] = append(c.byToken[x.token], x)
		}
	}
	for n, digest := range c.model.Digests() {
		c.was[n].Digest = digest
	}
	return c
}

func (c *runCheck) add(rule Rule, ops []int64, format string, args ...any) {
	c.r.add(rule, c.f.Run, ops, format, args...)
}

// entries are an operation's events in the log.
func (c *runCheck) entries(op *Op) []*entry {
	if op.Token != "" {
		return c.byToken[op.Token]
	}
	if op.Event != "" {
		return c.byEvent[op.Event]
	}
	return nil
}

// counted is the number of an operation's event among the accepted ones; 0 if it was not accepted.
func (c *runCheck) counted(op *Op) int {
	for _, x := range c.entries(op) {
		if x.counts > 0 {
			return x.counts
		}
	}
	return 0
}

func (c *runCheck) damaged() bool { return c.opts.Damaged[c.f.Run] && !c.f.Complete }

func (c *runCheck) all() {
	c.acknowledged()
	c.fields()
	c.refused()
	c.takeovers()
	c.strangers()
	c.twice()
	c.fenced()
	c.sameAsModel()
	c.converged()
	c.answers()
	c.order()
	c.calls()
}
