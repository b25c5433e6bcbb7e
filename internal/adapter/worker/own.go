package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/waymarkio/waymark/internal/adapter/session"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// ownRun is a run whose loop a program has.
type ownRun struct {
	session *session.Session
	// ctx ends when the program must leave the run.
	ctx context.Context //nolint:containedctx // the run's own life

	mu sync.Mutex
	// calls has the program's requests for calls that it was let begin, by their id: its later lines name them.
	calls map[string]string
	// leaves is why the program was told to leave the run: it waits for a person or a signal, or nothing can be recorded.
	leaves error
}

// errAnswered is why a program that has answered the request of a run gets nothing more done in it.
var errAnswered = errors.New("the request of the run is answered: await each call before")

// drive gives a run to a program and waits until it is done with it.
func (w *Worker) drive(ctx context.Context, run *publisher.Run) error {
	if err := run.Sync(ctx); err != nil {
		return err
	}
	task, err := run.Task(ctx)
	if err != nil {
		return err
	}
	messages, err := run.Conversation(ctx)
	if err != nil {
		return err
	}
	s := session.New(run)
	o := &ownRun{session: s, ctx: ctx, calls: make(map[string]string)}
	p, x, err := w.ask(ctx, request{Do: "run", Run: run.ID(), Epoch: run.Epoch(), Task: task, Messages: messages}, o)
	if err != nil {
		s.Close()
		return err
	}
	defer p.forget(x)
	defer s.Close()
	m, err := p.end(ctx, x, run, nil)
	left := o.leave(errAnswered)
	if err == nil { // the loop may have failed, or left, while other calls of it run: their results count
		idle := &exchange{id: x.id, answer: make(chan *said, 1)}
		go func() {
			_ = s.Idle() // or the session is closed
			idle.answer <- m
		}()
		m, err = p.end(ctx, idle, run, nil)
	}
	switch {
	case err == nil && left != nil:
		return left
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	case m.failure() != nil:
		return m.failure()
	}
	return run.End(ctx, publisher.RunEnd{Output: []byte(m.Output), Summary: m.Summary, Usage: m.Usage})
}

// leave makes the program leave the run, if there is a reason and it did not have to before. It returns the reason before.
func (o *ownRun) leave(why error) (before error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if before = o.leaves; before == nil {
		o.leaves = why
	}
	return before
}

// own handles a request of a program with its own loop.
func (w *Worker) own(p *program, m *said) {
	go func() {
		reply := w.reply(p, m)
		reply.ID = m.text()
		_ = p.send(context.Background(), reply) // it waits for room, or the program has gone
	}()
}

// refusal is the answer that says an error: a failed call, or why the program must leave the run.
func refusal(err error) (t told) {
	held, isHeld := errors.AsType[*publisher.HeldError](err)
	failure, isFailure := errors.AsType[*publisher.ToolError](err)
	switch {
	case isHeld:
		t.Stop, t.Held = err.Error(), held.Command
	case isFailure:
		t.Error, t.Type, t.Recorded = failure.Failure.Message, failure.Failure.Type, true
	case errors.Is(err, publisher.ErrConflict), errors.Is(err, publisher.ErrConfig), errors.Is(err, publisher.ErrRejected), errors.Is(err, errRequest),
		errors.Is(err, publisher.ErrPayloadTooLarge), errors.Is(err, publisher.ErrInputExpired), errors.Is(err, publisher.ErrInputCancelled), errors.Is(err, publisher.ErrAbandoned):
		t.Error, t.Type = err.Error(), "refused"
	default:
		t.Stop = err.Error()
	}
	return t
}

// errRequest is the error of a request that is no request of the protocol.
var errRequest = errors.New("invalid request")

