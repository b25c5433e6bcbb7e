package publisher_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// leftCall leaves run r1 to other executors with the call c1 of pay. begun: the tool had its effect before its executor
// died.
func (w *world) leftCall(t *testing.T, policy schema.Replay, begun bool) {
	t.Helper()
	turn := openTurn(t, start(t, w.fleet(), "r1"))
	recorded := publisher.ToolCall{ID: "c1", Name: "pay", Arguments: raw(`{"cents":5}`), Replay: policy}
	answers(t, turn, recorded)
	if begun {
		ctx, die := context.WithCancelCause(t.Context())
		_, err := turn.Tool(ctx, recorded, func(ctx context.Context, _ publisher.Invocation) (publisher.ToolResult, error) {
			die(errors.New("the process vanishes"))
			return publisher.ToolResult{}, context.Cause(ctx)
		})
		require.Error(t, err)
	}
	w.orphan("r1", 1)
}

// leftCalls are calls that an executor left, and whether the next version, which cannot run them, holds them.
var leftCalls = []struct {
	name   string
	policy schema.Replay
	begun  bool
	held   bool
}{
	{name: "hold call that has not run", policy: publisher.Hold},
	{name: "hold call that may have run", policy: publisher.Hold, begun: true, held: true},
	{name: "pure call that may have run", policy: publisher.Pure, begun: true},
	{name: "idempotent call that may have run", policy: publisher.Idempotent, begun: true, held: true},
}

// nextVersion serves the agent with other tools.
func (w *world) nextVersion(t *testing.T, name string, tools ...publisher.Tool) *served {
	t.Helper()
	return serveRuns(t, w.fleet(named(name)), nil, func(spec *publisher.ExecutorSpec) {
		spec.Capacity = 1
		spec.Loops = map[string]publisher.Loop{"coder": {Model: new(scripted).model, Tools: tools}}
	})
}

// requireHeld requires that the run waits for a person's settlement of its call, and says so.
func (w *world) requireHeld(t *testing.T, s *served) {
	t.Helper()
	got := s.outcome(t, "r1")
	require.Equal(t, publisher.OutcomeWaiting, got.outcome, "%v", got.err)
	require.ErrorIs(t, got.err, publisher.ErrHeld)
	state := w.fold("r1")
	require.Equal(t, schema.StatusWaiting, state.Head.Status)
	require.Len(t, state.Head.Interrupts, 1)
	require.Equal(t, schema.WaitToolInDoubt, state.Head.Interrupts[0].Reason)
	require.Len(t, state.Head.HeldCalls(), 1)
	plan := schema.PlanOf(state)
	require.Equal(t, schema.PlanWait, plan.Next)
	require.Equal(t, schema.CallHold, plan.Calls[0].Action)
	require.Equal(t, state.Head.SettleCommands("default", plan.Calls[0].CallKey), plan.Calls[0].Commands)
	require.Len(t, plan.Calls[0].Commands, 3)
}

// settle settles the call as a person.
func (w *world) settle(t *testing.T, how schema.Settlement) {
	t.Helper()
	ann, key := w.fleet(named("ann")), schema.CallKey{Turn: 1, ToolCallID: "c1", Occurrence: 1}
	_, err := ann.Settle(t.Context(), "r1", schema.SettleRequest{CallKey: key, CallEpoch: attempt(t, ann, "r1", key), By: "ann", How: how})
	require.NoError(t, err)
}

func TestLoop_RecordedArgumentsDoNotFit_ToolDoesNotRun(t *testing.T) {
	t.Parallel()
	for _, c := range leftCalls {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.daemon()
			w.leftCall(t, c.policy, c.begun)
			ran := make(chan int, 10)
			// The member cents has another name in this version.
			s := w.nextVersion(t, "exec-2", publisher.NewTool("pay", "", c.policy, func(_ context.Context, in struct {
				Amount int `json:"amount"`
			},
			) (string, error) {
				ran <- in.Amount
				return "paid", nil
			}))
			if c.held {
				w.requireHeld(t, s)
				require.Contains(t, w.fold("r1").Head.Interrupts[0].Message, "cannot run again here, where a rerun fails: ")
				w.settle(t, schema.SettledRerun)
			}
			require.Equal(t, publisher.OutcomeCompleted, s.outcome(t, "r1").outcome)
			require.Empty(t, ran)
			failed := w.fold("r1").Calls[0]
			require.Equal(t, schema.OutcomeFailed, failed.Outcome)
			require.Equal(t, "invalid_arguments", failed.Error.Type)
			require.Contains(t, failed.Error.Message, "the schema of pay")
		})
	}
}

