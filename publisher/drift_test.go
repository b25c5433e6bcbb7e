package publisher_test

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// drifting is a fleet whose agent coder has a build, a rule and tools, and an executor of it that does not serve.
func (w *world) drifting(t *testing.T, build, executor string, rule schema.DriftRule, tools []publisher.Tool, changes ...func(*publisher.Config)) (*publisher.Fleet, publisher.ExecutorSpec) {
	t.Helper()
	f := w.fleet(append(changes, named(executor), func(c *publisher.Config) { c.Build = build })...)
	spec := publisher.ExecutorSpec{Loops: map[string]publisher.Loop{"coder": {Model: new(scripted).model, Tools: tools, Drift: rule}}}
	_, err := f.NewExecutor(spec)
	require.NoError(t, err)
	return f, spec
}

// newSilentWorld is a world in which the daemon has heard every living executor after two seconds.
func newSilentWorld(t *testing.T) *world {
	t.Helper()
	return newWorldWith(t, kvstore.FleetConfig{Fleet: "default", QuotaBytes: 256 << 20, Silence: kvstore.MinSilence})
}

// drives serves the executor of a fleet.
func drives(t *testing.T, f *publisher.Fleet, spec publisher.ExecutorSpec) *served {
	t.Helper()
	return serveRuns(t, f, nil, func(s *publisher.ExecutorSpec) { s.Capacity, s.Loops = 100, spec.Loops })
}

// leave leaves a run for claims, after the boundary of a turn. It has the call c1 of pay, or none.
func (w *world) leave(t *testing.T, f *publisher.Fleet, id, boundary string, pay publisher.ToolCall) {
	t.Helper()
	pay.ID, pay.Name, pay.Arguments = "c1", "pay", raw(`{"cents":5}`)
	seen := publisher.ToolCall{ID: "c2", Name: "look", Arguments: raw(`{"at":1}`), Replay: publisher.Pure}
	done := func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		return publisher.Result("done")
	}
	run, turn, epoch := start(t, f, id), (*publisher.Turn)(nil), schema.Epoch(1)
	if boundary != "started" {
		turn = openTurn(t, run)
	}
	tool := func(call publisher.ToolCall) {
		_, err := turn.Tool(t.Context(), call, done)
		require.NoError(t, err)
	}
	switch boundary {
	case "turn begun":
		require.NoError(t, turn.AddMessage(t.Context(), user("go on")))
	case "requested":
		answers(t, turn, pay)
	case "begun", "in doubt":
		answers(t, turn, pay)
		ctx, die := context.WithCancelCause(t.Context())
		_, err := turn.Tool(ctx, pay, func(ctx context.Context, _ publisher.Invocation) (publisher.ToolResult, error) {
			die(errors.New("the process vanishes"))
			return publisher.ToolResult{}, context.Cause(ctx)
		})
		require.Error(t, err)
		if boundary == "in doubt" {
			w.orphan(id, 1)
			resume(t, f, id)
			epoch = 2
		}
	case "result":
		answers(t, turn, pay, seen)
		tool(pay)
	case "between turns":
		answers(t, turn, pay)
		tool(pay)
	case "answered":
		_, err := turn.Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text("I am done."))})
		require.NoError(t, err)
	}
	w.orphan(id, epoch)
}

var boundaries = []string{"started", "turn begun", "requested", "begun", "in doubt", "result", "between turns", "answered"}

func idOf(boundary string) string { return strings.ReplaceAll(boundary, " ", "-") }

// deployed is a change of the tool pay, or of what is around it.
type deployed struct {
	name   string
	policy schema.Replay
	change func(l *publisher.Loop, pay func(name string, policy schema.Replay) publisher.Tool)
	// lacks: a call of the old version cannot run. stricter: its policy is hold now.
	lacks, stricter bool
}

