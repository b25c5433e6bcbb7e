package waymarktest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Agent makes the work for one life of an executor. It is called for each life, just as a process creates its agent at
// each start: everything that the agent keeps in memory is lost with the life. It records its side effects in out.
type Agent func(out *Outside) publisher.Work

// Crash configures [CrashEverywhereWith]. The zero value of every field means its default.
type Crash struct {
	// Run to submit. Its ID is ignored: the test generates one. An empty Agent means "agent".
	Run publisher.RunSpec
	// Before is the version of the agent that a deploy replaces; nil means no deploy. The first executor, which is
	// killed, runs Before, and the next ones run the tested agent.
	Before Agent
	// Answer answers a wait of the run in place of a person; the test fills in the interrupt's id. Nil means that the
	// test fails if the run waits. It is not called for held calls, which the effects in [Outside] settle, and for
	// timers, whose time passes at once.
	Answer func(schema.OpenInterrupt) publisher.Input
	// Config changes the executor's configuration, such as its Policy. Nil changes nothing.
	Config func(*publisher.Config)
	// Status that the run must end with without a crash; empty means schema.StatusCompleted.
	Status schema.Status
	// NoEffects is for an agent that has no effects outside, or has a tool that is not pure but has no effect in this
	// test. Otherwise the test fails if no effect of the agent, or none of such a tool, is reported to [Outside]:
	// unreported effects are not compared.
	NoEffects bool
}

// CrashEverywhere runs an agent once without a crash, then once for each crash point: before each event is stored
// (which includes the moment between a side effect and its record); when each event is stored but the executor has no
// answer yet; and after each side effect ([Outside.Effect]). Then another executor continues. In one more run every
// executor dies, each one event later than the one before.
//
// However often it is killed, the run must end as without a crash, with the same conversation, and each effect must
// have happened equally often ([Outside.Effect], [Outside.Once]). A held call is settled as by a person who can see the
// effects: it runs again if its effect is missing, and is closed with its result otherwise. On failure the test reports
// the differences, and the history of the crash with the shortest history.
//
// The run without a crash must test something: it must complete, and report its effects to [Outside]. [Crash.Status]
// and [Crash.NoEffects] are for agents that end in another way, or that have no effects.
//
// The agent must be deterministic without a crash: its model answers from the conversation alone, and it uses neither
// clock nor random numbers. Two runs without a crash are compared first. An agent that needs no fleet takes a few
// milliseconds per crash.
func CrashEverywhere(tb testing.TB, agent Agent) {
	tb.Helper()
	CrashEverywhereWith(tb, Crash{}, agent)
}

// CrashEverywhereWith is CrashEverywhere with a run, answers or a configuration of the test's own.
//
// With [Crash.Before] it tests a deploy: an executor of that version is killed at each crash point, and the tested agent
// continues. The run must end with the same status and the phases of the tested agent. Each effect must have happened
// as often as in a run without a crash of one of the two versions, and each call must have the arguments and the outcome
// of a call in one of these runs. So the test finds a tool that runs with other arguments, a repeated effect, a call
// that no tool can run any more, and a run that waits for its old code. The conversation is not compared.
func CrashEverywhereWith(tb testing.TB, c Crash, agent Agent) {
	tb.Helper()
	c.Run.Agent = cmp.Or(c.Run.Agent, "agent")
	crashed := &crashes{w: Start(tb), spec: c}
	of := ""
	if c.Before != nil {
		of = " of the tested agent"
	}
	if c.Before != nil && !crashed.without(tb, c.Before, " of Crash.Before") || !crashed.without(tb, agent, of) {
		return
	}
	if c.Before != nil {
		crashed.versions = []Agent{c.Before, agent}
	}
	first, killed := crashed.whole[0], 0
	for _, p := range first.points() {
		t := crashed.try(p)
		crashed.check(t)
		killed += min(len(t.killed), 1)
	}
	if len(crashed.found) > 0 {
		tb.Error(crashed.report())
		return
	}
	tb.Logf("waymarktest: %d events, %d effects, killed at %d points: always the same end", first.events, len(first.outside.all()), killed)
}

// without runs a version twice without a crash, and reports whether its other runs can be compared with the first one.
// of names the version in errors.
func (c *crashes) without(tb testing.TB, agent Agent, of string) bool {
	tb.Helper()
	c.versions = []Agent{agent}
	whole := c.try(nil)
	c.whole = append(c.whole, whole)
	report := (&difference{trial: whole}).report()
	if whole.failed != "" {
		tb.Error("waymarktest: the run" + of + " does not end without a crash: " + whole.failed + "\n" + report)
		return false
	}
	if why := c.spec.untested(whole); why != "" {
		tb.Error("waymarktest: the run" + of + " without a crash tests nothing: " + why + "\n" + report)
		return false
	}
	if d := compare(whole, c.try(nil), withoutCrash); len(d.lines) > 0 {
		tb.Error("waymarktest: two runs" + of + " without a crash differ; the tested agent must answer from its run alone, " +
			"not from a clock, a random number or data of another run\n" + d.report())
		return false
	}
	return true
}

