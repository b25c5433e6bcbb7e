//go:build unix

package nemesis_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// burstMore is how much more resident memory a daemon may have taken at its peak by the end of a burst, or while the store is slow.
const burstMore = 128 << 20

// crowd is executors of this process with many active runs, which write boundaries at a rate and record how each
// single call ended.
type crowd struct {
	world  *world
	name   string
	fleets []*publisher.Fleet
	// runs of all executors together, each with about pause between two boundaries; 0 means none.
	runs  int
	pause time.Duration
	// timeout of a publish, and of a request.
	timeout time.Duration
	begun   atomic.Int64
	// shifts counts how often they were at work.
	shifts int

	mu sync.Mutex
	// ends counts the calls by how they ended, slowest is the one that took longest; wrong are those that ended otherwise than promised.
	ends    map[string]int
	slowest time.Duration
	wrong   []string
	ids     []string
}

// crowd connects the executors.
func (w *world) crowd(name string, executors, runs int, pause, timeout time.Duration) *crowd {
	w.tb.Helper()
	c := &crowd{world: w, name: name, runs: runs, pause: pause, timeout: timeout, ends: make(map[string]int)}
	for i := range executors {
		c.fleets = append(c.fleets, w.fleet(fmt.Sprintf("%s-%d", name, i), i%w.scale.servers, timeout))
	}
	return c
}

// work makes every executor work for a duration. It returns when all their calls have returned.
func (c *crowd) work(ctx context.Context, d time.Duration) {
	working, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	c.shifts++
	var hands sync.WaitGroup
	for i := range c.runs {
		hands.Go(func() {
			actor := fmt.Sprintf("%s-%d/%d", c.name, i%len(c.fleets), i)
			for n := 0; working.Err() == nil; n++ {
				c.drive(working, c.fleets[i%len(c.fleets)], actor, fmt.Sprintf("%s-%d-%d-%d", c.name, c.shifts, i, n))
			}
		})
	}
	hands.Wait()
}

// drive begins a run and writes it until ctx ends, or its handle does.
func (c *crowd) drive(ctx context.Context, fleet *publisher.Fleet, actor, id string) {
	free := context.WithoutCancel(ctx) // a call in progress returns by its own deadline
	tokens := 0
	next := func() string {
		tokens++
		return checker.Token(actor+"/"+id, tokens)
	}
	token := next()
	op := c.world.record.Begin(checker.Op{Actor: actor, Kind: checker.Publish, Run: id, Epoch: 1, Sequence: 1, Token: token, Detail: schema.RunStarted})
	var run *publisher.Run
	err := c.call(func() (err error) {
		run, err = fleet.Start(free, publisher.RunSpec{ID: id, Task: token})
		return err
	})
	c.world.record.End(op, func(op *checker.Op) {
		Ended(op, err)
		if err != nil {
			op.Outcome = checker.Unknown // Start gives no handle to find out with
		}
	})
	if err != nil {
		c.rest(ctx)
		return
	}
	c.mu.Lock()
	c.ids = append(c.ids, id)
	c.mu.Unlock()
	publish := func(name string, do func(ctx context.Context, m schema.Message) error) error {
		token := next()
		m := schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text(token), schema.Text(strings.Repeat("all at once ", len(token)))}}
		return Publish(free, c.world.record, checker.Op{Actor: actor, Token: token, Detail: name}, run, func(ctx context.Context) error {
			return c.call(func() error { return do(ctx, m) })
		})
	}
	for c.rest(ctx) && run.Err() == nil {
		head, turn := run.Head(), run.OpenTurn()
		// Errors are in the history.
		switch {
		case turn == nil:
			_ = publish(schema.TurnStarted, func(ctx context.Context, m schema.Message) error {
				m.Role = schema.RoleUser
				_, err := run.StartTurn(ctx, publisher.TurnSpec{Messages: []schema.Message{m}})
				return err
			})
		case !head.TurnAnswered:
			_ = publish(schema.TurnAnswered, func(ctx context.Context, m schema.Message) error {
				call := publisher.ToolCall{ID: "c", Name: "read", Replay: schema.ReplayPure}
				m.Parts = append(m.Parts, schema.CallPart(call.ID, call.Name))
				_, err := turn.Answer(ctx, publisher.Answer{Message: m, Calls: []publisher.ToolCall{call}})
				return err
			})
		default:
			_ = publish(schema.ToolReturned, func(ctx context.Context, m schema.Message) error {
				result, err := publisher.Result(m.Parts[0].Content)
				if err != nil {
					return err
				}
				return turn.Return(ctx, head.OpenCalls[0].CallKey, result)
			})
		}
	}
	if run.Err() == nil {
		_ = publish(schema.RunEnded, func(ctx context.Context, m schema.Message) error {
			return run.End(ctx, publisher.RunEnd{Summary: *m.Parts[0].Content})
		})
	}
}

