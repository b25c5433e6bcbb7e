package waymarktest_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// Before the wait's event, after it, after its expiry, after the claim: each step of a wait is a crash point, in work of
// one's own and in a tool of a loop.
func TestSleep_CrashAtEachStep_WaitsOnce(t *testing.T) {
	t.Parallel()
	waits := func(t *testing.T, state *schema.State) {
		t.Helper()
		require.Len(t, state.Waits, 1)
	}
	t.Run("work", func(t *testing.T) {
		t.Parallel()
		waymarktest.CrashEverywhere(t, func(out *waymarktest.Outside) publisher.Work {
			return func(ctx context.Context, run *publisher.Run) error {
				if err := run.Sleep(ctx, "an-hour", time.Now().Add(time.Hour)); err != nil {
					return err
				}
				waits(t, run.State())
				_, err := run.Phase(ctx, "after", func(ctx context.Context) (any, error) {
					return nil, out.Once(ctx, run.ID(), "after the hour")
				})
				return err
			}
		})
	})
	t.Run("tool", func(t *testing.T) {
		t.Parallel()
		waymarktest.CrashEverywhere(t, func(out *waymarktest.Outside) publisher.Work {
			return mailer(publisher.NewTool("send_mail", "Sends a mail in an hour.", publisher.Idempotent, func(ctx context.Context, in mail) (string, error) {
				inv := publisher.InvocationOf(ctx)
				if err := inv.Run().Sleep(ctx, "", time.Now().Add(time.Hour)); err != nil {
					return "", err
				}
				waits(t, inv.Run().State())
				return "sent", out.Once(ctx, inv.IdempotencyKey, "mail to "+in.To)
			}), out).Work
		})
	})
}

// Runs that sleep until the same time need no executor until then, and do not all wake at once.
func TestSleep_ManyRuns_WakeOneAfterTheOther(t *testing.T) {
	t.Parallel()
	const runs = 60
	w := waymarktest.Start(t)
	until := w.Now().Add(time.Hour)
	e := w.Serve("ex-1", publisher.ExecutorSpec{
		Capacity: 1, // a sleeping run takes no place
		Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
			"agent": func(context.Context, *publisher.Run) (publisher.Work, error) {
				return func(ctx context.Context, run *publisher.Run) error { return run.Sleep(ctx, "night", until) }, nil
			},
		},
	}, nil)
	for n := range runs {
		_, err := e.Fleet().Submit(t.Context(), publisher.RunSpec{ID: fmt.Sprint("r", n), Agent: "agent"})
		require.NoError(t, err)
	}
	ended := func() (n int) {
		for n := range runs {
			w.Await(fmt.Sprint("r", n), schema.StatusWaiting, schema.StatusCompleted)
		}
		for i := range runs {
			if w.Status(fmt.Sprint("r", i)) == schema.StatusCompleted {
				n++
			}
		}
		return n
	}
	require.Zero(t, ended())
	e.Kill()
	w.Advance(time.Until(until) - time.Second)
	require.Zero(t, ended(), "it is not time yet")
	w.Advance(15 * time.Second) // of a minute of jitter
	e.Start()
	require.Eventually(t, func() bool { n := ended(); return n > 0 && n < runs }, time.Minute, 10*time.Millisecond)
	w.Advance(time.Minute)
	require.Eventually(t, func() bool { return ended() == runs }, time.Minute, 10*time.Millisecond)
	for n := range runs {
		require.Len(t, w.State(fmt.Sprint("r", n)).Takeovers, 2, "one claim for its first work, one after the wait")
	}
}
