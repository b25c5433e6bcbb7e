//go:build waymark_failpoints

package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/base/failpoint"
	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

const (
	publishTimeout = 4 * time.Second
	tryTimeout     = 500 * time.Millisecond
	requestTimeout = 2 * time.Second
	serviceTimeout = 3 * time.Second
)

// errLost is a message, or its answer, that got lost on the way.
var errLost = errors.New("lost on the way")

// executor drives runs with the SDK. It does one thing at a time.
type executor struct {
	w     *world
	name  string
	fleet *publisher.Fleet
	runs  map[string]*publisher.Run
	// tokens and requests count its work.
	tokens, requests int
	// loseMessages and loseAnswers of what it publishes next.
	loseMessages, loseAnswers atomic.Int64
	link                      link
	ctx                       context.Context //nolint:containedctx // carries the executor's failpoints
}

func newExecutor(w *world, name string) (*executor, error) {
	x := &executor{w: w, name: name, runs: map[string]*publisher.Run{}}
	nc, err := w.connect(nats.SetCustomDialer(&x.link))
	if err != nil {
		return nil, err
	}
	x.ctx = failpoint.With(w.ctx, func(_ context.Context, p failpoint.Point) error {
		switch {
		case p == failpoint.BeforePublish && x.loseMessages.Add(-1) >= 0, p == failpoint.AfterPublish && x.loseAnswers.Add(-1) >= 0:
			return errLost
		}
		return nil
	})
	x.fleet, err = publisher.Connect(x.ctx, publisher.Config{
		Conn: nc, Fleet: fleetName, Executor: name, Agent: "agent", Heartbeat: -1, PublishTimeout: publishTimeout, TryTimeout: tryTimeout,
		RequestTimeout: requestTimeout, FullPatience: -1,
	})
	return x, err
}

func (x *executor) close() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := x.fleet.Close(ctx); err != nil {
		x.w.fail(fmt.Errorf("%s: %w", x.name, err))
	}
}

func (x *executor) token() string {
	x.tokens++
	return checker.Token(x.name, x.tokens)
}

// judge puts the error of a publish into the history.
func judge(op *checker.Op, err error) {
	op.Outcome = checker.OK
	if err == nil {
		return
	}
	op.Outcome, op.Error = checker.Unknown, err.Error()
	for _, certain := range []error{
		publisher.ErrFenced, publisher.ErrForked, publisher.ErrUnavailable, publisher.ErrRejected, publisher.ErrCancelRequested,
		publisher.ErrRunExists, publisher.ErrFleetFull, publisher.ErrLogRegressed,
	} {
		if errors.Is(err, certain) && !errors.Is(err, publisher.ErrUnresolved) {
			op.Outcome, op.Fenced = checker.Failed, errors.Is(err, publisher.ErrFenced)
		}
	}
}

// placed records the event and the position of a publish. Another event may already follow it, which the handle
// learned from a notice: then its token identifies it.
func placed(op *checker.Op, run *publisher.Run) {
	h := run.Head()
	if strings.HasPrefix(h.Position.ID, fmt.Sprintf("%s.%d.%d.", op.Run, op.Epoch, op.Sequence)) {
		op.Event, op.Stream = h.Position.ID, h.Position.Stream
	}
}

// start begins a run.
func (x *executor) start(id string) {
	token := x.token()
	op := x.w.rec.Begin(checker.Op{Actor: x.name, Kind: checker.Publish, Run: id, Detail: "run.started", Token: token, Epoch: 1, Sequence: 1})
	run, err := x.fleet.Start(x.ctx, publisher.RunSpec{ID: id, Task: token})
	x.w.rec.End(op, func(op *checker.Op) {
		judge(op, err)
		if err == nil {
			placed(op, run)
		}
	})
	if err == nil {
		x.runs[id] = run
	}
}

// step does the next thing for a run of which it has a handle, valid or fenced by now.
func (x *executor) step(id string, choice int) {
	x.publish(id, func(h *schema.Head, token string) (schema.Data, int32) { return x.next(h, token, choice) })
}

// publish publishes an event chosen from the executor's head of a run.
func (x *executor) publish(id string, choose func(h *schema.Head, token string) (schema.Data, int32)) {
	run := x.runs[id]
	if run == nil {
		return
	}
	if err := run.Resolve(x.ctx); err != nil {
		if run.Err() != nil {
			delete(x.runs, id)
		}
		return
	}
	h := run.Head()
	if h.Status.Terminal() {
		return
	}
	token := x.token()
	data, turn := choose(&h, token)
	op := x.w.rec.Begin(checker.Op{
		Actor: x.name, Kind: checker.Publish, Run: id, Detail: data.EventName(), Token: token, Epoch: run.Epoch(), Sequence: h.Sequence + 1,
	})
	err := run.Publish(x.ctx, data, turn)
	x.w.rec.End(op, func(op *checker.Op) {
		judge(op, err)
		if err == nil {
			placed(op, run)
		}
		// A forged takeover also stops an executor: that is the safe direction.
		op.Fenced = op.Fenced && !x.w.adversary.tookOver(id)
	})
	if run.Err() != nil {
		delete(x.runs, id)
	}
}

