package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/adapter/session"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

const (
	// firstRestart and mostRestart are the pauses before a program is started again, steadyAfter is how long it must
	// have run to begin with the first one again.
	firstRestart, mostRestart, steadyAfter = time.Second, time.Minute, time.Minute
	// cancelGrace is how long a cancelled tool may take to answer.
	cancelGrace = 5 * time.Second
)

// Config configures a worker.
type Config struct {
	// Command is the program and its arguments. Required.
	Command []string
	// Programs is how many of it run at once; 0 means 1.
	Programs int
	// Executor spec of the runs; the worker sets the agent.
	Spec publisher.ExecutorSpec
	// Connect connects to the fleet. It is called once, when the agent is known; the worker closes the fleet.
	Connect func(ctx context.Context, agent string, change func(*publisher.Config)) (*publisher.Fleet, error)
	// Ready is called when the worker takes runs.
	Ready func(hello *Hello, executor string)
	// Stderr gets the standard error of the programs.
	Stderr io.Writer
	Log    zerolog.Logger
}

// Worker is an executor whose work other programs do.
type Worker struct {
	Config
	hello *Hello

	mu sync.Mutex
	// programs that run; changed is closed when the list changes.
	programs []*program
	changed  chan struct{}
}

// Serve starts the programs and serves the fleet until ctx ends, then stops both in order. It fails at once if the first
// program does not start; later the programs are started again, after a pause.
func Serve(ctx context.Context, cfg Config) (err error) {
	w := &Worker{Config: cfg, changed: make(chan struct{})}
	first, err := start(ctx, w.Command, w.Stderr, w.Log)
	if err != nil {
		return err
	}
	living, die := context.WithCancelCause(context.WithoutCancel(ctx))
	var programs sync.WaitGroup
	defer func() {
		die(publisher.ErrShutdown)
		programs.Wait()
	}()
	w.hello = first.hello
	serving, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	for i := range max(1, w.Programs) {
		p := first
		if i > 0 {
			p = nil
		}
		programs.Go(func() {
			if err := w.keep(living, p); err != nil {
				stop(err)
			}
		})
	}
	err = w.serve(serving)
	if cause := context.Cause(serving); ctx.Err() == nil && cause != nil {
		return errors.Join(cause, err)
	}
	return err
}

// keep keeps one program running until ctx ends. It fails if the program has become another agent.
func (w *Worker) keep(ctx context.Context, p *program) error {
	wait := &pause.Backoff{Next: firstRestart, Most: mostRestart}
	for {
		began := time.Now()
		var err error
		if p == nil {
			p, err = start(ctx, w.Command, w.Stderr, w.Log)
		}
		if err == nil {
			if err := w.run(ctx, p); err != nil || ctx.Err() != nil {
				return err
			}
			err = p.why
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the worker stops
		}
		if time.Since(began) > steadyAfter {
			wait.Next = firstRestart
		}
		w.Log.Error().Err(err).Stringer("restart_within", wait.Next).Msg("program ended")
		if p = nil; !wait.Wait(ctx) {
			return nil
		}
	}
}

// run has a program in use until it ends or ctx does.
func (w *Worker) run(ctx context.Context, p *program) error {
	defer p.stop()
	if before, now := w.hello.text(), p.hello.text(); now != before {
		return fmt.Errorf("the program has another hello than before: start the worker again to serve this version:\n  %s\n  %s", before, now)
	}
	p.mu.Lock()
	if w.hello.OwnLoop {
		p.own = func(m *said) { w.own(p, m) } //nolint:contextcheck // the context is that of the run
	}
	p.mu.Unlock()
	w.change(func() { w.programs = append(w.programs, p) })
	defer w.change(func() { w.programs = slices.DeleteFunc(w.programs, func(o *program) bool { return o == p }) })
	select {
	case <-p.gone:
	case <-ctx.Done():
	}
	return nil
}

// change changes the list of programs.
func (w *Worker) change(how func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	how()
	close(w.changed)
	w.changed = make(chan struct{})
}

