//go:build unix

package nemesis_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// mostSignals is how many signals are sent to a run.
const mostSignals = 3

// loopScale is how much work for Loops a world has.
type loopScale struct {
	// executors that work on Loops, each on so many runs at once.
	executors, each int
	// runs that there are; 0 means as many as keep the executors at work.
	runs int
	// turns of a run that call tools, and how long a model thinks on average, in milliseconds.
	turns int
	pause int64
}

// slotted are the executors that do not work on Loops.
func (w *world) slotted() []*process { return w.executors[:min(len(w.executors), w.scale.executors)] }

// people submit runs for Loops, send signals to them, and settle their calls in doubt, some of which they leave open.
type people struct {
	world *world
	fleet *publisher.Fleet
	rnd   *rand.Rand
	stop  context.CancelFunc
	work  sync.WaitGroup

	mu   sync.Mutex
	runs []*loopRunSeen
}

// loopRunSeen is a run as people see it.
type loopRunSeen struct {
	id        string
	submitted bool
	// status is the latest one seen, events how many the run had and moved when they changed last.
	status schema.Status
	events int64
	moved  time.Time
	// rests: it has ended, or waits for the settlement of a call that is left open.
	rests   bool
	signals []*loopSignalSent
}

// loopSignalSent is a signal: acknowledged, or refused because the run has ended. If it is neither, it is sent again.
type loopSignalSent struct {
	id                    string
	acknowledged, refused bool
}

// busy starts the people of a world.
func (w *world) busy() *people {
	w.tb.Helper()
	ctx, stop := context.WithCancel(w.tb.Context())
	p := &people{
		world: w, fleet: w.fleet("people", 0, 5*time.Second), stop: stop,
		rnd: rand.New(rand.NewPCG(w.seed, 4)), //nolint:gosec // chooses the signals
	}
	w.tb.Cleanup(p.end)
	p.work.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			p.submit(ctx)
			for _, run := range p.all() {
				p.attend(ctx, run)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	return p
}

// end stops them, and waits until they have.
func (p *people) end() {
	p.stop()
	p.work.Wait()
}

func (p *people) all() []*loopRunSeen {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.runs)
}

// submit submits runs until there are enough: as many as the world wants, or as keep its executors at work.
func (p *people) submit(ctx context.Context) {
	for ctx.Err() == nil {
		runs := p.all()
		active := 0
		for _, run := range runs {
			if !run.rests {
				active++
			}
		}
		s := &p.world.scale.loops
		var next *loopRunSeen
		switch {
		case len(runs) > 0 && !runs[len(runs)-1].submitted: // the same again
			next = runs[len(runs)-1]
		case s.runs > 0 && len(runs) >= s.runs, s.runs == 0 && active >= s.executors*s.each:
			return
		default:
			next = &loopRunSeen{id: fmt.Sprintf("loop-%d", len(runs)), moved: time.Now()}
			p.mu.Lock()
			p.runs = append(p.runs, next)
			p.mu.Unlock()
		}
		_, err := p.fleet.Submit(ctx, publisher.RunSpec{ID: next.id, Agent: loopAgent, Task: "change things"})
		if err != nil {
			return
		}
		p.mu.Lock()
		next.submitted = true
		p.mu.Unlock()
	}
}

// attend looks at a run, settles its calls in doubt, and sends it a signal from time to time.
func (p *people) attend(ctx context.Context, run *loopRunSeen) {
	if !run.submitted || run.status.Terminal() {
		return
	}
	head, err := p.fleet.Head(ctx, run.id)
	if err != nil {
		return // asked again
	}
	rests := head.Status.Terminal() || leftWaiting(&head)
	p.mu.Lock()
	if run.events != head.Counts.Events {
		run.events, run.moved = head.Counts.Events, time.Now()
	}
	run.status, run.rests = head.Status, rests
	p.mu.Unlock()
	if !rests {
		p.settle(ctx, &head)
	}
	p.signal(ctx, run)
}