var deploys = []deployed{
	{name: "renames the tool", lacks: true, change: func(l *publisher.Loop, pay func(string, schema.Replay) publisher.Tool) {
		l.Tools = append(l.Tools, pay("settle", publisher.Hold))
	}},
	{name: "removes the tool", lacks: true, change: func(*publisher.Loop, func(string, schema.Replay) publisher.Tool) {}},
	{name: "requires an argument", lacks: true, change: func(l *publisher.Loop, _ func(string, schema.Replay) publisher.Tool) {
		l.Tools = append(l.Tools, publisher.NewTool("pay", "", publisher.Hold, func(context.Context, struct {
			Cents    int    `json:"cents"`
			Currency string `json:"currency"`
		},
		) (string, error) {
			return "", errors.New("called without a currency")
		}))
	}},
	{name: "has a stricter policy", policy: publisher.Idempotent, stricter: true, change: func(l *publisher.Loop, pay func(string, schema.Replay) publisher.Tool) {
		l.Tools = append(l.Tools, pay("pay", publisher.Hold))
	}},
	{name: "has a looser policy", change: func(l *publisher.Loop, pay func(string, schema.Replay) publisher.Tool) {
		l.Tools = append(l.Tools, pay("pay", publisher.Pure))
	}},
	{name: "reorders the tools", change: func(l *publisher.Loop, pay func(string, schema.Replay) publisher.Tool) {
		l.Tools = append([]publisher.Tool{pay("pay", "")}, l.Tools...)
	}},
	{name: "changes the prompt", change: func(l *publisher.Loop, pay func(string, schema.Replay) publisher.Tool) {
		l.System, l.Tools = "New.", append(l.Tools, pay("pay", ""))
	}},
}

// held reports whether a person decides about the call after the deploy.
func (d *deployed) held(boundary string, policy schema.Replay) bool {
	switch boundary {
	case "begun", "in doubt":
		return d.lacks || d.stricter || policy == publisher.Hold
	case "requested":
		return (d.lacks || d.stricter) && policy.Rerunnable() // an earlier executor may have run it
	}
	return false
}

func TestDeploy_WhileRunsAreLive_EachChangeAtEachBoundary(t *testing.T) {
	t.Parallel()
	for i := range deploys {
		d := &deploys[i]
		for _, policy := range []schema.Replay{publisher.Hold, publisher.Idempotent} {
			if d.policy != "" && d.policy != policy {
				continue
			}
			t.Run(d.name+" "+string(policy), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.daemon()
				m, ran := new(scripted), make(chan int, 100)
				loop := publisher.Loop{Model: m.model, Tools: []publisher.Tool{look(nil)}}
				d.change(&loop, func(name string, now schema.Replay) publisher.Tool {
					return publisher.NewTool(name, "", cmp.Or(now, policy), func(_ context.Context, in struct {
						Cents int `json:"cents"`
					},
					) (string, error) {
						ran <- in.Cents
						return "paid", nil
					})
				})
				runs, f := 0, w.fleet(named("old"))
				for _, boundary := range boundaries {
					w.leave(t, f, idOf(boundary), boundary, publisher.ToolCall{Replay: policy})
				}
				s := serveRuns(t, w.fleet(named("new")), nil, func(spec *publisher.ExecutorSpec) {
					spec.Capacity, spec.Loops = 100, map[string]publisher.Loop{"coder": loop}
				})
				held := make(map[string]bool)
				for over := 0; over < len(boundaries); {
					var got ended
					select {
					case got = <-s.outcomes:
					case <-time.After(patience):
						require.FailNow(t, "a run stands still")
					}
					if got.outcome != publisher.OutcomeWaiting {
						require.Equal(t, publisher.OutcomeCompleted, got.outcome, "%s: %v", got.run, got.err)
						over++
						continue
					}
					require.ErrorIs(t, got.err, publisher.ErrHeld)
					held[got.run] = true
					ann, key := w.fleet(named("ann")), schema.CallKey{Turn: 1, ToolCallID: "c1", Occurrence: 1}
					_, err := ann.Settle(t.Context(), got.run, schema.SettleRequest{CallKey: key, CallEpoch: attempt(t, ann, got.run, key), By: "ann", How: schema.SettledAbandoned})
					require.NoError(t, err)
				}
				for _, boundary := range boundaries {
					require.Equal(t, d.held(boundary, policy), held[idOf(boundary)], boundary)
					open := boundary == "requested" || boundary == "begun" || boundary == "in doubt"
					if open && !d.lacks && !held[idOf(boundary)] {
						runs++
					}
					state := w.fold(idOf(boundary))
					for i := range state.Calls {
						c := &state.Calls[i]
						if c.Name != "pay" {
							continue
						}
						require.Equal(t, c.Replay, schema.Stricter(c.Replay, policy), "%s: the policy of the record is loosened", boundary)
						require.Equal(t, c.Outcome == schema.OutcomeFailed, open && d.lacks && !held[state.Head.Run], "%s: %v", boundary, c.Error)
					}
				}
				require.Len(t, ran, runs)
				for range runs {
					require.Equal(t, 5, <-ran)
				}
				for _, sent := range m.sent() {
					require.NotContains(t, sent[1:], "system: New.")
				}
			})
		}
	}
}

