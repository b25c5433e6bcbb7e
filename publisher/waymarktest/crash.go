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

// Agent makes the work of one life of an executor. It is called for each life, as a process makes its agent at each start: what the agent
// keeps in memory is gone with the life. It records its side effects in out.
type Agent func(out *Outside) publisher.Work

// Crash changes [CrashEverywhereWith]. The zero value of every field means its default.
type Crash struct {
	// Run that is submitted. Its ID is ignored: the test makes one. An empty Agent means "agent".
	Run publisher.RunSpec
	// Answer answers a wait of the run, as a person does; the test fills in the interrupt's id. Nil means that the test fails when the run
	// waits. It is not called for held calls: the effects in [Outside] settle them.
	Answer func(schema.OpenInterrupt) publisher.Input
	// Config changes the executor's configuration, such as its Policy. Nil changes nothing.
	Config func(*publisher.Config)
	// Lives is the number of lives after which a run that has not ended fails the test; 0 means 20 more than it has events.
	Lives int
}

// CrashEverywhere runs an agent without a crash, then once for each crash point: before each event is stored, which is also between a side
// effect and its record; when each event is stored and the executor has no answer yet; and after each side effect ([Outside.Effect]). Then
// another executor goes on. In one more run each executor dies, an event later than the one before. Points within a batch of events, as
// [publisher.Run.Pipelined] makes them, are not reached: such a run goes on without a crash.
//
// A run that was killed must end as the run without a crash does, with the same conversation, and each effect must have happened as often.
// A held call is settled as a person would who can see the effects: it is run again without an effect, and closed with its result
// otherwise. The test fails with the differences, and the history, of the crash with the shortest history.
//
// The agent must be deterministic without a crash: the model answers by the conversation alone, without clock or chance. Two runs without a
// crash are compared first. Each run, with all of its lives, has a minute.
func CrashEverywhere(tb testing.TB, agent Agent) {
	tb.Helper()
	CrashEverywhereWith(tb, Crash{}, agent)
}

// CrashEverywhereWith is CrashEverywhere with another run, with answers, or with another configuration.
func CrashEverywhereWith(tb testing.TB, c Crash, agent Agent) {
	tb.Helper()
	c.Run.Agent = cmp.Or(c.Run.Agent, "agent")
	w := Start(tb)
	crashed := &crashes{w: w, spec: c, agent: agent}
	whole := crashed.try(nil)
	if whole.failed != "" {
		tb.Error("waymarktest: the run does not end without a crash: " + whole.failed + "\n" + (&difference{trial: whole}).report())
		return
	}
	crashed.whole = whole
	crashed.check(crashed.try(nil))
	if len(crashed.found) > 0 {
		tb.Error("waymarktest: two runs without a crash differ; an agent that is tested has to answer by its run alone, " +
			"not by a clock, by chance or by what another run left\n" + crashed.found[0].report())
		return
	}
	for _, p := range whole.points() {
		crashed.check(crashed.try(p))
	}
	if len(crashed.found) > 0 {
		tb.Error(crashed.report())
		return
	}
	tb.Logf("waymarktest: %d events, %d effects, killed at %d points: always the same end", whole.events, len(whole.outside.effects), crashed.tries-2)
}

// point is where an executor is killed.
type point struct {
	kind pointKind
	// number of the event, or of the effect, from 1, in the first life.
	number int
}

type pointKind int

const (
	beforeEvent pointKind = iota
	behindEvent
	behindEffect
	// behindEach kills each life, after one event more than the life before.
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
		return fmt.Sprintf("killed behind its effect %d", p.number)
	case behindEach:
		return "each executor killed, an event later than the one before"
	}
	return "not killed"
}

// points are all crash points of a run.
func (t *trial) points() []*point {
	var all []*point
	for n := 1; n <= t.events; n++ {
		all = append(all, &point{beforeEvent, n}, &point{behindEvent, n})
	}
	for n := range t.outside.effects {
		all = append(all, &point{behindEffect, n + 1})
	}
	return append(all, &point{kind: behindEach})
}

// crashes are the trials of one agent.
type crashes struct {
	w     *World
	spec  Crash
	agent Agent
	tries int
	// run is the id of the run; empty means another one for each trial.
	run string
	// person submits, answers and settles.
	person *publisher.Fleet
	// whole is the run without a crash.
	whole *trial
	// found are the trials that differ from it.
	found []*difference
}

func (c *crashes) check(t *trial) {
	if d := compare(c.whole, t); len(d.lines) > 0 {
		c.found = append(c.found, d)
	}
}

// report has the shortest history, and a line for each other difference.
func (c *crashes) report() string {
	slices.SortStableFunc(c.found, func(a, b *difference) int { return cmp.Compare(len(a.trial.history), len(b.trial.history)) })
	var b strings.Builder
	fmt.Fprintf(&b, "waymarktest: the run comes out differently at %d of %d points where it was killed; the shortest history:\n%s",
		len(c.found), c.tries-2, c.found[0].report())
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

// mostOthers bounds the other crashes of a report.
const mostOthers = 10
