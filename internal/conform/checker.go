package conform

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// Message is a message of a fleet's log, or one that was received while it was published.
type Message struct {
	// Subject on NATS; empty in a recording of events.
	Subject string
	// Home is the subject in the run's shard, if Subject is in another shard; otherwise empty.
	Home string
	// Record as in the log. Its stream sequence must rise within a run.
	Record schema.Record
	// At is when it arrived; zero if unknown.
	At time.Time
	// File and Line of a recording.
	File string
	Line int
}

// Config of a checker.
type Config struct {
	// Fleet to check; empty means the one that each run's first event names.
	Fleet string
	// Expect are ids of scenarios that must be seen; see [Scenarios].
	Expect []string
}

// Checker checks the messages of a fleet. It is not safe for concurrent use.
type Checker struct {
	cfg       Config
	scenarios []Scenario
	runs      map[string]*run
	// order in which runs were first seen, to drop the oldest.
	order []string
	// gone are the hashes of the ids of dropped runs: their later events are not checked.
	gone      map[uint64]bool
	executors map[string]*beats
	report    Report
	// counts of findings by rule and run.
	counts map[[2]string]int
	index  map[[2]string]int
	wire   bool
	heard  bool
	// recorded counts the messages of recordings.
	recorded schema.StreamSequence
}

// ErrScenario is returned for an unknown scenario. [Scenarios] lists the known ones.
var ErrScenario = errors.New("no such scenario")

// New returns a checker that has seen nothing.
func New(cfg Config) (*Checker, error) {
	c := &Checker{
		cfg: cfg, runs: map[string]*run{}, gone: map[uint64]bool{}, executors: map[string]*beats{}, counts: map[[2]string]int{}, index: map[[2]string]int{},
		report: Report{Findings: []Finding{}},
	}
	for _, id := range cfg.Expect {
		i := slices.IndexFunc(scenarios, func(s Scenario) bool { return s.ID == id })
		if i < 0 {
			return nil, fmt.Errorf("%w: %.40q", ErrScenario, id)
		}
		c.scenarios = append(c.scenarios, scenarios[i])
	}
	return c, nil
}

// Knows reports whether messages of the run were checked already: otherwise pass its earlier messages first.
func (c *Checker) Knows(run string) bool { return c.runs[run] != nil || c.gone[hashOf(run)] }

func hashOf(run string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(run))
	return h.Sum64()
}

// Run returns the run of a message: the last token of its subject, otherwise the run in its event; "" for none.
func (m *Message) Run() string {
	if m.Subject != "" {
		return m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	}
	e, err := schema.Decode(m.Record.Header, m.Record.Body)
	if err != nil {
		return ""
	}
	return e.Subject
}

// Add checks the next message of the log, with the fleet's keys.
func (c *Checker) Add(keys *schema.Keys, m Message) {
	name := m.Run()
	if name == schema.BarrierRun {
		return
	}
	r := c.runs[name]
	if r == nil && c.gone[hashOf(name)] {
		return // its events since it was dropped are unknown
	}
	p := schema.Prepare(keys, &m.Record)
	if schema.ErasedMark(p.Event) {
		return // the daemon's own message, not an event of the run
	}
	c.report.Events++
	if m.Home == "" && r != nil && m.Subject != "" && m.Subject != r.subject {
		m.Home = r.subject
	}
	if m.Home != "" {
		if r != nil {
			r.bad = true
		}
		f := at(&m, name, p.Event)
		c.found(reasonRules[schema.ReasonWrongShard], &f, "", "the subject "+m.Home, m.Subject)
		return // the fold of that shard refuses it, and no reader of the run reads that shard
	}
	if r == nil {
		r = newRun(c, name)
		c.runs[name] = r
		c.order = append(c.order, name)
		c.report.Runs++
		c.forget()
	}
	r.keepSubject(m.Subject)
	r.add(&m, &p)
}

// forget drops runs when there are too many, ended ones first. It drops many at once, so that not every new run causes
// a search.
func (c *Checker) forget() {
	if len(c.order) <= maxRuns {
		return
	}
	newest, most := c.order[len(c.order)-1], maxRuns/8
	let := func(ended bool) {
		c.order = slices.DeleteFunc(c.order, func(name string) bool {
			if most == 0 || name == newest || ended && !c.runs[name].head.Status.Terminal() {
				return false
			}
			most--
			delete(c.runs, name)
			if len(c.gone) < maxGone {
				c.gone[hashOf(name)] = true
			}
			c.report.Forgotten++
			return true
		})
	}
	let(true)
	let(false)
}

// found records a breach.
func (c *Checker) found(rule string, f *Finding, field, expected, found string) {
	r, ok := RuleOf(rule)
	if !ok {
		panic("no rule " + rule)
	}
	f.Rule, f.Level, f.Text, f.Section, f.Next = r.ID, r.Level, r.Text, Page+"#"+r.Section, r.Next
	f.Field, f.Expected, f.Found = field, schema.Cut(expected, maxText), schema.Cut(found, maxText)
	if r.Level == Must {
		c.report.Must++
	} else {
		c.report.Should++
	}
	key := [2]string{rule, f.Run}
	c.counts[key]++
	switch n := c.counts[key]; {
	case n == 1:
		c.index[key] = len(c.report.Findings)
		c.report.Findings = append(c.report.Findings, *f)
	case n <= findingsOfRule:
		c.report.Findings = append(c.report.Findings, *f)
	default:
		c.report.Findings[c.index[key]].More++
	}
}

// Findings returns the findings so far.
func (c *Checker) Findings() []Finding { return c.report.Findings }

// Done reports whether scenarios were expected and all of them were seen.
func (c *Checker) Done() bool {
	if len(c.scenarios) == 0 {
		return false
	}
	for _, o := range c.outcomes() {
		if !o.Passed {
			return false
		}
	}
	return true
}

// Report returns the report so far.
func (c *Checker) Report() *Report {
	r := c.report
	r.Findings = slices.Clone(c.report.Findings)
	r.Scenarios = c.outcomes()
	r.Passed = r.Must == 0 && r.Events > 0
	for _, o := range r.Scenarios {
		r.Passed = r.Passed && o.Passed
	}
	for _, rule := range rules {
		why := ""
		switch {
		case rule.Source == Wire && !c.wire:
			why = "NATS headers were not seen: they are only in published messages, not in the log"
		case rule.Source == Beats && !c.heard:
			why = "no heartbeat was seen: heartbeats are published but not stored"
		case rule.Source == Log && r.Events == 0:
			why = "no event was seen"
		default:
			r.Judged++
			continue
		}
		r.NotJudged = append(r.NotJudged, NotJudged{Rule: rule.ID, Why: why})
	}
	return &r
}
