package waymarktest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/internal/send"
	"github.com/waymarkio/waymark/schema"
)

// trial is one run of an agent, killed at one point.
type trial struct {
	run     string
	point   *point
	outside *outside
	// events that the first life published.
	events int
	// lives that it took; killed are the numbers of those that were killed.
	lives  int
	killed []int
	state  *schema.State
	// log has the executors' messages.
	log trialLog
	// worked is the error that the work of the last life returned.
	worked error
	// history has the events in the log, one per line; each life starts with a line of its own.
	history []string
	// failed says why the run did not end; empty if it did.
	failed string
}

// life is one life of an executor in a trial.
type life struct {
	number int
	point  *point
	// stop cuts the executor off from the log.
	stop func()

	mu sync.Mutex
	// events that it has published.
	events int
	over   bool
	// killed is closed when it was.
	killed chan struct{}
}

// dead reports whether the life is over.
func (l *life) dead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

// dies reports whether the life ends here.
func (l *life) dies(kind pointKind, number int) bool {
	p := l.point
	if p == nil {
		return false
	}
	if p.kind == behindEach {
		return kind == behindEvent && number == l.number
	}
	return l.number == 1 && p.kind == kind && number == p.number
}

// end kills the life.
func (l *life) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.over = true
		close(l.killed)
		l.stop()
	}
}

// errCut is the outcome of each event of a killed executor.
var errCut = fmt.Errorf("%w: %w", ErrKilled, nats.ErrConnectionClosed)

// append is called instead of an append to the log.
func (l *life) append(store func() eventlog.Appended) eventlog.Appended {
	l.mu.Lock()
	if l.over {
		l.mu.Unlock()
		return cut()
	}
	l.events++
	n := l.events
	l.mu.Unlock()
	if l.dies(beforeEvent, n) {
		l.end()
		return cut()
	}
	answer := store()
	if l.dies(behindEvent, n) {
		l.end()
		return cut()
	}
	return answer
}

func cut() eventlog.Appended { return eventlog.Appended{Outcome: eventlog.Unsent, Err: errCut} }

// try runs one trial, killed at a point; nil for none.
func (c *crashes) try(p *point) *trial {
	w := c.w
	w.tb.Helper()
	c.tries++
	t := &trial{run: cmp.Or(c.run, fmt.Sprintf("run-%d-waymarktest", c.tries)), point: p, outside: new(outside)}
	spec := c.spec.Run
	spec.ID = t.run
	ctx, cancel := w.context()
	defer cancel()
	if c.person == nil {
		c.person = w.Fleet("person", nil)
	}
	if len(c.recorded) == 0 {
		_, err := c.person.Submit(ctx, spec)
		w.must(err, "submit run %s", t.run)
	}
	last := schema.StreamSequence(0)
	for _, e := range c.recorded {
		stored := eventlog.Append(ctx, w.Reader().Conn().RequestMsgWithContext, eventlog.Message(schema.NamesOf(schema.DefaultFleet, 0), e), last)
		w.must(stored.Err, "store event %s", e.ID)
		last = stored.Stream
	}
	most := 20
	for _, whole := range c.whole {
		most += whole.events
	}
	for n := 1; ; n++ {
		t.lives = n
		if n > most {
			t.failed = fmt.Sprintf("it has not ended after %d lives", most)
			if t.worked != nil {
				t.failed += fmt.Sprintf(", and its work returned in the last one: %v", t.worked)
			}
			break
		}
		if ended, err := c.live(ctx, t, n); err != nil {
			t.failed = err.Error()
			break
		} else if ended {
			break
		}
	}
	t.state = w.State(t.run)
	w.must(w.Reader().Hydrate(ctx, t.state), "read run %s", t.run)
	t.history = c.history(ctx, t)
	return t
}