// pick returns the program that has the least to do. It waits for one while none runs.
func (w *Worker) pick(ctx context.Context) (*program, error) {
	for {
		w.mu.Lock()
		var p *program
		for _, other := range w.programs {
			if p == nil || other.busy() < p.busy() {
				p = other
			}
		}
		changed := w.changed
		w.mu.Unlock()
		if p != nil {
			return p, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// ask sends a request to that program, which has the run o, if there is one, until the caller forgets the exchange. The program's lines name the
// run alone, so it does not get a run that it has not left yet.
func (w *Worker) ask(ctx context.Context, r request, o *ownRun) (*program, *exchange, error) {
	for {
		p, err := w.pick(ctx)
		if err != nil {
			return nil, nil, err
		}
		x, earlier := p.open(&r, o)
		if earlier != nil {
			select {
			case <-earlier.done:
				continue
			case <-ctx.Done():
				return nil, nil, context.Cause(ctx)
			}
		}
		if err = p.send(ctx, r); err == nil {
			return p, x, nil
		}
		if p.forget(x); !errors.Is(err, publisher.ErrLost) { // otherwise it ended before it had the request
			return nil, nil, err
		}
	}
}

// answer is a program's answer to a request that does no work.
func (w *Worker) answer(ctx context.Context, r request) (*said, error) {
	p, x, err := w.ask(ctx, r, nil)
	if err != nil {
		return nil, err
	}
	defer p.forget(x)
	return p.end(ctx, x, nil, nil)
}

// serve connects to the fleet and serves it.
func (w *Worker) serve(ctx context.Context) (err error) {
	spec := w.Spec
	spec.WaitDetached = true
	if w.hello.OwnLoop {
		spec.Agents = map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
			w.hello.Agent: func(context.Context, *publisher.Run) (publisher.Work, error) { return w.drive, nil },
		}
	} else {
		loop := w.loop()
		if err := loop.Validate(); err != nil {
			return fmt.Errorf("hello: %w", err)
		}
		spec.Loops = map[string]publisher.Loop{w.hello.Agent: loop}
	}
	fleet, err := w.Connect(ctx, w.hello.Agent, func(c *publisher.Config) {
		c.Build, c.Policy, c.Logger = w.hello.Build, w.policy(), &w.Log
	})
	if err != nil {
		return err
	}
	defer func() {
		closing, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelGrace)
		defer stop()
		err = errors.Join(err, fleet.Close(closing))
	}()
	for _, t := range w.hello.Tools {
		if t.Replay != schema.ReplayVerify {
			continue
		}
		stop, err := publisher.ServeVerify(fleet.Conn(), w.verifySubject(&t), w.hello.Agent, w.verify) //nolint:contextcheck // each question has its own
		if err != nil {
			return err //nolint:wrapcheck // it names the subject
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	executor, err := fleet.NewExecutor(spec)
	if err != nil {
		return err //nolint:wrapcheck // it names the field
	}
	w.Ready(w.hello, fleet.Executor())
	return executor.Serve(ctx) //nolint:wrapcheck // as it is
}

// policy asks a person about the calls of tools with a question; nil if there are none.
func (w *Worker) policy() publisher.Policy {
	questions := make(map[string]string)
	for _, t := range w.hello.Tools {
		if t.Ask != "" {
			questions[t.Name] = t.Ask
		}
	}
	if len(questions) == 0 {
		return nil
	}
	return func(_ context.Context, _ *publisher.Run, c publisher.ToolCall) (publisher.Decision, error) {
		if question := questions[c.Name]; question != "" {
			return publisher.Decision{Decision: schema.DecisionAsk, Policy: "hello", Message: question}, nil
		}
		return publisher.Decision{Decision: publisher.NoDecision}, nil
	}
}

// verifySubject is the subject on which workers of the agent answer about calls of a tool.
func (w *Worker) verifySubject(t *Tool) string {
	if t.VerifySubject != "" || t.Replay != schema.ReplayVerify {
		return t.VerifySubject
	}
	return "verify." + w.hello.Agent + "." + t.Name
}

// verifySubjectOf is that of the tool of a call of a program with its own loop; empty if the hello does not list it.
func (w *Worker) verifySubjectOf(m *said) string {
	for i := range w.hello.Tools {
		if t := &w.hello.Tools[i]; t.Name == m.Name {
			return w.verifySubject(t)
		}
	}
	return ""
}

// verify asks a program about a call in doubt.
func (w *Worker) verify(ctx context.Context, q schema.VerifyRequest) (schema.VerifyReply, error) {
	m, err := w.answer(ctx, request{
		Do: "verify", Run: q.Run, Turn: q.Turn, Epoch: q.Epoch, Name: q.Name, Arguments: object(q.Arguments), Key: q.IdempotencyKey,
	})
	if err == nil {
		err = m.failure()
	}
	if err != nil {
		return schema.VerifyReply{}, err
	}
	return schema.VerifyReply{Outcome: m.Outcome, Result: []byte(m.Result), IsError: m.IsError, Reason: m.Summary}, nil
}

// loop is the loop of a program that has none.
func (w *Worker) loop() publisher.Loop {
	h := w.hello
	l := publisher.Loop{
		Model: w.model, System: h.System, Complete: h.Complete, Chat: h.Chat, MaxTurns: h.MaxTurns, MaxTokens: h.MaxTokens,
		MaxTime: milliseconds(h.MaxTimeMS), ModelTimeout: milliseconds(h.ModelTimeoutMS), Drift: h.Drift,
	}
	for i := range h.Tools {
		t := &h.Tools[i]
		parameters := t.Parameters.Clone()
		_ = parameters.Canonicalize() // clients write the same schema with other spaces; another text is refused below
		l.Tools = append(l.Tools, publisher.Tool{
			Name: t.Name, Description: t.Description, Parameters: []byte(parameters), Replay: t.Replay, VerifySubject: w.verifySubject(t),
			SideEffect: t.SideEffect, Version: t.Version, Timeout: milliseconds(t.TimeoutMS), Concurrent: t.Concurrent, BeginsLater: true, Run: w.tool,
		})
	}
	return l
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// model asks a program for the next answer.
func (w *Worker) model(ctx context.Context, r publisher.ModelRequest) (publisher.Answer, error) {
	m, err := w.answer(ctx, request{Do: "model", Run: r.Run, Turn: r.Turn, Messages: r.Messages, Limit: r.Limit})
	if err != nil {
		return publisher.Answer{}, err
	}
	return m.answer(), m.failure()
}

// tool has a program run a tool.
func (w *Worker) tool(ctx context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
	guarded := !inv.Replay.Rerunnable()
	p, x, err := w.ask(ctx, request{
		Do: "tool", Run: inv.Run().ID(), Turn: inv.Key.Turn, Epoch: inv.Epoch, Name: inv.Name, Arguments: object(inv.Arguments),
		Key: inv.IdempotencyKey, Attempt: inv.Attempt, Begin: guarded,
	}, nil)
	if err != nil {
		return publisher.ToolResult{}, fmt.Errorf("%w: %w", publisher.ErrLost, err) // it has not begun: that is for the next executor
	}
	defer p.forget(x)
	m, err := p.end(ctx, x, inv.Run(), func() error {
		within, err := inv.MayBegin(ctx)
		if err != nil {
			return err
		}
		return p.send(ctx, told{ID: x.id, Go: true, WithinMS: within.Milliseconds()})
	})
	if err != nil {
		return publisher.ToolResult{}, err
	}
	return m.outcome(ctx)
}

// end waits for the answer to a request, and calls begin, if it has one, when the program asks whether it may begin.
// After ctx the request is cancelled. If it does work of a run, an answer still counts then: for some time, or without
// limit if another executor has taken the run over.
func (p *program) end(ctx context.Context, x *exchange, run *publisher.Run, begin func() error) (*said, error) {
	asked, over := x.begins, ctx.Done()
	if begin == nil {
		asked = nil
	}
	var grace <-chan time.Time
	for {
		select {
		case <-asked:
			select {
			case <-p.gone: // a dead program begins nothing
				continue
			default:
			}
			if err := begin(); err != nil { // it has not begun, and must not
				p.cancel(x)
				return nil, fmt.Errorf("%w: %w", publisher.ErrLost, err)
			}
		case <-over:
			p.cancel(x)
			if run == nil {
				return nil, context.Cause(ctx)
			}
			if asked, over = nil, nil; !errors.Is(run.Err(), publisher.ErrFenced) {
				grace = time.After(cancelGrace)
			}
		case <-grace:
			return nil, context.Cause(ctx)
		case m := <-x.answer:
			return m, nil
		case <-p.gone:
			select {
			case m := <-x.answer: // it came before the end
				return m, nil
			default:
				return nil, p.lost()
			}
		}
	}
}

// outcome is the outcome of a tool. The failure of a cancelled tool is the cancellation.
func (m *said) outcome(ctx context.Context) (publisher.ToolResult, error) {
	err := m.failure()
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return session.Keepable(publisher.ToolResult{Result: []byte(m.Result), IsError: m.IsError}), err
}
