package waymarktest_test

import (
	"context"
	"fmt"
	"testing"

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
			[]string{"run diverged from its record"},
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