// reply answers a request of the program.
func (w *Worker) reply(p *program, m *said) told {
	p.mu.Lock()
	x := p.runs[m.Run]
	p.mu.Unlock()
	if x == nil {
		return refusal(fmt.Errorf("%w: run %.80q is not one that this program has: name the run in each line about it", errRequest, m.Run))
	}
	o := x.own
	if err := o.leave(nil); err != nil && m.Do != "" { // a framework that took the error for a tool's goes on
		return refusal(err)
	}
	t, err := o.reply(w, m)
	if err == nil {
		return t
	}
	if t = refusal(err); t.Stop != "" {
		_ = o.leave(err) // the first reason counts
	}
	return t
}

func (o *ownRun) reply(w *Worker, m *said) (t told, err error) {
	run := o.session.Run()
	switch m.Do {
	case "": // about a call of its own
		return o.goOn(m.text(), m)
	case "call":
		return o.call(w, m)
	case "say":
		return t, o.session.Say(o.ctx, m.Messages...)
	case "ask":
		input, err := run.Ask(o.ctx, schema.RunWaitingData{InterruptID: m.Name, Reason: schema.WaitHumanInput, Message: m.Question, ResponseSchema: []byte(m.ResponseSchema)})
		return told{Payload: []byte(input.Payload)}, err
	case "set":
		return t, run.SetState(o.ctx, m.Key, m.Value)
	case "get":
		_, err := run.GetState(o.ctx, m.Key, &t.Value)
		return t, err
	case "signals":
		list, err := run.Signals(o.ctx)
		if m.Wait && err == nil && len(list) == 0 {
			list, err = run.AwaitSignal(o.ctx)
		}
		for _, s := range list {
			t.Signals = append(t.Signals, signal{s.ID, s.Name, s.From(), []byte(s.Payload)})
		}
		return t, err
	case "consume":
		return t, run.ConsumeSignals(o.ctx, m.Signals...)
	}
	return t, fmt.Errorf("%w: do is %.40q, not one of call, say, ask, set, get, signals, consume", errRequest, m.Do)
}

// call records a call of the program and says what to do with it.
func (o *ownRun) call(w *Worker, m *said) (t told, err error) {
	begun, result, err := o.session.Call(o.ctx, publisher.ToolCall{
		ID: m.Call, Name: m.Name, Arguments: []byte(m.Arguments), Replay: m.Replay, SideEffect: m.SideEffect, VerifySubject: w.verifySubjectOf(m),
	})
	if err != nil {
		return t, err
	}
	if begun == nil {
		return told{Result: []byte(result.Result), IsError: result.IsError, Recorded: true}, nil
	}
	o.mu.Lock()
	o.calls[m.text()] = m.Call
	o.mu.Unlock()
	return told{Go: true, WithinMS: begun.Within.Milliseconds(), Key: begun.IdempotencyKey, Epoch: begun.Epoch, Attempt: begun.Attempt}, nil
}

// goOn handles a line about a call that the program was let begin: it asks whether it may still begin, or says the
// outcome.
func (o *ownRun) goOn(id string, m *said) (t told, err error) {
	o.mu.Lock()
	call, ok := o.calls[id]
	o.mu.Unlock()
	if !ok {
		return t, fmt.Errorf("%w: %q is not the id of a call that may begin", errRequest, id)
	}
	if m.Begin {
		within, err := o.session.MayBegin(o.ctx, call)
		if err != nil { // it has not begun, and must not
			_ = o.session.Return(context.WithoutCancel(o.ctx), call, publisher.ToolResult{}, fmt.Errorf("%w: %w", publisher.ErrLost, err))
		}
		return told{Go: true, WithinMS: within.Milliseconds()}, err
	}
	// The outcome is recorded whatever has become of the run.
	err = o.session.Return(context.WithoutCancel(o.ctx), call, publisher.ToolResult{Result: []byte(m.Result), IsError: m.IsError}, m.failure())
	if err == nil {
		o.mu.Lock()
		delete(o.calls, id)
		o.mu.Unlock()
		t.Recorded = true
	}
	return t, err
}