// leftWaiting reports whether a run waits for the settlement of a call that people leave open.
func leftWaiting(head *schema.Head) bool {
	return slices.ContainsFunc(head.Interrupts, func(o schema.OpenInterrupt) bool {
		return o.Reason == schema.WaitToolInDoubt && leftOpen(head.Run, o.ToolCallID)
	})
}

// settle settles the calls that the run waits for.
func (p *people) settle(ctx context.Context, head *schema.Head) {
	for i := range head.Interrupts {
		o := &head.Interrupts[i]
		at := head.FindOpen(o.Turn, o.ToolCallID, o.Occurrence)
		if o.Reason != schema.WaitToolInDoubt || at < 0 || leftOpen(head.Run, o.ToolCallID) {
			continue
		}
		request, err := outside(p.world.outside()).settle(&head.OpenCalls[at], head.Run, head.Epoch)
		if err == nil {
			_, err = p.fleet.Settle(ctx, head.Run, request) // asked again
		}
		if err != nil && !errors.Is(err, publisher.ErrUnavailable) && ctx.Err() == nil {
			p.world.tb.Logf("settlement of call %s of run %s: %v", o.ToolCallID, head.Run, err)
		}
	}
}

// signal sends a signal, or one again whose fate is not known.
func (p *people) signal(ctx context.Context, run *loopRunSeen) {
	var next *loopSignalSent
	if n := len(run.signals); n > 0 && !run.signals[n-1].acknowledged && !run.signals[n-1].refused {
		next = run.signals[n-1]
	} else if n == mostSignals || run.status.Terminal() || p.rnd.IntN(20) > 0 {
		return
	} else {
		next = &loopSignalSent{id: fmt.Sprintf("%s.signal-%d", run.id, n)}
		run.signals = append(run.signals, next)
	}
	err := p.fleet.Signal(ctx, run.id, publisher.SignalSpec{ID: next.id, Name: loopSignal, Payload: []byte(`"` + next.id + `"`)})
	switch {
	case err == nil:
		next.acknowledged = true
	case errors.Is(err, publisher.ErrRunEnded), errors.Is(err, publisher.ErrSignalsFull):
		next.refused = true
	}
}

// await waits until each run rests. A world in which no run moves does not get there.
func (p *people) await() {
	p.world.tb.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for ; ; <-tick.C {
		p.mu.Lock()
		var active []string
		var moved time.Time
		for _, run := range p.runs {
			if !run.rests {
				active = append(active, fmt.Sprintf("%s (%s, %d events)", run.id, run.status, run.events))
			}
			if run.moved.After(moved) {
				moved = run.moved
			}
		}
		all := len(p.runs) == p.world.scale.loops.runs
		p.mu.Unlock()
		switch {
		case all && len(active) == 0:
			return
		case time.Since(moved) > patience:
			require.Fail(p.world.tb, "runs neither complete nor wait", "no run has moved for %s: %s", patience, strings.Join(active, ", "))
		}
	}
}

// loopCounts are the results of the runs that Loops worked on.
type loopCounts struct {
	Seed    uint64 `json:"loops"`
	Servers int    `json:"servers"`
	Faults  int    `json:"faults"`
	Runs    int    `json:"runs"`
	// Waiting runs wait for a call that was left open, Unfinished ones were still at work when the load ended.
	Completed  int `json:"completed"`
	Waiting    int `json:"waiting"`
	Unfinished int `json:"unfinished"`
	Failed     int `json:"failed"`
	// HoldEffects counts the effects of hold tools outside of the fleet, Twice the calls with more than one.
	HoldEffects int `json:"hold_effects"`
	Twice       int `json:"twice"`
	// Signals that were acknowledged, or recorded without that. Pending ones are in the record of a run that has not ended.
	Signals   int `json:"signals"`
	ToldOnce  int `json:"told_once"`
	ToldTwice int `json:"told_twice"`
	NotTold   int `json:"not_told"`
	Pending   int `json:"pending"`
	// Large results that reached the model of a completed run.
	Large     int `json:"large"`
	Takeovers int `json:"takeovers"`
}

