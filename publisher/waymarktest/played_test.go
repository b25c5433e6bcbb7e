package waymarktest_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// saidOf is what Replay says of an agent.
func saidOf(t *testing.T, file string, config func(*publisher.Config), agent func(*waymarktest.Recorded) publisher.Work) string {
	t.Helper()
	return found(t, func(tb testing.TB) {
		tb.Helper()
		waymarktest.Replay(tb, file, config, agent)
	})
}

// painter asks a person, and then a model.
func painter(model publisher.Model, question string) publisher.Work {
	return func(ctx context.Context, run *publisher.Run) error {
		if question != "" {
			if _, err := run.Ask(ctx, schema.RunWaitingData{InterruptID: "colour", Reason: schema.WaitHumanInput, Message: question}); err != nil {
				return err
			}
		}
		return publisher.Loop{Model: model}.Work(ctx, run)
	}
}

func says(text string) publisher.Model {
	return func(context.Context, publisher.ModelRequest) (publisher.Answer, error) {
		return publisher.Answer{Message: message("assistant", text)}, nil
	}
}

func TestReplay_QuestionsWereChanged_AreNamed(t *testing.T) {
	t.Parallel()
	asks := func(c *publisher.Config) { c.Policy = askFirst }
	approved := record(t, asks, mailer(sending(publisher.Hold, "sent"), nil))
	mails := func(r *waymarktest.Recorded) publisher.Work { return played(r, nil) }
	asked := recordWork(t, nil, painter(says("Done."), "Which one?"), `"red"`)
	asksFor := func(question string) func(*waymarktest.Recorded) publisher.Work {
		return func(r *waymarktest.Recorded) publisher.Work { return painter(r.Model, question) }
	}
	for name, c := range map[string]struct {
		file   string
		config func(*publisher.Config)
		agent  func(*waymarktest.Recorded) publisher.Work
		says   string
	}{
		"the same approval": {approved, asks, mails, ""},
		"no approval": {
			approved, nil, mails,
			"no person is asked for the approval of call b of tool send_mail in turn 2 (May the tool send_mail be called? mail leaves the house); " +
				"in the record the run waits for it",
		},
		"an approval more": {
			approved, func(c *publisher.Config) {
				c.Policy = func(context.Context, *publisher.Run, publisher.ToolCall) (publisher.Decision, error) {
					return publisher.Decision{Decision: schema.DecisionAsk}, nil
				}
			}, mails, "the run waits for tool_approval (May the tool look_up be called?), which is not recorded",
		},
		"the same question": {asked, nil, asksFor("Which one?"), ""},
		"no question": {
			asked, nil, asksFor(""), "no person is asked for human_input colour (Which one?); in the record the run waits for it",
		},
		"another question": {
			asked, nil, asksFor("Which two?"), "a person is asked for human_input colour (Which two?); in the record it is human_input colour (Which one?)",
		},
		"no work at all": {
			asked, nil,
			func(*waymarktest.Recorded) publisher.Work {
				return func(context.Context, *publisher.Run) error { return nil }
			},
			"no person is asked for human_input colour",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said := saidOf(t, c.file, c.config, c.agent)
			if c.says == "" {
				require.Empty(t, said)
			}
			require.Contains(t, said, c.says)
		})
	}
}

// The tools of the agent do not run: not by a loop, not by Turn.Tool, not where it calls Recorded.Tool itself.
func TestReplay_RealTools_DoNotRun(t *testing.T) {
	t.Parallel()
	effects := 0
	really := func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		effects++
		return publisher.Result("sent")
	}
	file := record(t, nil, mailer(sending(publisher.Hold, "sent"), nil))
	said := saidOf(t, file, nil, func(r *waymarktest.Recorded) publisher.Work {
		return played(r, func(l *publisher.Loop) {
			for i := range l.Tools {
				l.Tools[i].Run = really
			}
		})
	})
	require.Empty(t, said)
	require.Zero(t, effects)

	// An agent without a loop, which runs its tool itself.
	by := func(model publisher.Model, tool publisher.ToolFunc) publisher.Work {
		return func(ctx context.Context, run *publisher.Run) error {
			turn, err := run.StartTurn(ctx, publisher.TurnSpec{})
			if err != nil {
				return err
			}
			answer, err := model(ctx, publisher.ModelRequest{Turn: turn.Number()})
			if err != nil {
				return err
			}
			keys, err := turn.Answer(ctx, answer)
			if err != nil {
				return err
			}
			result, err := tool(ctx, publisher.Invocation{Key: keys[0], Name: "pay"})
			if err != nil {
				return err
			}
			if err := turn.Return(ctx, keys[0], result); err != nil {
				return err
			}
			return run.End(ctx, publisher.RunEnd{})
		}
	}
	model := func(context.Context, publisher.ModelRequest) (publisher.Answer, error) {
		return publisher.Answer{Message: message("assistant", "I pay."), Calls: []publisher.ToolCall{{ID: "p", Name: "pay"}}}, nil
	}
	file = recordWork(t, nil, by(model, really), "")
	require.Equal(t, 1, effects)
	require.Empty(t, saidOf(t, file, nil, func(r *waymarktest.Recorded) publisher.Work { return by(r.Model, r.Tool) }))
	said = saidOf(t, file, nil, func(r *waymarktest.Recorded) publisher.Work { return by(model, r.Tool) })
	require.Contains(t, said, "the agent asked another model: pass Recorded.Model to it")
}

func TestReplay_NothingToPlay_IsRefused(t *testing.T) {
	t.Parallel()
	nothing := recordWork(t, nil, func(context.Context, *publisher.Run) error { return nil }, "")
	require.Contains(t, replayed(t, nothing), "run fix-login has no model answer, no call, no question and no phase: there is nothing to replay")
	b, err := os.ReadFile(nothing)
	require.NoError(t, err)
	two := filepath.Join(t.TempDir(), "two.jsonl")
	require.NoError(t, os.WriteFile(two, []byte(string(b)+strings.ReplaceAll(string(b), "fix-login", "fix-logout")), 0o600))
	require.Contains(t, replayed(t, two), "an event of run fix-logout after events of run fix-login: export only one run")
}

// A phase that is not run any more is missed.
func TestReplay_PhaseIsGone_IsNamed(t *testing.T) {
	t.Parallel()
	phased := func(phases ...string) publisher.Work {
		return func(ctx context.Context, run *publisher.Run) error {
			for _, phase := range phases {
				if _, err := run.Phase(ctx, phase, func(context.Context) (any, error) { return 1, nil }); err != nil {
					return err
				}
			}
			return nil
		}
	}
	file := recordWork(t, nil, phased("one", "two"), "")
	require.Empty(t, saidOf(t, file, nil, func(*waymarktest.Recorded) publisher.Work { return phased("one", "two") }))
	require.Contains(t, saidOf(t, file, nil, func(*waymarktest.Recorded) publisher.Work { return phased("one") }), "phase two is not completed; in the record it is")
}
