package publisher_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// outside is the world that tools change: a file with one line per execution, which survives every crash.
type outside struct {
	tb   testing.TB
	path string
}

func newOutside(tb testing.TB) *outside {
	tb.Helper()
	return &outside{tb: tb, path: filepath.Join(tb.TempDir(), "effects")}
}

// tool has its effect and returns how often it had it.
func (o *outside) tool(_ context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
	file, err := os.OpenFile(o.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return publisher.ToolResult{}, err
	}
	if _, err = fmt.Fprintf(file, "%s %d\n", inv.IdempotencyKey, inv.Epoch); err == nil {
		err = file.Close()
	}
	if err != nil {
		return publisher.ToolResult{}, err
	}
	return publisher.Result(fmt.Sprintf("effect %d", len(o.keys())))
}

// keys are the idempotency keys of the executions, in order.
func (o *outside) keys() []string {
	o.tb.Helper()
	b, err := os.ReadFile(o.path)
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(o.tb, err)
	var keys []string
	for line := range strings.Lines(string(b)) {
		key, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		keys = append(keys, key)
	}
	return keys
}

// verify answers from the file, as a tool does that knows its own effects.
func (o *outside) verify(_ context.Context, request schema.VerifyRequest) (schema.VerifyReply, error) {
	if slices.Contains(o.keys(), request.IdempotencyKey) {
		return schema.VerifyReply{Outcome: schema.VerifyDone, Result: raw(`"effect 1"`)}, nil
	}
	return schema.VerifyReply{Outcome: schema.VerifyNotDone}, nil
}

const verifySubject = "tools.deploy.verify"

func serveVerify(tb testing.TB, w *world, answer publisher.VerifyFunc) {
	tb.Helper()
	stop, err := publisher.ServeVerify(w.nc, verifySubject, "deploy", answer)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, stop()) })
}