// judge compares the runs with what was done outside of the fleet, and with what was sent to them.
func (p *people) judge(faults int) loopCounts {
	tb := p.world.tb
	tb.Helper()
	c := loopCounts{Seed: p.world.seed, Servers: p.world.scale.servers, Faults: faults}
	for _, run := range p.all() {
		if !run.submitted {
			continue
		}
		c.Runs++
		var state *schema.State
		p.world.eventually("run "+run.id+" cannot be read", func() (err error) {
			state, err = p.fleet.Get(tb.Context(), run.id)
			return err
		})
		c.add(tb, run, state)
	}
	c.effects(tb, outside(p.world.outside()))
	tb.Logf("Loops: %+v", c)
	return c
}

// add judges one run.
func (c *loopCounts) add(tb testing.TB, run *loopRunSeen, state *schema.State) {
	tb.Helper()
	head := &state.Head
	c.Takeovers += len(state.Takeovers)
	switch {
	case head.Status == schema.StatusCompleted:
		c.Completed++
	case head.Status.Terminal():
		c.Failed++
		tb.Errorf("run %s ended as %s: %+v", run.id, head.Status, state.Ended.Error)
	case leftWaiting(head):
		c.Waiting++
	default:
		c.Unfinished++
	}
	record, said := spoken(tb, run.id, state)
	if head.Status == schema.StatusCompleted {
		c.Large += said.Results
	}
	if len(said.Damaged) > 0 {
		tb.Errorf("run %s: the model was shown damaged results of %v", run.id, said.Damaged)
	}
	for _, s := range run.signals {
		c.signal(tb, head, s, count(record, s.id), count(said.Signals, s.id))
	}
}

// signal judges a signal, by how often the record tells it and how often the model had been told it in its last answer.
func (c *loopCounts) signal(tb testing.TB, head *schema.Head, s *loopSignalSent, recorded, told int) {
	tb.Helper()
	if s.acknowledged || recorded > 0 {
		c.Signals++
	}
	ended := head.Status.Terminal()
	pending := slices.ContainsFunc(head.Signals, func(o schema.OpenSignal) bool { return o.SignalID == s.id })
	switch {
	case recorded > 1, told > 1:
		c.ToldTwice++
		tb.Errorf("run %s: signal %s is recorded %d times, and its model was told it %d times", head.Run, s.id, recorded, told)
	case recorded == 1 && (told == 1 || !ended):
		c.ToldOnce++
	case !ended && pending:
		c.Pending++
	case s.acknowledged:
		c.NotTold++
		tb.Errorf("run %s (%s): signal %s was acknowledged, is recorded %d times, and its model was told it %d times", head.Run, head.Status, s.id, recorded, told)
	case told != recorded:
		tb.Errorf("run %s: signal %s is recorded %d times, and its model was told it %d times", head.Run, s.id, recorded, told)
	}
}

func count(list []string, id string) (n int) {
	for _, s := range list {
		if s == id {
			n++
		}
	}
	return n
}

// spoken is which signals the record tells the model, and what the model had been told in its last answer. No answer
// may lack a signal that an earlier one had, or have it twice.
func spoken(tb testing.TB, run string, state *schema.State) (record []string, last heard) {
	tb.Helper()
	for i := range state.Messages {
		m := &state.Messages[i].Message
		if m.Role != schema.RoleAssistant {
			record = append(record, told(run, []schema.Message{{Role: m.Role, Parts: m.Parts}}).Signals...)
			continue
		}
		var said heard
		require.NoError(tb, json.Unmarshal([]byte(*m.Parts[0].Content), &said), "an answer of run %s", run)
		for _, id := range said.Signals {
			if count(said.Signals, id) > 1 {
				tb.Errorf("run %s: the model was told signal %s %d times in one request", run, id, count(said.Signals, id))
			}
		}
		if len(said.Signals) < len(last.Signals) || !slices.Equal(said.Signals[:len(last.Signals)], last.Signals) {
			tb.Errorf("run %s: the model was told signals %v, and then %v", run, last.Signals, said.Signals)
		}
		said.Damaged = append(last.Damaged, said.Damaged...)
		last = said
	}
	return record, last
}

