package nemesis_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// verifySubject is where executors ask what became of a call.
const verifySubject = "nemesis.verify"

// refused replaces an effect that may no longer happen.
const refused = "refused"

// errRefused is returned for an effect of an epoch for which an executor was told that there is none.
var errRefused = errors.New("an executor was told that this call has no effect in this epoch, and it may have none any more")

// outside is the world that tools change: a directory that all executors share, and that no fault reaches. Files are
// created atomically, and are never changed.
type outside string

// put writes a file unless it exists, and returns its content.
func (o outside) put(name, text string) (string, error) {
	file, err := os.CreateTemp(string(o), "new-")
	if err != nil {
		return "", err
	}
	_, err = file.WriteString(text)
	if err = errors.Join(err, file.Close()); err == nil {
		if err = os.Link(file.Name(), filepath.Join(string(o), name)); errors.Is(err, os.ErrExist) {
			err = nil
		}
	}
	if err = errors.Join(err, os.Remove(file.Name())); err != nil {
		return "", err
	}
	there, err := os.ReadFile(filepath.Join(string(o), name))
	return string(there), err
}

func attempt(run, call string, epoch schema.Epoch) string {
	return fmt.Sprintf("%s.%s.%d", run, call, uint64(epoch))
}

// effect causes a call's effect, and returns its result: the existing one if its key says that it is the same.
func (o outside) effect(replay schema.Replay, run, call string, inv publisher.Invocation, result string) (string, error) {
	switch replay {
	case schema.ReplayPure:
		return result, nil
	case schema.ReplayIdempotent:
		return o.put("key-"+inv.IdempotencyKey, result)
	default:
		there, err := o.put(attempt(run, call, inv.Epoch), result)
		if err == nil && there == refused {
			err = errRefused
		}
		return there, err
	}
}

// ask returns what became of a call before an epoch, and ensures that it stays so. The result is empty if it had no
// effect.
func (o outside) ask(run, call string, before schema.Epoch) (result string, err error) {
	for epoch := schema.Epoch(1); epoch < before; epoch++ {
		there, err := o.put(attempt(run, call, epoch), refused)
		if err != nil {
			return "", err
		}
		if there != refused {
			return there, nil
		}
	}
	return "", nil
}

// serveVerify answers what became of calls, until it is stopped.
func (l *loader) serveVerify(nc *nats.Conn) (stop func() error, err error) {
	return publisher.ServeVerify(nc, verifySubject, "outside", func(_ context.Context, request schema.VerifyRequest) (schema.VerifyReply, error) {
		result, err := outside(l.Outside).ask(request.Run, request.ToolCallID, request.Epoch)
		switch {
		case err != nil:
			return schema.VerifyReply{}, err
		case result == "":
			return schema.VerifyReply{Outcome: schema.VerifyNotDone}, nil
		}
		text, err := json.Marshal(result)
		return schema.VerifyReply{Outcome: schema.VerifyDone, Result: text}, err
	})
}

// chanceOf is a number that follows from a run and a turn of it alone, so that each executor of the run plays the turn alike.
func chanceOf(run string, turn int32) uint32 {
	hash := fnv.New32a()
	_, _ = fmt.Fprintf(hash, "%s %d", run, turn) // a hash takes everything
	return hash.Sum32()
}

// calls are those that the answer of a turn asks for: mostly none, else one or two.
func (s *slot) calls(run string, turn int32) []publisher.ToolCall {
	if s.Outside == "" {
		return nil
	}
	policies := []schema.Replay{schema.ReplayPure, schema.ReplayIdempotent, schema.ReplayVerify, schema.ReplayHold}
	chance := chanceOf(run, turn) / 16
	calls := make([]publisher.ToolCall, []int{0, 0, 0, 0, 0, 1, 1, 2}[chance%8])
	for i := range calls {
		id := fmt.Sprintf("call-%d-%d", turn, i)
		calls[i] = publisher.ToolCall{ID: id, Name: "change", Arguments: []byte(`{"call":"` + id + `"}`), Replay: policies[chance>>(3+2*i)%4]}
		if calls[i].Replay == schema.ReplayVerify {
			calls[i].VerifySubject = verifySubject
		}
	}
	return calls
}

