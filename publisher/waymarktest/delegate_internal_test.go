package waymarktest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// delegating is an agent whose tool delegates, and has an effect once the child has ended. stays: its executor waits for
// the end, and does not release the run.
func delegating(stays bool) Agent {
	return func(out *Outside) publisher.Work {
		delegate := publisher.NewTool("delegate", "", publisher.Idempotent, func(ctx context.Context, _ struct{}) (string, error) {
			inv := publisher.InvocationOf(ctx)
			spec := publisher.RunSpec{Agent: "helper", Task: "Help."}
			end, err := inv.Run().Delegate(ctx, spec)
			for stays && errors.Is(err, publisher.ErrWaiting) && !out.life.dead() {
				if err = inv.Run().Sync(ctx); err == nil {
					end, err = inv.Run().Delegate(ctx, spec)
				}
			}
			if err != nil {
				return "", err
			}
			return end.Summary, out.Once(ctx, inv.IdempotencyKey, "use of "+end.Summary)
		})
		return publisher.Loop{Tools: []publisher.Tool{delegate}, Model: func(_ context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
			if request.Turn == 1 {
				return publisher.Answer{Calls: []publisher.ToolCall{{ID: "c", Name: "delegate", Arguments: []byte(`{}`)}}}, nil
			}
			return publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("Done.")}}}, nil
		}}.Work
	}
}

// Another executor of the same world runs the child, and the daemon ends the wait.
func TestCrashEverywhere_LoopDelegates_OneChildAndOneEffect(t *testing.T) {
	t.Parallel()
	// A child whose submission was cut short is orphaned after the silence.
	w := StartWith(t, Config{Silence: 2 * time.Second})
	w.Serve("helper", publisher.ExecutorSpec{Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
		"helper": func(context.Context, *publisher.Run) (publisher.Work, error) {
			return func(ctx context.Context, run *publisher.Run) error {
				return run.End(ctx, publisher.RunEnd{Summary: "help"})
			}, nil
		},
	}}, nil)
	for _, stays := range []bool{true, false} {
		c := &crashes{w: w, spec: Crash{
			Run: publisher.RunSpec{Agent: "agent", Task: "Go."},
			Answer: func(o schema.OpenInterrupt) publisher.Input {
				parent := w.State(strings.TrimPrefix(o.InterruptID, schema.ChildPrefix)).Head.Parent.Run
				w.until(func() bool { return len(w.State(parent).Signals) > 0 }, "run %s is not told", parent)
				return publisher.Input{}
			},
		}}
		if !stays {
			c.tries = 1000 // other runs
		}
		require.True(t, c.without(t, delegating(stays), ""))
		for _, p := range c.whole[0].points() {
			tried := c.try(p)
			c.check(tried)
			page, err := w.Reader().List(t.Context(), schema.ListRequest{Parent: tried.run})
			require.NoError(t, err)
			require.Len(t, page.Runs, 1, "%s", p)
			require.Len(t, tried.outside.all(), 1, "%s", p)
			require.Len(t, tried.state.Signals, 1, "%s", p)
		}
		if len(c.found) > 0 {
			require.Fail(t, c.report())
		}
	}
}