// effects counts those of tools that may run once.
func (c *loopCounts) effects(tb testing.TB, o outside) {
	tb.Helper()
	files, err := os.ReadDir(string(o))
	require.NoError(tb, err)
	had := make(map[string]int)
	for _, file := range files {
		name := strings.Split(file.Name(), ".") // run, call, epoch
		if len(name) < 3 || !strings.HasPrefix(name[0], "loop-") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(string(o), file.Name()))
		require.NoError(tb, err)
		if string(text) == refused {
			continue
		}
		had[name[0]+"."+name[1]]++
		if strings.HasPrefix(name[1], string(schema.ReplayHold)) {
			c.HoldEffects++
		}
	}
	for _, call := range slices.Sorted(maps.Keys(had)) {
		if had[call] > 1 {
			c.Twice++
			tb.Errorf("call %s had its effect %d times", call, had[call])
		}
	}
}

// ofLoop reports whether a run is one that Loops work on.
func ofLoop(run string) bool { return strings.HasPrefix(run, "loop-") }

// apart takes the operations on the runs of Loops out of a history. When their events were published is not known: the
// Loop does that by itself.
func apart(h *checker.History) (others, loops *checker.History) {
	others, loops = new(checker.History), new(checker.History)
	for _, op := range h.Ops {
		if !ofLoop(op.Run) {
			others.Ops = append(others.Ops, op)
			continue
		}
		if op.Kind == checker.Publish {
			op.Start = 0
		}
		loops.Ops = append(loops.Ops, op)
	}
	return others, loops
}

// checkLoops returns the violations in the runs of Loops. Their executors record acknowledgements only, not requests.
func checkLoops(h *checker.History, finals []checker.Final) []checker.Violation {
	return checker.Check(h, finals, checker.Options{
		Keys: schema.NoKeys, Fleet: schema.DefaultFleet, Unlogged: true, Least: map[checker.Kind]int{checker.Publish: 1},
	}).Violations
}

// loopFaults are groups of faults that an executor meets as an error, or as silence. A whole round has one of each.
func loopFaults() [][]string {
	return [][]string{
		{"server-kill", "server-stop-kill", "server-kill-loop"},
		{"server-stop"},
		{"server-stop-long"},
		{"server-term", "servers-away"},
		{"executor-cut-off"},
		{"acks-lost", "half-open", "mid-message"},
		{"executor-kill"},
		{"executor-kill"},
		{"executor-stop"},
		{"daemon-kill", "daemon-kill-all"},
		{"daemon-term", "daemon-stop-kill"},
	}
}

// TestLoops_RandomFaults_NoneFails has executors with the SDK's own settings work on Loops with large results, while
// servers are killed and stopped, executors cut off, and daemons restarted.
func TestLoops_RandomFaults_NoneFails(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	servers := int(number(t, "WAYMARK_CHAOS_SERVERS", 1)) //nolint:gosec // 1 or 3
	if servers != 1 {
		t.Skipf("WAYMARK_CHAOS_SERVERS=%d leaves out worlds of 1 server", servers)
	}
	rounds := number(t, "WAYMARK_CHAOS_ROUNDS", 1)
	seed := number(t, "WAYMARK_CHAOS_SEED", uint64(time.Now().UnixNano()%1e9)) //nolint:gosec // any number will do
	for i := range rounds {
		t.Run(fmt.Sprintf("seed=%d", seed+i), func(t *testing.T) {
			s := scaleOf(servers)
			s.executors, s.quarantines = 0, true
			s.loops, s.tool = loopScale{executors: 3, each: 3, runs: 5, turns: 4, pause: 300}, 400
			groups := loopFaults()
			n := 2
			if testbin.Full(t) {
				s.loops, s.tool = loopScale{executors: 3, each: 4, runs: 20, turns: 8, pause: 1000}, 1000
				n = len(groups)
			}
			r := newRound(t, s, seed+i)
			for _, at := range r.storm.rnd.Perm(len(groups))[:n] {
				r.must(r.storm.between(t.Context(), 500, 3000)) // some work gets done
				r.suffer(r.choose(1, groups[at]...)[0])
			}
			r.people.await()
			r.judge()
		})
	}
}
