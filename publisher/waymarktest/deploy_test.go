package waymarktest_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// bill and invoice are the arguments of two versions of one tool.
type bill struct {
	Cents int `json:"cents"`
}

type invoice struct {
	Amount int `json:"amount"`
}

// paying is a tool that pays with the call's key.
func paying[In any](out *waymarktest.Outside, name string, replay schema.Replay, text func(In) string) publisher.Tool {
	return publisher.NewTool(name, "Pays.", replay, func(ctx context.Context, in In) (string, error) {
		return "paid", out.Once(ctx, publisher.InvocationOf(ctx).IdempotencyKey, text(in))
	})
}

// payer asks for one payment by a tool.
func payer(tool publisher.Tool, arguments string) publisher.Loop {
	return publisher.Loop{Tools: []publisher.Tool{tool}, Model: func(_ context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
		if request.Turn == 1 {
			return publisher.Answer{Calls: []publisher.ToolCall{{ID: "a", Name: tool.Name, Arguments: []byte(arguments)}}}, nil
		}
		return publisher.Answer{Message: message("assistant", "Done.")}, nil
	}}
}

// version is a version of the payer.
func version[In any](name string, replay schema.Replay, arguments string, text func(In) string) waymarktest.Agent {
	return func(out *waymarktest.Outside) publisher.Work {
		return payer(paying(out, name, replay, text), arguments).Work
	}
}

func paid(b bill) string { return fmt.Sprintf("payment of %d", b.Cents) }

// staged is own work that pays in a phase, and returns err after it.
func staged(phase string, err error) waymarktest.Agent {
	return func(out *waymarktest.Outside) publisher.Work {
		return func(ctx context.Context, run *publisher.Run) error {
			if _, err := run.Phase(ctx, phase, func(ctx context.Context) (any, error) { return 1, out.Once(ctx, phase, "payment of 5") }); err != nil {
				return err
			}
			if err != nil && run.Epoch() > 2 {
				return err
			}
			_, err := run.Phase(ctx, "report", func(context.Context) (any, error) { return 1, nil })
			return err
		}
	}
}

// asking is own work that makes a call with arguments and an id.
func asking(id, arguments string) waymarktest.Agent {
	return func(out *waymarktest.Outside) publisher.Work {
		return func(ctx context.Context, run *publisher.Run) error {
			turn := run.OpenTurn()
			if turn == nil {
				var err error
				if turn, err = run.StartTurn(ctx, publisher.TurnSpec{}); err != nil {
					return err
				}
			}
			call := publisher.ToolCall{ID: id, Name: "pay", Replay: publisher.Hold, Arguments: []byte(arguments)}
			_, err := turn.Tool(ctx, call, func(ctx context.Context, _ publisher.Invocation) (publisher.ToolResult, error) {
				return publisher.ToolResult{}, out.Effect(ctx, "payment of 5")
			})
			if err != nil {
				return err
			}
			return run.End(ctx, publisher.RunEnd{})
		}
	}
}

func TestCrashEverywhere_DeployKeepsItsCalls_Passes(t *testing.T) {
	t.Parallel()
	before := version("pay", publisher.Idempotent, `{"cents":5}`, paid)
	for name, after := range map[string]waymarktest.Agent{
		"a stricter policy": version("pay", publisher.Hold, `{"cents":5}`, paid),
		"a renamed tool, and the old one as well": func(out *waymarktest.Outside) publisher.Work {
			loop := payer(paying(out, "settle", publisher.Idempotent, paid), `{"cents":5}`)
			loop.Tools = append(loop.Tools, paying(out, "pay", publisher.Idempotent, paid))
			return loop.Work
		},
		"another prompt": func(out *waymarktest.Outside) publisher.Work {
			loop := payer(paying(out, "pay", publisher.Idempotent, paid), `{"cents":5}`)
			loop.System = "You pay politely."
			return loop.Work
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			waymarktest.CrashEverywhereWith(t, waymarktest.Crash{Before: before}, after)
		})
	}
}