// answerVersion answers the question about another version as a person, once it is asked.
func (w *world) answerVersion(t *testing.T, run, payload string) {
	t.Helper()
	ann := w.fleet(named("ann"))
	head, err := ann.Head(t.Context(), run)
	require.NoError(t, err)
	require.Len(t, head.Interrupts, 1)
	require.True(t, head.Interrupts[0].OfVersion() && head.Interrupts[0].Approval())
	require.NoError(t, ann.Input(t.Context(), run, publisher.Input{
		InterruptID: head.Interrupts[0].InterruptID, EventID: head.Interrupts[0].Position.ID, Payload: raw(payload),
	}))
}

var oldTools = []publisher.Tool{look(nil), does[paid]("pay", publisher.Hold)}

// Nothing of the new version happens before a person has allowed it, at whichever boundary it takes the run over, and
// the next executor of the version does not ask again.
func TestDrift_Ask_NothingHappensBeforeTheApproval(t *testing.T) {
	t.Parallel()
	for _, boundary := range boundaries {
		t.Run(boundary, func(t *testing.T) {
			t.Parallel()
			w := newSilentWorld(t)
			w.daemon()
			old, _ := w.drifting(t, "v1", "exec-1", schema.DriftAsk, oldTools)
			w.leave(t, old, "r1", boundary, publisher.ToolCall{Replay: publisher.Hold})
			require.NoError(t, old.Close(t.Context()))
			before := len(w.log("r1"))
			// The rule of the record stands, whatever that of the new version is.
			deployed, spec := w.drifting(t, "v2", "exec-2", "", []publisher.Tool{look(nil)})
			s := drives(t, deployed, spec)
			require.ErrorIs(t, s.outcome(t, "r1").err, publisher.ErrWaiting)
			require.Equal(t, []string{"run.resumed", "run.waiting", "run.interrupted"}, names(w.log("r1"))[before:])
			wait := w.fold("r1").Waits[0]
			require.Contains(t, wait.Message, "Executors with build v2 would go on with other code than that of the run's start: tool pay is gone")
			require.Equal(t, boundary == "requested", strings.Contains(wait.Message, "tool pay is gone: 1 requested call cannot be made"))
			require.NoError(t, s.stop())

			next, spec := w.drifting(t, "v2", "exec-3", "", []publisher.Tool{look(nil)})
			s = drives(t, next, spec)
			w.answerVersion(t, "r1", `{"decision":"allow"}`)
			got := s.outcome(t, "r1")
			if errors.Is(got.err, publisher.ErrHeld) {
				require.Contains(t, []string{"begun", "in doubt"}, boundary)
				w.settle(t, schema.SettledAbandoned)
				got = s.outcome(t, "r1")
			}
			require.Equal(t, publisher.OutcomeCompleted, got.outcome, "%v", got.err)
			state := w.fold("r1")
			waits := 0
			for i := range state.Waits {
				if state.Waits[i].Reason == schema.WaitHumanInput {
					waits++
				}
			}
			require.Equal(t, 1, waits, "asked once")
			if recorded, turn := state.Version(); boundary != "answered" { // no turn follows an answer
				require.Equal(t, "v2", recorded.Build)
				require.Positive(t, turn)
			}
		})
	}
}