// The executor dies in one of the two windows; the next one does what the policy says. That a tool with side effects
// is run at most once more than its policy allows is what the file outside shows.
func TestPolicies_BothCrashWindows_Respected(t *testing.T) {
	t.Parallel()
	type window struct {
		// runs of the tool in all, and what became of the call.
		runs    int
		settled []schema.Settlement
		held    bool
		result  string
	}
	tests := map[string]struct {
		call          publisher.ToolCall
		verify        func(o *outside) publisher.VerifyFunc
		before, after window
	}{
		"pure runs again, freely": {
			call:   publisher.ToolCall{Replay: schema.ReplayPure},
			before: window{runs: 1, settled: []schema.Settlement{schema.SettledRerun}, result: `"effect 1"`},
			after:  window{runs: 2, settled: []schema.Settlement{schema.SettledRerun}, result: `"effect 2"`},
		},
		"idempotent runs again under the same key": {
			call:   publisher.ToolCall{Replay: schema.ReplayIdempotent, IdempotencyKey: "order-7"},
			before: window{runs: 1, settled: []schema.Settlement{schema.SettledRerun}, result: `"effect 1"`},
			after:  window{runs: 2, settled: []schema.Settlement{schema.SettledRerun}, result: `"effect 2"`},
		},
		"verify runs what was not done, and takes what was": {
			call:   publisher.ToolCall{Replay: schema.ReplayVerify, VerifySubject: verifySubject},
			verify: func(o *outside) publisher.VerifyFunc { return o.verify },
			before: window{runs: 1, settled: []schema.Settlement{schema.SettledRerun}, result: `"effect 1"`},
			after:  window{runs: 1, settled: []schema.Settlement{schema.SettledVerified}, result: `"effect 1"`},
		},
		"verify holds what its tool cannot tell": {
			call: publisher.ToolCall{Replay: schema.ReplayVerify, VerifySubject: verifySubject},
			verify: func(*outside) publisher.VerifyFunc {
				return func(context.Context, schema.VerifyRequest) (schema.VerifyReply, error) {
					return schema.VerifyReply{Outcome: schema.VerifyUnknown, Reason: "the journal is gone"}, nil
				}
			},
			before: window{runs: 0, held: true},
			after:  window{runs: 1, held: true},
		},
		"hold is held": {
			call:   publisher.ToolCall{Replay: schema.ReplayHold},
			before: window{runs: 0, held: true},
			after:  window{runs: 1, held: true},
		},
		"no policy is held": {
			before: window{runs: 0, held: true},
			after:  window{runs: 1, held: true},
		},
	}
	for name, test := range tests {
		for _, when := range []string{"before the tool ran", "after it ran"} {
			t.Run(name+", "+when, func(t *testing.T) {
				w := newWorld(t)
				o := newOutside(t)
				call := test.call
				call.ID, call.Name, call.Arguments = "c1", "deploy", raw(`{"to":"prod"}`)
				want := test.before
				first := w.fleet(func(c *publisher.Config) { c.Executor = "exec-1" })
				turn := openTurn(t, start(t, first, "r1"))
				_, err := turn.Answer(t.Context(), publisher.Answer{Message: assistant(schema.CallPart(call.ID, call.Name)), Calls: []publisher.ToolCall{call}})
				require.NoError(t, err)
				key := schema.CallKey{Turn: 1, ToolCallID: "c1", Occurrence: 1}
				require.NoError(t, turn.Begin(t.Context(), key))
				if when == "after it ran" {
					want = test.after
					inv := publisher.Invocation{Key: key, IdempotencyKey: key.IdempotencyKey("r1"), Attempt: 1, Epoch: 1}
					if call.IdempotencyKey != "" {
						inv.IdempotencyKey = call.IdempotencyKey
					}
					_, err := o.tool(t.Context(), inv)
					require.NoError(t, err)
				}
				// Here it dies.
				w.serve()
				if test.verify != nil {
					serveVerify(t, w, test.verify(o))
				}
				plan, err := first.Plan(t.Context(), "r1")
				require.NoError(t, err)
				second := w.fleet(func(c *publisher.Config) { c.Executor = "exec-2" })
				run := resume(t, second, "r1")
				mine := run.OpenTurn()
				result, err := run.Turn(1).Tool(t.Context(), call, o.tool)
				keys := o.keys()
				require.Len(t, keys, want.runs)
				for _, k := range keys {
					require.Equal(t, keys[0], k, "every run of the call has the same key")
				}
				s := w.requireSameFold(run)
				require.Equal(t, want.settled, s.Calls[0].Settlements)
				if want.held {
					require.NotEqual(t, schema.CallRerun, plan.Calls[0].Action)
					requireSettledByAPerson(t, w, second, mine, call, o, err)
					return
				}
				require.NoError(t, err)
				require.NotEqual(t, schema.CallHold, plan.Calls[0].Action)
				require.JSONEq(t, want.result, string(result.Result))
				require.Equal(t, schema.OutcomeReturned, s.Calls[0].Outcome)
				again, err := mine.Tool(t.Context(), publisher.ToolCall{ID: "c1", Name: "deploy", Arguments: call.Arguments, Occurrence: 1}, o.tool)
				require.NoError(t, err)
				require.True(t, again.Recorded)
				require.Len(t, o.keys(), want.runs)
			})
		}
	}
}

// requireSettledByAPerson checks that a held call has not run, and goes on by a person's word.
func requireSettledByAPerson(t *testing.T, w *world, f *publisher.Fleet, turn *publisher.Turn, call publisher.ToolCall, o *outside, err error) {
	t.Helper()
	var held *publisher.HeldError
	require.ErrorAs(t, err, &held)
	require.Equal(t, "deploy", held.Name)
	require.Contains(t, held.Command, "waymark settle --fleet default r1 1 c1 --epoch 1 --how")
	require.Equal(t, schema.OutcomeOpen, w.fold("r1").Calls[0].Outcome, "nothing is settled")
	_, err = f.Settle(t.Context(), "r1", schema.SettleRequest{CallKey: held.Key, CallEpoch: held.Epoch, How: schema.SettledDecided, Result: raw(`"looked it up"`), By: "anna"})
	require.NoError(t, err)
	require.NoError(t, turn.Run().Sync(t.Context()))
	before := len(o.keys())
	result, err := turn.Tool(t.Context(), call, o.tool)
	require.NoError(t, err)
	require.JSONEq(t, `"looked it up"`, string(result.Result))
	require.Len(t, o.keys(), before)
}