// live runs one life of the executor and settles held calls after it. It reports whether the run has ended.
func (c *crashes) live(ctx context.Context, t *trial, number int) (ended bool, err error) {
	w := c.w
	w.tb.Helper()
	l := &life{number: number, point: t.point, killed: make(chan struct{})}
	log := t.log.logger()
	change := func(cfg *publisher.Config) {
		cfg.Logger = &log
		if c.spec.Config != nil {
			c.spec.Config(cfg)
		}
	}
	done := make(chan error, 1) // of this life: the work of a killed life may end during a later one
	agent := func(context.Context, *publisher.Run) (publisher.Work, error) {
		return c.versions[min(number, len(c.versions))-1](&Outside{outside: t.outside, life: l}), nil
	}
	s := w.serve("crash", publisher.ExecutorSpec{
		Agents:   map[string]func(context.Context, *publisher.Run) (publisher.Work, error){c.spec.Run.Agent: agent},
		Capacity: -1,
		OnOutcome: func(_ string, _ publisher.Outcome, err error) {
			done <- err
		},
	}, change, send.Hooks{NoOutwait: true, Append: l.append, Tool: c.tool})
	l.stop = s.conn.Close
	defer func() {
		if number == 1 {
			l.mu.Lock()
			t.events = l.events
			l.mu.Unlock()
		}
	}()
	reason := schema.TakeoverRestart
	if number == 1 && len(c.recorded) > 0 {
		reason = "" // of another executor
	}
	run, err := s.fleet.Resume(ctx, t.run, publisher.ResumeSpec{Reason: reason})
	if err == nil {
		err = s.executor.Adopt(run)
	}
	if err != nil {
		_ = s.kill(ctx) // never an error
		return false, fmt.Errorf("take over run %s: %w", t.run, err)
	}
	failed := c.attend(t, l, done)
	if l.dead() || failed != nil {
		t.killed = append(t.killed, number)
		_ = s.kill(ctx) // never an error
	} else if err := s.stop(ctx); err != nil {
		return false, err
	}
	if failed != nil {
		return false, failed
	}
	return c.between(ctx, t)
}

// attend answers the waits of the run until its executor has finished with it, or was killed.
func (c *crashes) attend(t *trial, l *life, done <-chan error) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		select {
		case <-l.killed:
			return nil
		case t.worked = <-done: // the run's state is read afterwards
			return nil
		case <-deadline.C:
			return fmt.Errorf("its executor has not finished after %s", patience)
		case <-tick.C:
			h := c.w.head(t.run)
			if err := c.answer(t, &h); err != nil {
				l.end()
				return err
			}
		}
	}
}

// answer answers the waits of the run in place of a person.
func (c *crashes) answer(t *trial, h *schema.Head) error {
	ctx, cancel := c.w.context()
	defer cancel()
	for _, o := range h.Interrupts {
		if o.Reason == schema.WaitToolInDoubt {
			continue
		}
		if o.Reason == schema.WaitTimer {
			if err := c.expire(&o); err != nil {
				return err
			}
			continue
		}
		if c.spec.Answer == nil {
			return fmt.Errorf("it waits for %s (%s), and the test has no Crash.Answer", o.Reason, o.Message)
		}
		in := c.spec.Answer(o)
		if in.Status == schema.InputExpired {
			if err := c.expire(&o); err != nil {
				return err
			}
			continue
		}
		in.InterruptID, in.EventID = o.InterruptID, o.Position.ID
		err := c.person.Input(ctx, t.run, in)
		if err != nil && !errors.Is(err, publisher.ErrUnknownInterrupt) && !errors.Is(err, publisher.ErrRunEnded) {
			return fmt.Errorf("answer %s: %w", o.InterruptID, err)
		}
	}
	return nil
}

// expire lets the time of a question pass.
func (c *crashes) expire(o *schema.OpenInterrupt) error {
	at, err := time.Parse(time.RFC3339Nano, o.ExpiresAt)
	if err != nil {
		return fmt.Errorf("question %s does not expire, and its answer is that it has", o.InterruptID)
	}
	if left := at.Sub(c.w.Now()); left >= 0 {
		c.w.Advance(left + time.Millisecond)
	}
	return nil
}

// between does the work between two executors: it settles held calls. It reports whether the run has ended.
func (c *crashes) between(ctx context.Context, t *trial) (ended bool, err error) {
	h := c.w.head(t.run)
	if h.Status.Terminal() {
		return true, nil
	}
	if h.Quarantined(0) && (t.point == nil || t.point.kind != behindEach) {
		return false, fmt.Errorf("it is quarantined: %d executors in a row made no progress, and its work returned in the last one: %w", h.Stalled, t.worked)
	}
	if err := c.answer(t, &h); err != nil {
		return false, err
	}
	for _, o := range h.HeldCalls() {
		if o.State != schema.CallHeld {
			continue // the next executor may have its late result
		}
		request := schema.SettleRequest{CallKey: o.CallKey, CallEpoch: o.Epoch, How: schema.SettledRerun, By: "waymarktest"}
		if t.outside.made(o.CallKey) {
			request.How = schema.SettledAbandoned
			for _, whole := range c.whole {
				if call := whole.state.Call(o.CallKey); call != nil && call.Name == o.Name && call.Outcome == schema.OutcomeReturned {
					// The person sees the result of this run's call: with this run's names, not those of the other run.
					request.How, request.IsError = schema.SettledDecided, call.IsError
					request.Result = []byte(strings.ReplaceAll(string(call.Result), whole.run, t.run))
				}
			}
		}
		if _, err := c.person.Settle(ctx, t.run, request); err != nil && !errors.Is(err, publisher.ErrNotInDoubt) {
			return false, fmt.Errorf("settle call %s: %w", o.ToolCallID, err)
		}
	}
	return false, nil
}