func TestCrashEverywhere_DeployBreaksRuns_SaysHow(t *testing.T) {
	t.Parallel()
	before := version("pay", publisher.Idempotent, `{"cents":5}`, paid)
	for name, c := range map[string]struct {
		before, after waymarktest.Agent
		says          []string
		noEffects     bool
	}{
		"a renamed tool": {
			before, version("settle", publisher.Idempotent, `{"cents":5}`, paid),
			[]string{
				`call 1 is pay {"cents":5} in turn 1 (failed: unknown_tool: the agent had a tool "pay" when it was called, and has it no longer); ` +
					`without a crash neither version has such a call`,
				`effect "payment of 5" happened never, and once without a crash`,
			},
			false,
		},
		"a renamed argument": {
			before, version("pay", publisher.Idempotent, `{"amount":5}`, func(in invoice) string { return fmt.Sprintf("payment of %d", in.Amount) }),
			[]string{`call 1 is pay {"cents":5} in turn 1 (failed: invalid_arguments`},
			false,
		},
		"a tool that reads other arguments": {
			before, version("pay", publisher.Idempotent, `{"amount":5}`, func(in map[string]any) string { return fmt.Sprintf("payment of %.0f", in["amount"]) }),
			[]string{`effect "payment of %!f(<nil>)" happened once, and never without a crash: by call a of tool pay in turn 1`},
			false,
		},
		"a renamed phase": {
			staged("pay", nil), staged("settle", nil),
			[]string{`effect "payment of 5" happened 2 times, and once without a crash: it was made outside of a tool`},
			true,
		},
		"another id of the call": {
			asking("a", `{"cents":5}`), asking("b", `{"cents":5}`),
			[]string{
				`effect "payment of 5" happened 2 times, and once without a crash: by call a of tool pay in turn 1, call b of tool pay in turn 1`,
			},
			false,
		},
		"other arguments of own work": {
			asking("a", `{"cents":5}`), asking("a", `{"cents":5,"to":"bob"}`),
			[]string{"it is quarantined: 3 executors in a row made no progress, and its work returned in the last one", "run diverged from its record"},
			false,
		},
		"work that fails where its old state is": {
			staged("pay", nil), staged("pay", fmt.Errorf("no such state")),
			[]string{"it ends as failed, not as completed: error: no such state"},
			true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said := found(t, func(tb testing.TB) {
				tb.Helper()
				waymarktest.CrashEverywhereWith(tb, waymarktest.Crash{Before: c.before, NoEffects: c.noEffects}, c.after)
			})
			for _, s := range c.says {
				require.Contains(t, said, s)
			}
		})
	}
}

// takenOver is what ReplayFromEach says of the mailer with a change, and of the Policy.
func takenOver(t *testing.T, file string, config func(*publisher.Config), change func(*publisher.Loop)) string {
	t.Helper()
	return found(t, func(tb testing.TB) {
		tb.Helper()
		waymarktest.ReplayFromEach(tb, file, config, func(r *waymarktest.Recorded) publisher.Work { return played(r, change) })
	})
}

func TestReplayFromEach_RunsGoOn_NoDivergence(t *testing.T) {
	t.Parallel()
	file := record(t, nil, mailer(sending(publisher.Hold, "sent"), nil))
	for name, change := range map[string]func(*publisher.Loop){
		"the same agent":         nil,
		"another system message": func(l *publisher.Loop) { l.System = "You write mail." },
		"a stricter policy":      func(l *publisher.Loop) { l.Tools[0].Replay = publisher.Hold },
		"tools in another order": func(l *publisher.Loop) { l.Tools[0], l.Tools[1] = l.Tools[1], l.Tools[0] },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Empty(t, takenOver(t, file, nil, change))
		})
	}
	asks := func(c *publisher.Config) { c.Policy = askFirst }
	approved := record(t, asks, mailer(sending(publisher.Hold, "sent"), nil))
	require.Empty(t, takenOver(t, approved, asks, nil))
}