// A call that an operator settled as rerun while the run had no executor is run once, by the next executor.
func TestClearedCall_Takeover_RunsOnce(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*publisher.Config){
		"without a policy": func(*publisher.Config) {},
		"with a policy": func(c *publisher.Config) {
			c.Policy = func(context.Context, *publisher.Run, publisher.ToolCall) (publisher.Decision, error) {
				return publisher.Decision{Decision: schema.DecisionAllow, Policy: "all"}, nil
			}
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			f := w.fleet(change)
			o := newOutside(t)
			call := publisher.ToolCall{ID: "c1", Name: "deploy"}
			crashed(t, w, f, call)
			run := resume(t, f, "r1")
			_, err := run.Turn(1).Tool(t.Context(), call, o.tool)
			require.ErrorIs(t, err, publisher.ErrHeld)
			require.NoError(t, run.Interrupt(t.Context(), "shutdown"))
			_, err = f.Settle(t.Context(), "r1", schema.SettleRequest{CallKey: schema.CallKey{Turn: 1, ToolCallID: "c1", Occurrence: 1}, CallEpoch: attempt(t, f, "r1", schema.CallKey{Turn: 1, ToolCallID: "c1", Occurrence: 1}), How: schema.SettledRerun, By: "anna"})
			require.NoError(t, err)
			plan, err := f.Plan(t.Context(), "r1")
			require.NoError(t, err)
			require.Equal(t, schema.CallMake, plan.Calls[0].Action)

			taken := publisher.ResumeSpec{Reason: "restart", RequestID: "start-7"}
			next, err := f.Resume(t.Context(), "r1", taken)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			_, err = next.Turn(1).Tool(ctx, call, func(ctx context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
				_, err := o.tool(ctx, inv)
				require.NoError(t, err)
				cancel() // it dies behind the effect
				return publisher.ToolResult{}, ctx.Err()
			})
			require.ErrorIs(t, err, context.Canceled)
			require.Len(t, o.keys(), 1)

			// It starts again and continues the same epoch: its effect is unknown, so it is not done again.
			again, err := f.Resume(t.Context(), "r1", taken)
			require.NoError(t, err)
			require.Equal(t, next.Epoch(), again.Epoch())
			_, err = again.Turn(1).Tool(t.Context(), call, o.tool)
			require.ErrorIs(t, err, publisher.ErrHeld)
			require.Len(t, o.keys(), 1)
			w.requireSameFold(again)
		})
	}
}

// A late result that comes while the tool is being asked goes before what the tool says.
func TestLateResult_Rerun_GoesFirst(t *testing.T) {
	t.Parallel()
	for _, replay := range []schema.Replay{schema.ReplayVerify, schema.ReplayPure} {
		t.Run(string(replay), func(t *testing.T) {
			w := newWorld(t)
			f := w.fleet()
			o := newOutside(t)
			call := publisher.ToolCall{ID: "c1", Name: "deploy", Replay: replay, VerifySubject: verifySubject}
			old := start(t, f, "r1")
			turn := openTurn(t, old)
			_, err := turn.Call(t.Context(), call)
			require.NoError(t, err)
			w.serve()
			late := func() {
				// The fenced handle hands in what its tool did.
				err := turn.Return(t.Context(), schema.CallKey{Turn: 1, ToolCallID: "c1", Occurrence: 1}, publisher.ToolResult{Result: raw(`"deployed"`)})
				require.ErrorIs(t, err, publisher.ErrFenced)
			}
			serveVerify(t, w, func(context.Context, schema.VerifyRequest) (schema.VerifyReply, error) {
				late()
				return schema.VerifyReply{Outcome: schema.VerifyNotDone}, nil
			})
			run := resume(t, f, "r1")
			if replay == schema.ReplayPure {
				late()
			}
			result, err := run.Turn(1).Tool(t.Context(), call, o.tool)
			require.NoError(t, err)
			require.JSONEq(t, `"deployed"`, string(result.Result))
			require.Empty(t, o.keys())
			require.Equal(t, []schema.Settlement{schema.SettledAdopted}, w.requireSameFold(run).Calls[0].Settlements)
		})
	}
}

func mustMarshal(tb testing.TB, v any) []byte {
	tb.Helper()
	b, err := json.Marshal(v)
	require.NoError(tb, err)
	return b
}