func TestLoop_ToolIsGone_CallThatMayHaveRunIsHeld(t *testing.T) {
	t.Parallel()
	for _, c := range leftCalls {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.daemon()
			w.leftCall(t, c.policy, c.begun)
			s := w.nextVersion(t, "exec-2", look(nil))
			if c.held {
				w.requireHeld(t, s)
				w.settle(t, schema.SettledAbandoned)
			}
			require.Equal(t, publisher.OutcomeCompleted, s.outcome(t, "r1").outcome)
			over := w.fold("r1").Calls[0]
			if c.held {
				require.Equal(t, schema.OutcomeAbandoned, over.Outcome)
				return
			}
			require.Equal(t, schema.UnknownToolType, over.Error.Type)
			require.Contains(t, over.Error.Message, "has it no longer")
		})
	}
}

// A rolling deploy: an executor without the tool claims the run first, a person says rerun, and one with the tool runs it.
func TestLoop_ToolIsGoneHere_RerunElsewhereKeepsItsKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	w.leftCall(t, publisher.Idempotent, true)
	s := w.nextVersion(t, "exec-2", look(nil))
	w.requireHeld(t, s)
	require.NoError(t, s.stop())
	w.settle(t, schema.SettledRerun)
	keys := make(chan string, 10)
	s = w.nextVersion(t, "exec-3", publisher.NewTool("pay", "", publisher.Idempotent, func(ctx context.Context, in struct {
		Cents int `json:"cents"`
	},
	) (string, error) {
		keys <- publisher.InvocationOf(ctx).IdempotencyKey
		return "paid", nil
	}))
	require.Equal(t, publisher.OutcomeCompleted, s.outcome(t, "r1").outcome)
	require.Len(t, keys, 1)
	require.Equal(t, "r1.1.c1.1", <-keys)
}

func TestLoop_PromptIsAnotherNow_RunKeepsItsOwnUnlessItBeginsAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	down := errors.New("down")
	old := &scripted{answers: map[int32]publisher.Answer{1: calls(call("c1", "look", `{"at":1}`))}}
	model := func(ctx context.Context, r publisher.ModelRequest) (publisher.Answer, error) {
		if r.Turn == 2 {
			return publisher.Answer{}, publisher.Permanent(down)
		}
		return old.model(ctx, r)
	}
	run := start(t, w.fleet(), "r1")
	require.ErrorIs(t, publisher.Loop{Model: model, System: "Old.", Tools: []publisher.Tool{look(nil)}}.Work(t.Context(), run), down)

	m := &scripted{}
	next := publisher.Loop{Model: m.model, System: "New.", Tools: []publisher.Tool{look(nil)}}
	require.NoError(t, next.Work(t.Context(), resume(t, w.fleet(named("exec-2")), "r1")))
	require.Equal(t, "Old.", *m.asked[0].Messages[0].Parts[0].Content)

	run, err := w.fleet(named("exec-2")).Resume(t.Context(), "r1", publisher.ResumeSpec{At: schema.Point{Kind: schema.PointTurn, Number: 0}})
	require.NoError(t, err)
	require.NoError(t, next.Work(t.Context(), run))
	require.Equal(t, "New.", *m.asked[1].Messages[0].Parts[0].Content)
}

func TestLoop_PolicyIsStricterNow_RunWaits(t *testing.T) {
	t.Parallel()
	for _, policy := range []schema.Replay{publisher.Pure, publisher.Idempotent} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.daemon()
			w.leftCall(t, policy, true)
			ran := make(chan string, 10)
			pay := func(policy schema.Replay, version string) publisher.Tool {
				return publisher.NewTool("pay", "", policy, func(context.Context, struct {
					Cents int `json:"cents"`
				},
				) (string, error) {
					ran <- version
					return "paid", nil
				})
			}
			s := w.nextVersion(t, "exec-2", pay(publisher.Hold, "stricter"))
			w.requireHeld(t, s)
			require.Zero(t, w.fold("r1").Head.Stalled, "a wait is no claim without progress")
			require.NoError(t, s.stop())

			// An executor of the old version may be given the run for a signal: it runs nothing either.
			require.NoError(t, w.fleet(named("ann")).Signal(t.Context(), "r1", publisher.SignalSpec{ID: "s1", Name: "hurry"}))
			old := w.nextVersion(t, "exec-3", pay(policy, "old"))
			w.requireHeld(t, old)
			require.Empty(t, ran)

			w.settle(t, schema.SettledRerun)
			require.Equal(t, publisher.OutcomeCompleted, old.outcome(t, "r1").outcome)
			require.Len(t, ran, 1)
			require.Equal(t, schema.ReplayHold, w.fold("r1").Calls[0].Replay)
			require.Equal(t, schema.OutcomeReturned, w.fold("r1").Calls[0].Outcome)
		})
	}
}