func TestReplayFromEach_DeployBreaksRuns_SaysWhere(t *testing.T) {
	t.Parallel()
	file := record(t, nil, mailer(sending(publisher.Hold, "sent"), nil))
	for name, c := range map[string]struct {
		change func(*publisher.Loop)
		says   string
	}{
		"a tool is gone": {
			func(l *publisher.Loop) { l.Tools = l.Tools[:1] },
			`{"error":{"type":"unknown_tool","message":"the agent had a tool \"send_mail\" when it was called, and has it no longer"}}`,
		},
		"another argument": {
			func(l *publisher.Loop) {
				l.Tools[1] = publisher.NewTool("send_mail", "", publisher.Hold, func(context.Context, invoice) (string, error) { return "sent", nil })
			},
			"the arguments do not match the schema of send_mail",
		},
		"a limit": {
			func(l *publisher.Loop) { l.MaxTurns = 1 },
			"the run reaches its limit turns before turn 3",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Contains(t, takenOver(t, file, nil, c.change), c.says)
		})
	}
}

// A limit counts the time of the record, not the time since.
func TestReplayFromEach_OldRecord_LimitIsNotReached(t *testing.T) {
	t.Parallel()
	longAgo := func(c *publisher.Config) { c.Now = func() time.Time { return time.Now().Add(-1000 * time.Hour) } }
	file := recordWork(t, longAgo, mailer(sending(publisher.Hold, "sent"), nil).Work, "")
	require.Empty(t, takenOver(t, file, nil, func(l *publisher.Loop) { l.MaxTime = time.Hour }))
}

// Own work that a new run would do, and a living one cannot.
func TestReplayFromEach_PhaseReadsOldOutput_Diverges(t *testing.T) {
	t.Parallel()
	file := recordWork(t, nil, drafted(`"text"`), "")
	replays := map[string]func(testing.TB, string, func(*publisher.Config), func(*waymarktest.Recorded) publisher.Work){
		"": waymarktest.Replay, "its error is error; in the record it is none": waymarktest.ReplayFromEach,
	}
	for says, replay := range replays {
		said := found(t, func(tb testing.TB) {
			tb.Helper()
			replay(tb, file, nil, func(*waymarktest.Recorded) publisher.Work { return drafted(`["text"]`) })
		})
		if says == "" {
			require.Empty(t, said)
		}
		require.Contains(t, said, says)
	}
}

// drafted is own work that drafts something and then reads the form of its draft.
func drafted(draft string) publisher.Work {
	return func(ctx context.Context, run *publisher.Run) error {
		out, err := run.Phase(ctx, "draft", func(context.Context) (any, error) { return jsontext.Value(draft), nil })
		if err != nil {
			return err
		}
		if out[0] != draft[0] {
			return fmt.Errorf("the draft is %s", out)
		}
		_, err = run.Phase(ctx, "print", func(context.Context) (any, error) { return 1, nil })
		return err
	}
}

func TestCrashEverywhere_VersionOfDeployTestsNothing_IsNamed(t *testing.T) {
	t.Parallel()
	good, fails := version("pay", publisher.Idempotent, `{"cents":5}`, paid), version("pay", publisher.Idempotent, `{"euros":5}`, paid)
	for says, versions := range map[string][2]waymarktest.Agent{
		"the run of Crash.Before without a crash tests nothing: ":     {fails, good},
		"the run of the tested agent without a crash tests nothing: ": {good, fails},
	} {
		require.Contains(t, found(t, func(tb testing.TB) {
			tb.Helper()
			waymarktest.CrashEverywhereWith(tb, waymarktest.Crash{Before: versions[0]}, versions[1])
		}), says)
	}
}