// call brings the first open call of an answered turn to its end, as far as its policy lets an executor; then a person decides.
func (s *slot) call(ctx context.Context, run *publisher.Run, turn *publisher.Turn, open []schema.OpenCall) error {
	calls := s.calls(run.ID(), turn.Number())
	i := slices.IndexFunc(calls, func(c publisher.ToolCall) bool { return c.ID == open[0].ToolCallID })
	if i < 0 {
		return fmt.Errorf("call %s of turn %d is open, and no answer asks for it", open[0].ToolCallID, turn.Number())
	}
	call := &calls[i]
	for {
		err := s.tool(ctx, run, turn, call)
		if _, held := errors.AsType[*publisher.HeldError](err); !held {
			return err
		}
		if err := s.decide(ctx, run, call); err != nil {
			return err
		}
		// The decision arrives a moment later.
		if !wait(ctx, 20*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// tool requests a call, and records its events as one operation.
func (s *slot) tool(ctx context.Context, run *publisher.Run, turn *publisher.Turn, call *publisher.ToolCall) (err error) {
	op := s.record.Begin(checker.Op{
		Actor: s.actor, Kind: checker.Call, Run: run.ID(), Epoch: run.Epoch(), Sequence: run.Head().Sequence + 1, Tool: call.ID, Replay: call.Replay,
	})
	execute := func(ctx context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
		return s.execute(ctx, run, call, inv)
	}
	for {
		if _, err = turn.Tool(ctx, *call, execute); !errors.Is(err, publisher.ErrUnresolved) || ctx.Err() != nil || over(run) {
			break
		}
		_ = run.Resolve(ctx) // the next try shows the error
	}
	if errors.Is(err, publisher.ErrToolFailed) {
		err = nil // that is recorded, too
	}
	s.record.End(op, func(op *checker.Op) {
		Ended(op, err)
		if head := run.Head(); head.Epoch == op.Epoch {
			op.Last = head.Sequence
		}
	})
	return err
}

// execute runs a call's tool, which takes its time before and after its effect.
func (s *slot) execute(ctx context.Context, run *publisher.Run, call *publisher.ToolCall, inv publisher.Invocation) (publisher.ToolResult, error) {
	s.mu.Lock()
	s.effects++
	n := s.effects
	s.mu.Unlock()
	result, err := s.acts(ctx, checker.Op{
		Actor: s.actor, Kind: checker.Execute, Run: run.ID(), Epoch: inv.Epoch, Tool: call.ID, Replay: call.Replay, Detail: inv.IdempotencyKey,
	}, func() (string, error) {
		return outside(s.Outside).effect(call.Replay, run.ID(), call.ID, inv, fmt.Sprintf("effect %d of %s", n, s.actor))
	})
	if err != nil {
		return publisher.ToolResult{}, err
	}
	return publisher.Result(result)
}

// acts records how a tool causes its effect, which takes its time before it and after it.
func (l *loader) acts(ctx context.Context, op checker.Op, effect func() (string, error)) (result string, err error) {
	o := l.record.Begin(op)
	if !wait(ctx, time.Duration(l.number(max(1, l.Tool)))*time.Millisecond) {
		err = context.Cause(ctx)
	} else {
		result, err = effect()
	}
	l.record.End(o, func(op *checker.Op) {
		op.Outcome = checker.OK
		if err != nil {
			op.Outcome, op.Error = checker.Failed, err.Error()
			return
		}
		text, marshalErr := json.Marshal(result)
		op.Result = string(text)
		err = marshalErr
	})
	if err == nil && !wait(ctx, time.Duration(l.number(max(1, l.Tool)))*time.Millisecond) {
		err = context.Cause(ctx) // no process learns of it
	}
	return result, err
}

// decide is a person, who checks what became of the call and settles it.
func (s *slot) decide(ctx context.Context, run *publisher.Run, call *publisher.ToolCall) error {
	head := run.Head()
	result, err := outside(s.Outside).ask(run.ID(), call.ID, head.Epoch)
	if err != nil {
		return err
	}
	request := schema.SettleRequest{CallKey: schema.CallKey{Turn: head.Turn, ToolCallID: call.ID, Occurrence: 1}, How: schema.SettledRerun, By: "person"}
	if i := head.FindOpen(request.Turn, request.ToolCallID, request.Occurrence); i >= 0 {
		request.CallEpoch = head.OpenCalls[i].Epoch
	}
	if result != "" {
		request.How = schema.SettledDecided
		if request.Result, err = json.Marshal(result); err != nil {
			return err
		}
	}
	op := s.record.Begin(checker.Op{Actor: s.actor, Kind: checker.Control, Run: run.ID(), Tool: call.ID, Detail: strings.Join([]string{"settled", string(request.How)}, " ")})
	reply, err := s.fleet.Settle(ctx, run.ID(), request)
	s.record.End(op, func(op *checker.Op) {
		Ended(op, err)
		if err == nil {
			op.Event, op.Stream = reply.EventID, reply.Stream
		} else {
			op.Outcome = checker.Unknown
		}
	})
	if errors.Is(err, publisher.ErrNotInDoubt) {
		return nil // it is settled already
	}
	return err
}