// rest waits for the rate, and reports whether there is more to do.
func (c *crowd) rest(ctx context.Context) bool {
	timer := time.NewTimer(c.pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// promised are the errors that a call of an executor may end with, when there is more to do than can be done.
func promised() map[string]error {
	return map[string]error{
		"ErrUnresolved": publisher.ErrUnresolved, "ErrUnavailable": publisher.ErrUnavailable, "ErrNoService": publisher.ErrNoService,
		"ErrFleetFull": publisher.ErrFleetFull, "ErrFenced": publisher.ErrFenced,
	}
}

// call makes one call, and checks its result: success, or an error with a name, within its time.
func (c *crowd) call(do func() error) error {
	c.begun.Add(1)
	begun := time.Now()
	err := do()
	took := time.Since(begun)
	end := "done"
	if err != nil {
		end = ""
		for name, is := range promised() {
			if errors.Is(err, is) {
				end = name
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slowest = max(c.slowest, took)
	// A busy machine does not wake processes in time.
	if end == "" || took > 3*c.timeout+20*time.Second {
		c.wrong = append(c.wrong, fmt.Sprintf("%v after %s", err, took))
		end = "otherwise"
	}
	c.ends[end]++
	return err
}

// held fails if a call ended in an unexpected way, and logs how all of them ended.
func (c *crowd) held(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	t.Logf("%s: %d calls of %d executors with %d active runs ended %v, the slowest after %s of %s", c.name, c.begun.Load(), len(c.fleets), c.runs, c.ends,
		c.slowest.Round(time.Millisecond), c.timeout)
	require.Empty(t, c.wrong, "calls that ended otherwise than promised")
	require.Positive(t, c.ends["done"])
}

// ordinary is the load of a round's executors next to a burst: so many active runs, each with so long between two
// boundaries.
func ordinary() scale {
	s := scaleOf(1)
	s.executors, s.slots, s.pause, s.steal, s.toolless = 2, 1, 400, 0, true
	return s
}

// Fifty times as many runs are written at the same rate, and in the full test as fast as the server accepts them, for
// some seconds. No acknowledged event is lost, refused callers learn that in time, the daemon's memory is bounded,
// and everything works again without help.
func TestBurst_FiftyTimesRate_LosesNothing(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	s := ordinary()
	r := newRound(t, s, number(t, "WAYMARK_CHAOS_SEED", 1))
	pace := time.Duration(s.pause) * time.Millisecond
	took := 3 * time.Second
	bursts := []*crowd{r.crowd("fiftyfold", 10, 50*s.executors*s.slots, pace, s.timeout)}
	if testbin.Full(t) {
		took = 20 * time.Second
		bursts = append(bursts, r.crowd("headlong", 10, 50*s.executors*s.slots, 0, s.timeout))
	}
	for _, c := range bursts {
		before := peak(r.daemons[0])
		r.suffer(fault{name: "burst-" + c.name, strike: func(ctx context.Context, _ *storm) error {
			watching, stop := context.WithCancel(ctx)
			var watch sync.WaitGroup
			watch.Go(func() { c.shown(watching, r.prober) })
			c.work(ctx, took)
			stop()
			watch.Wait()
			return nil
		}})
		c.held(t)
		r.moreMemory(t, before)
	}
	r.sumUp(t)
}

// sumUp has the round judged once enough was done, and prints how it fared.
func (r *round) sumUp(t *testing.T) {
	t.Helper()
	r.enough()
	r.judge()
	h, err := r.read()
	require.NoError(t, err)
	r.fared(t, h)
}

// enough waits until so much was done that the checker judges it.
func (r *round) enough() {
	r.tb.Helper()
	r.eventually("too few operations", func() error {
		h, err := r.read()
		if err != nil {
			return err
		}
		done := make(map[checker.Kind]int)
		for i := range h.Ops {
			if h.Ops[i].Outcome == checker.OK {
				done[h.Ops[i].Kind]++
			}
		}
		if done[checker.Publish] < 100 || done[checker.Takeover] < 10 || done[checker.Read] < 10 {
			return fmt.Errorf("%v", done)
		}
		return nil
	})
}

// shown tells the prober of the crowd's runs as they begin, until ctx ends: the prober reads them.
func (c *crowd) shown(ctx context.Context, p *prober) {
	every := time.NewTicker(100 * time.Millisecond)
	defer every.Stop()
	for {
		select {
		case <-every.C:
			c.mu.Lock()
			ids := slices.Clone(c.ids)
			c.mu.Unlock()
			p.know(ids)
		case <-ctx.Done():
			return
		}
	}
}

// moreMemory fails if the daemon's memory has grown by more than active work may take.
func (w *world) moreMemory(t *testing.T, before int64) {
	t.Helper()
	after := peak(w.daemons[0])
	t.Logf("resident memory of the daemon at most: %d MiB before, %d MiB then", before>>20, after>>20)
	require.LessOrEqual(t, after, before+burstMore, "resident memory of the daemon")
}

// fared logs how ordinary boundaries and recoveries went before, during and after each fault.
func (r *round) fared(t *testing.T, h *checker.History) {
	t.Helper()
	from := int64(0)
	for _, s := range append(slices.Clone(r.struck), struck{Fault: "the end", begin: r.record.Now()}) {
		r.times(t, h, "before "+s.Fault, from, s.begin)
		if s.end > 0 {
			r.times(t, h, "while "+s.Fault, s.begin, s.healed)
			from = s.healed
		}
	}
}

// times logs how long operations took that began between two moments, and how many there were per second.
func (r *round) times(t *testing.T, h *checker.History, when string, from, to int64) {
	t.Helper()
	took := make(map[string][]time.Duration)
	first := to
	for i := range h.Ops {
		op := &h.Ops[i]
		if op.Start < from || op.Start >= to {
			continue
		}
		what := ""
		switch {
		case op.Kind == checker.Publish && strings.HasPrefix(op.Actor, "executor-"):
			what = "ordinary boundaries"
		case op.Kind == checker.Publish && op.Actor != "prober" && op.Actor != "judge":
			what = "boundaries of the crowd"
		case op.Kind == checker.Takeover && op.Actor == "prober":
			what = "recoveries"
		case op.Kind == checker.Read:
			what = "reads"
		default:
			continue
		}
		first = min(first, op.Start)
		if op.Outcome == checker.OK {
			took[what] = append(took[what], time.Duration(op.End-op.Start))
		} else {
			took[what+" without success"] = append(took[what+" without success"], time.Duration(op.End-op.Start))
		}
	}
	for _, what := range slices.Sorted(maps.Keys(took)) {
		list := took[what]
		slices.Sort(list)
		t.Logf("%s: %s: %d, %.1f a second; p50 %s, p99 %s, worst %s", when, what, len(list), float64(len(list))/time.Duration(to-first).Seconds(),
			list[len(list)/2].Round(time.Millisecond), list[len(list)*99/100].Round(time.Millisecond), list[len(list)-1].Round(time.Millisecond))
	}
}
