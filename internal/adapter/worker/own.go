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
	// leaves is why the program was told to leave the run: the run waits for a person or a signal.
	leaves error
}

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
	defer s.Close()
	o := &ownRun{session: s, ctx: ctx, calls: make(map[string]string)}
	w.mu.Lock()
	w.runs[run.ID()] = o
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.runs, run.ID())
	}()
	p, x, err := w.ask(ctx, request{Do: "run", Run: run.ID(), Epoch: run.Epoch(), Task: task, Messages: messages})
	if err != nil {
		return err
	}
	defer p.forget(x)
	m, err := p.await(ctx, x)
	if err != nil && ctx.Err() != nil { // what it says until it has stopped still counts
		p.cancel(x)
		late := context.WithoutCancel(ctx)
		if !errors.Is(run.Err(), publisher.ErrFenced) {
			var stop context.CancelFunc
			late, stop = context.WithTimeout(late, cancelGrace)
			defer stop()
		}
		if m, err = p.await(late, x); err != nil {
			return context.Cause(ctx)
		}
	}
	switch {
	case err != nil:
		return err
	case o.left() != nil:
		return o.left()
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case m.failure() != nil:
		return m.failure()
	}
	return run.End(ctx, publisher.RunEnd{Output: []byte(m.Output), Summary: m.Summary, Usage: m.Usage})
}

func (o *ownRun) left() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.leaves
}

// own handles a request of a program with its own loop.
func (w *Worker) own(p *program, m *said) {
	go func() {
		id := m.text()
		reply, err := w.reply(id, m)
		if err != nil {
			reply = refusal(err)
		}
		reply.ID = id
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

// reply answers a request of the program, which has the id id.
func (w *Worker) reply(id string, m *said) (told, error) {
	w.mu.Lock()
	o := w.runs[m.Run]
	w.mu.Unlock()
	if o == nil {
		return told{}, fmt.Errorf("%w: run %.80q is not one that this worker has: name the run in each line about it", errRequest, m.Run)
	}
	if err := o.left(); err != nil && m.Do != "" { // a framework that took the error for a tool's goes on
		return told{}, err
	}
	t, err := o.reply(id, m)
	if held, ok := errors.AsType[*publisher.HeldError](err); ok || errors.Is(err, publisher.ErrWaiting) {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.leaves = err; ok {
			o.leaves = held
		}
	}
	return t, err
}

func (o *ownRun) reply(id string, m *said) (t told, err error) {
	run := o.session.Run()
	switch m.Do {
	case "": // about a call of its own
		return o.goOn(id, m)
	case "call":
		return o.call(id, m)
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
func (o *ownRun) call(id string, m *said) (t told, err error) {
	begun, result, err := o.session.Call(o.ctx, publisher.ToolCall{
		ID: m.Call, Name: m.Name, Arguments: []byte(m.Arguments), Replay: m.Replay, SideEffect: m.SideEffect,
	})
	if err != nil {
		return t, err
	}
	if begun == nil {
		return told{Result: []byte(result.Result), IsError: result.IsError, Recorded: true}, nil
	}
	o.mu.Lock()
	o.calls[id] = m.Call
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
