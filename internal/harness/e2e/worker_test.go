package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/journal"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// workerVariable makes this test binary an executor that serves runs, starting some and claiming others.
const workerVariable = "WAYMARK_E2E_WORKER"

// workerAgent is the agent of the workers' runs.
const workerAgent = "worker"

// workerSettings are the settings of a worker.
type workerSettings struct {
	Name     string `json:"name"`
	StateDir string `json:"state_dir"`
	Journal  string `json:"journal"`
	// Start are the runs that it starts. Others it claims, as many as its capacity; none if that is negative.
	Start    []string `json:"start,omitzero"`
	Capacity int      `json:"capacity"`
	// Every run has so many turns, each with these calls.
	Turns int          `json:"turns"`
	Calls []workerCall `json:"calls"`
	// Ask makes each run ask a person before its last turn.
	Ask bool `json:"ask,omitzero"`
}

// workerCall is one call of every turn; how long its tool takes before and after its effect is the worker's own, and
// not the same for all runs.
type workerCall struct {
	ID     string        `json:"id"`
	Replay schema.Replay `json:"replay"`
	Before int64         `json:"before_ms,omitzero"`
	After  int64         `json:"after_ms,omitzero"`
}

// workerMain serves until it is killed, or its parent has exited.
func workerMain(settings string) int {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent
		cancel()
	}()
	if err := workerServe(ctx, settings); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

type worker struct {
	workerSettings
	begun   time.Time
	fleet   *publisher.Fleet
	witness *journal.Writer
}

func workerServe(ctx context.Context, settings string) (err error) {
	w := &worker{begun: time.Now()}
	if err := json.Unmarshal([]byte(settings), &w.workerSettings); err != nil {
		return err
	}
	if w.witness, err = journal.OpenUnsynced(w.Journal, time.Now); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.witness.Close()) }()
	nc, _, err := dial(ctx, w.StateDir)
	if err != nil {
		return err
	}
	defer nc.Close()
	w.fleet, err = publisher.Connect(ctx, publisher.Config{
		Conn: nc, Executor: w.Name, PublishTimeout: patience, RequestTimeout: patience,
	})
	if err != nil {
		return err
	}
	executor, err := w.fleet.NewExecutor(publisher.ExecutorSpec{
		Agents:   map[string]func(context.Context, *publisher.Run) (publisher.Work, error){workerAgent: w.agent},
		Capacity: w.Capacity, WaitDetached: true,
		OnOutcome: func(run string, outcome publisher.Outcome, err error) {
			w.outcome(run, outcome, err)
		},
	})
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- executor.Serve(ctx) }()
	if _, err := fmt.Fprintln(os.Stdout, "ready"); err != nil {
		return err
	}
	for _, id := range w.Start {
		if _, err := executor.Start(ctx, publisher.RunSpec{ID: id, Agent: workerAgent}); err != nil {
			return fmt.Errorf("start of run %s: %w", id, err)
		}
	}
	return <-served
}