// untested returns why the run without a crash tests nothing; empty if it tests something.
func (c *Crash) untested(t *trial) string {
	if ended, want := t.state.Head.Status, cmp.Or(c.Status, schema.StatusCompleted); ended != want {
		return fmt.Sprintf("it ends as %s, not as %s%s; if this is correct, set Crash.Status to %q", ended, want, reason(t.state), ended)
	}
	if c.NoEffects {
		return ""
	}
	told := make(map[string]bool)
	for _, e := range t.outside.all() {
		told[e.tool] = true
	}
	const tell = "call Outside.Effect or Outside.Once with the tool's context where the tool has its effect, or send its requests through Outside.Transport"
	if len(told) == 0 {
		said := []string{"no effect is reported to Outside: " + tell + "; if the agent has no effects, set Crash.NoEffects"}
		for i := range t.state.Calls {
			if t.state.Calls[i].Outcome != schema.OutcomeReturned {
				said = append(said, "  call "+callText(t.state, i, true))
			}
		}
		return strings.Join(said, "\n")
	}
	for i := range t.state.Calls {
		call := &t.state.Calls[i]
		if policy := cmp.Or(call.Replay, schema.ReplayHold); policy != schema.ReplayPure && call.Outcome == schema.OutcomeReturned && !told[call.Name] {
			return fmt.Sprintf("no effect of tool %s (%s) is reported to Outside: %s; if it never has an effect, use the policy pure, "+
				"or if it has none in this test, set Crash.NoEffects", call.Name, policy, tell)
		}
	}
	return ""
}

// reason says why a run ended in this way; empty if the run does not say.
func reason(s *schema.State) string {
	switch {
	case s.Ended != nil && s.Ended.Error != nil:
		return ": " + errorText(s.Ended.Error)
	case s.Head.Limit != "":
		return ": it reaches its limit " + s.Head.Limit
	case s.Ended != nil && s.Ended.Summary != "":
		return ": " + short([]byte(s.Ended.Summary))
	}
	return ""
}

// point is a point at which an executor is killed.
type point struct {
	kind pointKind
	// number of the event or of the effect, from 1, in the first life.
	number int
}

type pointKind int

const (
	beforeEvent pointKind = iota
	behindEvent
	behindEffect
	// behindEach kills each life, one event later than the life before.
	behindEach
)

func (p *point) String() string {
	if p == nil {
		return "not killed"
	}
	switch p.kind {
	case beforeEvent:
		return fmt.Sprintf("killed before its event %d was stored", p.number)
	case behindEvent:
		return fmt.Sprintf("killed when its event %d was stored, before it learned of it", p.number)
	case behindEffect:
		return fmt.Sprintf("killed after its effect %d", p.number)
	case behindEach:
		return "each executor killed one event later than the one before"
	}
	return "not killed"
}

// points are all crash points of a run.
func (t *trial) points() []*point {
	var all []*point
	for n := 1; n <= t.events; n++ {
		all = append(all, &point{beforeEvent, n}, &point{behindEvent, n})
	}
	for n := range t.outside.all() {
		all = append(all, &point{behindEffect, n + 1})
	}
	return append(all, &point{kind: behindEach})
}

// crashes are the trials of one agent.
type crashes struct {
	w    *World
	spec Crash
	// versions of the agent: of the first life, of the second one, and so on. The last one is that of all later lives.
	versions []Agent
	tries    int
	// tool returns recorded results in place of tools; nil runs the tools.
	tool func(key schema.CallKey, name string, arguments []byte) (schema.ToolReturnedData, error)
	// run is the id of the run; empty means a new one for each trial. recorded are its first events; empty submits it.
	run      string
	recorded []*schema.Event
	// person submits, answers and settles.
	person *publisher.Fleet
	// whole are the runs without a crash, one of each version.
	whole []*trial
	// found are the trials that differ from them.
	found []*difference
}

func (c *crashes) check(t *trial) {
	var d *difference
	if len(c.whole) > 1 {
		d = deployed(c.whole[0], c.whole[1], t)
	} else {
		d = compare(c.whole[0], t, withoutCrash)
	}
	if len(d.lines) > 0 {
		c.found = append(c.found, d)
	}
}

// report has the shortest history, and one line for each other difference.
func (c *crashes) report() string {
	slices.SortStableFunc(c.found, func(a, b *difference) int { return cmp.Compare(len(a.trial.history), len(b.trial.history)) })
	var b strings.Builder
	fmt.Fprintf(&b, "waymarktest: the run ends differently at %d of %d crash points; the shortest history:\n%s",
		len(c.found), c.tries-2*len(c.whole), c.found[0].report())
	for i, d := range c.found[1:] {
		if i == 0 {
			b.WriteString("\nand:\n")
		}
		if i == mostOthers {
			fmt.Fprintf(&b, "  … and %d more\n", len(c.found)-1-i)
			break
		}
		fmt.Fprintf(&b, "  %s: %s\n", d.trial.point, d.lines[0])
	}
	return b.String()
}

// mostOthers bounds the other crashes in a report.
const mostOthers = 10