// A refused version gives the run back, and quarantine ends that. The run goes on under its own version.
func TestDrift_AskIsRefused_RunGoesOnUnderItsOwnVersion(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]publisher.Input{
		"denied":    {Payload: raw(`{"decision":"deny","reason":"not today"}`)},
		"cancelled": {Status: schema.InputCancelled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newSilentWorld(t)
			w.daemon()
			old, spec := w.drifting(t, "v1", "exec-1", schema.DriftAsk, oldTools)
			w.leave(t, old, "r1", "between turns", publisher.ToolCall{Replay: publisher.Hold})
			require.NoError(t, old.Close(t.Context()))
			deployed, other := w.drifting(t, "v2", "exec-2", schema.DriftAsk, []publisher.Tool{look(nil)})
			s := drives(t, deployed, other)
			require.ErrorIs(t, s.outcome(t, "r1").err, publisher.ErrWaiting)
			ann := w.fleet(named("ann"))
			head, err := ann.Head(t.Context(), "r1")
			require.NoError(t, err)
			answer.InterruptID, answer.EventID = head.Interrupts[0].InterruptID, head.Interrupts[0].Position.ID
			require.NoError(t, ann.Input(t.Context(), "r1", answer))
			for range schema.DefaultMaxClaims {
				got := s.outcome(t, "r1")
				require.Equal(t, publisher.OutcomeInterrupted, got.outcome)
				require.ErrorIs(t, got.err, publisher.ErrDiverged)
			}
			head = w.fold("r1").Head
			require.True(t, head.Quarantined(0))
			require.Contains(t, head.LastError.Message, "build v2 was not allowed by ann: ")
			require.EqualValues(t, 1, head.Turn)

			back, _ := w.drifting(t, "v1", "exec-3", schema.DriftAsk, oldTools)
			s = drives(t, back, spec)
			_, err = w.fleet(named("ann2")).Release(t.Context(), "r1", publisher.ResumeSpec{})
			require.NoError(t, err)
			require.Equal(t, publisher.OutcomeCompleted, s.outcome(t, "r1").outcome)
			require.Nil(t, w.fold("r1").Head.LastError, "an answer came since")
		})
	}
}

// A build of the same tools asks nothing, except with encryption, where only the build is known.
func TestDrift_OtherBuildOfTheSameTools_IsNotAskedAbout(t *testing.T) {
	t.Parallel()
	for name, changes := range map[string][]func(*publisher.Config){"plain": nil, "encrypted": {encrypted(secretKeys("k1"))}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newSilentWorld(t)
			w.daemon()
			old, _ := w.drifting(t, "v1", "exec-1", schema.DriftAsk, oldTools, changes...)
			w.leave(t, old, "r1", "between turns", publisher.ToolCall{Replay: publisher.Hold})
			require.NoError(t, old.Close(t.Context()))
			deployed, spec := w.drifting(t, "v2", "exec-2", schema.DriftAsk, oldTools, changes...)
			s := drives(t, deployed, spec)
			if changes != nil {
				require.ErrorIs(t, s.outcome(t, "r1").err, publisher.ErrWaiting)
				w.answerVersion(t, "r1", `{"decision":"allow"}`)
			}
			require.Equal(t, publisher.OutcomeCompleted, s.outcome(t, "r1").outcome)
		})
	}
}

// An executor of the run's build is alive: no other build is given the run, until that executor has gone.
func TestDrift_SameBuild_OwnBuildHasTheRunFirst(t *testing.T) {
	t.Parallel()
	for _, rule := range []schema.DriftRule{schema.DriftSameBuild, schema.DriftAsk, schema.DriftAccept} {
		t.Run(string(rule), func(t *testing.T) {
			t.Parallel()
			w := newSilentWorld(t)
			w.daemon()
			old, _ := w.drifting(t, "v1", "exec-1", rule, oldTools)
			w.leave(t, old, "r1", "between turns", publisher.ToolCall{Replay: publisher.Hold})
			_, err := old.Claim(t.Context(), publisher.ClaimSpec{Labels: map[string]string{"other": "runs"}})
			require.ErrorIs(t, err, publisher.ErrNothing)
			deployed, _ := w.drifting(t, "v2", "exec-2", "", oldTools)
			_, err = deployed.Claim(t.Context(), publisher.ClaimSpec{Labels: map[string]string{"other": "runs"}})
			require.ErrorIs(t, err, publisher.ErrNothing)
			text := "Executors with build v2 would go on with other code than that of the run's start"
			if rule != schema.DriftAccept {
				text += ", once no executor with build v1 is alive"
			}
			require.Eventually(t, func() bool {
				plan, err := deployed.Plan(t.Context(), "r1")
				return err == nil && len(plan.Versions) == 1 && plan.Versions[0].Text() == text
			}, patience, 10*time.Millisecond)
			if rule == schema.DriftAccept {
				claimed(t, deployed, publisher.ClaimSpec{})
				return
			}
			// During the first silence of a daemon each build counts as alive.
			for begun := time.Now(); time.Since(begun) < kvstore.MinSilence+time.Second; {
				_, err = deployed.Claim(t.Context(), publisher.ClaimSpec{})
				require.ErrorIs(t, err, publisher.ErrNothing)
			}
			require.NoError(t, claimed(t, old, publisher.ClaimSpec{}).Interrupt(t.Context(), schema.InterruptedPreempted))
			require.NoError(t, old.Close(t.Context()))
			claimed(t, deployed, publisher.ClaimSpec{})
		})
	}
}