func (w *worker) outcome(run string, outcome publisher.Outcome, err error) {
	e := journal.Entry{Op: journal.Failed, Run: run, Note: string(outcome)}
	if err != nil {
		e.Note += ": " + err.Error()
	}
	switch outcome {
	case publisher.OutcomeCompleted:
		e.Op = journal.Done
	case publisher.OutcomeWaiting:
		e.Op = opReleased
	default:
	}
	if err := w.witness.Write(e); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// opReleased is the journal's entry for a waiting run whose executor has released it until it is answered.
const opReleased = "released"

// agent makes a run's handle.
func (w *worker) agent(context.Context, *publisher.Run) (publisher.Work, error) { return w.work, nil }

// work does the rest of a run.
func (w *worker) work(ctx context.Context, run *publisher.Run) error {
	if err := w.taken(run); err != nil {
		return err
	}
	for n := int32(1); int(n) <= w.Turns; n++ {
		ended, said := false, false
		run.View(func(s *schema.State) {
			for i := range s.Turns {
				ended = ended || s.Turns[i].Turn == n && s.Turns[i].EndedAt != ""
			}
			for i := range s.Messages {
				said = said || s.Messages[i].Turn == n
			}
		})
		if ended {
			continue
		}
		if w.Ask && int(n) == w.Turns {
			if err := w.ask(ctx, run); err != nil {
				return err
			}
		}
		if err := w.turn(ctx, run, n, said); err != nil {
			return err
		}
	}
	return nil
}

// taken writes down that the run is in these hands now.
func (w *worker) taken(run *publisher.Run) error {
	if run.Epoch() == 1 {
		return w.ack(run, schema.RunStarted, schema.CallKey{})
	}
	var from schema.From
	run.View(func(s *schema.State) { from = s.Takeovers[len(s.Takeovers)-1].From })
	return w.witness.Write(journal.Entry{
		Op: journal.Resumed, Run: run.ID(), Start: w.begun.UnixNano(), Epoch: uint64(from.Epoch), Sequence: uint64(from.Sequence),
	})
}

// ack writes down that the last event of the run is durable.
func (w *worker) ack(run *publisher.Run, kind string, key schema.CallKey) error {
	var sequence schema.Sequence
	run.View(func(s *schema.State) { sequence = s.Head.Sequence })
	return w.witness.Write(journal.Entry{
		Op: journal.Ack, Run: run.ID(), Kind: kind, Call: callOf(key), Epoch: uint64(run.Epoch()), Sequence: uint64(sequence),
	})
}

func callOf(k schema.CallKey) journal.Call {
	return journal.Call{Turn: int(k.Turn), ID: k.ToolCallID, Occurrence: k.Occurrence}
}

// ask waits for a person's decision.
func (w *worker) ask(ctx context.Context, run *publisher.Run) error {
	answer, err := run.Ask(ctx, schema.RunWaitingData{
		InterruptID: "word", Reason: schema.WaitHumanInput, Message: "go on?",
		ResponseSchema: []byte(`{"type":"object","properties":{"word":{"type":"string"}},"required":["word"]}`),
	})
	if err != nil {
		return err
	}
	return w.witness.Write(journal.Entry{Op: opAnswered, Run: run.ID(), Note: string(answer.Payload)})
}

// opAnswered is the journal's entry for a person's answer that reached the run.
const opAnswered = "answered"

func (w *worker) turn(ctx context.Context, run *publisher.Run, n int32, said bool) error {
	turn := run.OpenTurn()
	if turn == nil {
		var err error
		if turn, err = run.StartTurn(ctx, publisher.TurnSpec{Number: n}); err != nil {
			return err
		}
	}
	if !said {
		calls := make([]publisher.ToolCall, len(w.Calls))
		for i, c := range w.Calls {
			calls[i] = toolCall(c)
		}
		_, err := turn.Answer(ctx, publisher.Answer{Message: text("assistant", fmt.Sprintf("turn %d", n)), Calls: calls})
		if err != nil {
			return err
		}
		if err := w.ack(run, schema.TurnAnswered, schema.CallKey{}); err != nil {
			return err
		}
	}
	for _, c := range w.Calls {
		if err := w.call(ctx, turn, c); err != nil {
			return err
		}
	}
	return nil // the turn ended with the last result
}

func toolCall(c workerCall) publisher.ToolCall {
	call := publisher.ToolCall{ID: c.ID, Name: c.ID, Arguments: []byte(`{}`), Replay: c.Replay}
	if c.Replay == schema.ReplayVerify {
		call.VerifySubject = shopVerify
	}
	return call
}

// call requests the result of a call, which runs the tool unless its record has an outcome.
func (w *worker) call(ctx context.Context, turn *publisher.Turn, c workerCall) error {
	run := turn.Run()
	key := schema.CallKey{Turn: turn.Number(), ToolCallID: c.ID, Occurrence: 1}
	replay := c.Replay
	run.View(func(s *schema.State) {
		if call := s.Call(key); call != nil {
			replay = call.Replay // the recorded policy counts
		}
	})
	entry := journal.Entry{Run: run.ID(), Call: callOf(key), Name: c.ID, Replay: string(replay)}
	write := func(op, note string) error {
		e := entry
		e.Op, e.Note = op, note
		return w.witness.Write(e)
	}
	settlements := func() (list []schema.Settlement) {
		run.View(func(s *schema.State) {
			if call := s.Call(key); call != nil {
				list = append(list, call.Settlements...)
			}
		})
		return list
	}
	before := len(settlements())
	ran := false
	_, err := turn.Tool(ctx, toolCall(c), func(ctx context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
		ran = true
		// Only a person may settle a call that is held, and writes that down itself.
		if list := settlements(); len(list) > before && replay != schema.ReplayHold && replay != "" {
			if err := write(journal.Settled, string(list[len(list)-1])); err != nil {
				return publisher.ToolResult{}, err
			}
		}
		if err := write(journal.Begin, inv.IdempotencyKey); err != nil {
			return publisher.ToolResult{}, err
		}
		if err := pause(ctx, spread(c.Before, run.ID(), key)); err != nil {
			return publisher.ToolResult{}, err
		}
		if err := w.effect(ctx, run, inv, replay, write); err != nil {
			return publisher.ToolResult{}, err
		}
		if err := pause(ctx, spread(c.After, run.ID(), key)); err != nil {
			return publisher.ToolResult{}, err
		}
		if err := write(journal.End, ""); err != nil {
			return publisher.ToolResult{}, err
		}
		return publisher.Result(toolResult(run.ID(), key))
	})
	var held *publisher.HeldError
	switch {
	case errors.As(err, &held):
		return errors.Join(err, write(journal.Held, held.Detail))
	case err != nil || !ran:
		return err
	default:
		return w.ack(run, journal.KindReturned, key)
	}
}

// toolResult is the result of every tool: the same for every execution.
func toolResult(run string, key schema.CallKey) map[string]any {
	return map[string]any{"run": run, "turn": key.Turn, "call": key.ToolCallID}
}

// effect causes the tool's external effect: in its own file, or in the tool shop.
func (w *worker) effect(
	ctx context.Context, run *publisher.Run, inv publisher.Invocation, replay schema.Replay, write func(op, note string) error,
) error {
	if replay != schema.ReplayVerify {
		return write(journal.Effect, inv.IdempotencyKey)
	}
	order, err := json.Marshal(shopOrder{Run: run.ID(), CallKey: inv.Key, Epoch: run.Epoch()})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := w.fleet.Conn().RequestMsgWithContext(ctx, &nats.Msg{Subject: shopDo, Data: order})
	if err != nil {
		return err
	}
	if string(answer.Data) != shopDone {
		return fmt.Errorf("the shop: %s", answer.Data)
	}
	return nil
}

// spread makes tools take different times, half to one and a half of the given, the same for the same call.
func spread(ms int64, run string, key schema.CallKey) time.Duration {
	if ms == 0 {
		return 0
	}
	h := fnv.New32a()
	_, _ = fmt.Fprint(h, run, key) // a hash takes everything
	return time.Duration(ms/2+int64(h.Sum32())%ms) * time.Millisecond
}

// pause waits, unless ctx ends before.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// worker starts an executor process.
func (w *world) worker(tb testing.TB, settings workerSettings) *child {
	tb.Helper()
	settings.StateDir, settings.Journal = w.state(), w.journal()
	return w.again(tb, settings.Name, workerVariable, settings)
}

// again starts this test binary as another program.
func (w *world) again(tb testing.TB, name, variable string, settings any) *child {
	tb.Helper()
	self, err := os.Executable()
	require.NoError(tb, err)
	text, err := json.Marshal(settings)
	require.NoError(tb, err)
	cmd := exec.CommandContext(context.Background(), self)
	// There may be a hundred of them on two cores.
	cmd.Env = environment(variable+"="+string(text), "GOMAXPROCS=1")
	return startChild(tb, name, cmd)
}

// ready waits until a program of this binary has said that it is.
func (c *child) ready(tb testing.TB) *child {
	tb.Helper()
	select {
	case <-c.line:
	case <-c.gone:
		require.Fail(tb, "it ended by itself", "%s: %v: %s", c.name, c.err, c.log)
	case <-time.After(patience):
		require.Fail(tb, "it is never ready", "%s: %s", c.name, c.log)
	}
	return c
}