// next chooses a valid event after a head.
func (x *executor) next(h *schema.Head, token string, choice int) (schema.Data, int32) {
	pad := strings.Repeat("waymark ", choice%7*40)
	said := func(role string) schema.Message {
		return schema.Message{Role: role, Parts: []schema.Part{schema.Text(token + pad)}}
	}
	for i := range h.OpenCalls {
		if c := &h.OpenCalls[i]; c.State.InDoubt() && choice%3 == 0 {
			return &schema.ToolSettledData{ToolCallID: c.ToolCallID, How: schema.SettledAbandoned, By: token}, c.Turn
		}
	}
	if !h.TurnOpen {
		switch {
		case choice%37 == 0:
			return &schema.RunEndedData{Status: "completed", Summary: token}, 0
		case choice%5 == 0:
			return &schema.MessageAddedData{Message: said(schema.RoleUser)}, 0
		}
		if choice%3 == 1 {
			call := func(what string, replay schema.Replay) schema.RequestedCall {
				return schema.RequestedCall{ToolCallID: fmt.Sprintf("%s%d-%s", what, x.tokens, x.name), Name: "read", Replay: replay}
			}
			return &schema.TurnAnsweredData{
				Turn: h.Turn + 1, Message: said(schema.RoleAssistant), Calls: []schema.RequestedCall{call("p", schema.ReplayPure), call("h", schema.ReplayHold)},
			}, h.Turn + 1
		}
		return &schema.TurnStartedData{Turn: h.Turn + 1, Messages: []schema.Message{said(schema.RoleUser)}}, h.Turn + 1
	}
	var open *schema.OpenCall
	for i := range h.OpenCalls {
		if c := &h.OpenCalls[i]; !c.State.InDoubt() && c.Turn == h.Turn {
			open = c
		}
	}
	switch {
	case choice%4 == 0:
		return &schema.TurnEndedData{Turn: h.Turn, Messages: []schema.Message{said(schema.RoleAssistant)}}, h.Turn
	case choice%4 == 1:
		return &schema.MessageAddedData{Message: said(schema.RoleAssistant)}, h.Turn
	case open != nil && open.State.Requested() && !open.Replay.Rerunnable():
		return &schema.ToolCalledData{ToolCallID: open.ToolCallID, Name: open.Name, Arguments: []byte(`{"token":"` + token + `"}`)}, open.Turn
	case open != nil:
		return &schema.ToolReturnedData{ToolCallID: open.ToolCallID, Result: []byte(`"` + token + pad + `"`)}, open.Turn
	}
	return &schema.ToolCalledData{ToolCallID: fmt.Sprintf("c%d-%s", x.tokens, x.name), Name: "read", Arguments: []byte(`{"token":"` + token + `"}`), Replay: schema.ReplayPure}, h.Turn
}

// takeOver resumes a run from any executor.
func (x *executor) takeOver(id string) {
	x.requests++
	request := fmt.Sprintf("%s-q%d", x.name, x.requests)
	op := x.w.rec.Begin(checker.Op{Actor: x.name, Kind: checker.Takeover, Run: id, Executor: x.name, Request: request})
	ctx, cancel := context.WithTimeout(x.ctx, serviceTimeout)
	defer cancel()
	run, err := x.fleet.Resume(ctx, id, publisher.ResumeSpec{RequestID: request, AllowGaps: true})
	x.w.rec.End(op, func(op *checker.Op) {
		switch {
		case err == nil:
			h := run.Head()
			a := checker.AnswerOf(&h, true)
			op.Outcome, op.Answer = checker.OK, &a
		case errors.Is(err, publisher.ErrRunNotFound):
			op.Outcome, op.Answer, op.Error = checker.Failed, checker.Absent(), err.Error()
		default: // of a run that has ended, too: an earlier try may have been the one whose answer was lost
			op.Outcome, op.Error = checker.Unknown, err.Error()
		}
	})
	if err == nil {
		x.runs[id] = run
	}
}

// claim asks for whatever run has no executor.
func (x *executor) claim() {
	op := x.w.rec.Begin(checker.Op{Actor: x.name, Kind: checker.Takeover, Executor: x.name, Detail: checker.DetailClaim})
	ctx, cancel := context.WithTimeout(x.ctx, serviceTimeout)
	defer cancel()
	run, err := x.fleet.Claim(ctx, publisher.ClaimSpec{AllowGaps: true})
	x.w.rec.End(op, func(op *checker.Op) {
		switch {
		case err == nil:
			h := run.Head()
			a := checker.AnswerOf(&h, true)
			op.Outcome, op.Answer, op.Run, op.Epoch, op.Request = checker.OK, &a, run.ID(), run.Epoch(), h.RequestID
		case errors.Is(err, publisher.ErrNothing):
			op.Outcome, op.Error = checker.Failed, err.Error()
		default:
			op.Outcome, op.Error = checker.Unknown, err.Error()
		}
	})
	if err == nil {
		x.runs[run.ID()] = run
	}
}

// leave releases a run: another executor may claim it.
func (x *executor) leave(id string) {
	x.publish(id, func(_ *schema.Head, token string) (schema.Data, int32) {
		return &schema.RunInterruptedData{Reason: schema.InterruptedShutdown, Extra: []byte(`{"note":"` + token + `"}`)}, 0
	})
}

// read asks for a run without taking it over.
func (x *executor) read(id, view string) {
	op := x.w.rec.Begin(checker.Op{Actor: x.name, Kind: checker.Read, Run: id, Detail: "view " + view})
	ctx, cancel := context.WithTimeout(x.ctx, serviceTimeout)
	defer cancel()
	f, err := x.w.ask(ctx, x.fleet.Conn(), id, view)
	x.w.rec.End(op, func(op *checker.Op) {
		if notFound(err) {
			op.Outcome, op.Answer = checker.OK, checker.Absent()
			return
		}
		if err != nil {
			op.Outcome, op.Error = checker.Unknown, err.Error()
			return
		}
		a := f.answer()
		op.Outcome, op.Answer = checker.OK, &a
	})
}
