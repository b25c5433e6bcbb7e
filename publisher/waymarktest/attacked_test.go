package waymarktest_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// The same agent plays what people and time did to its run.
func TestReplay_PeopleAndTimeAreInTheRecord_NoDivergence(t *testing.T) {
	t.Parallel()
	twice := func(ctx context.Context, run *publisher.Run) error {
		for _, want := range []string{`"red"`, `"blue"`} {
			d := schema.RunWaitingData{InterruptID: "colour", Reason: schema.WaitHumanInput, Message: "Which one?"}
			if err := run.Wait(ctx, d); err != nil && run.Head().Status != schema.StatusWaiting {
				return err
			}
			in, err := run.AwaitInput(ctx, "colour")
			if err != nil {
				return err
			}
			if string(in.Payload) != want {
				return run.End(ctx, publisher.RunEnd{Status: schema.StatusFailed, Summary: string(in.Payload)})
			}
		}
		return nil
	}
	expires := func(ctx context.Context, run *publisher.Run) error {
		_, err := run.Ask(ctx, schema.RunWaitingData{
			InterruptID: "q", Reason: schema.WaitHumanInput, Message: "Which one?", ExpiresAt: schema.FormatTime(time.Now().Add(time.Hour)),
		})
		if !errors.Is(err, publisher.ErrInputExpired) {
			return err
		}
		return run.End(ctx, publisher.RunEnd{Summary: "expired"})
	}
	for name, c := range map[string]struct {
		work   publisher.Work
		people func(*waymarktest.World, *waymarktest.Executor)
		again  func(*waymarktest.Recorded) publisher.Work
	}{
		"one id is asked twice": {work: twice, people: func(w *waymarktest.World, e *waymarktest.Executor) {
			for i, answer := range []string{`"red"`, `"blue"`} {
				require.Eventually(t, func() bool {
					s := w.State("fix-login")
					return len(s.Waits) == i+1 && s.Waits[i].Input == nil
				}, time.Minute, time.Millisecond)
				require.NoError(t, e.Fleet().Input(t.Context(), "fix-login", publisher.Input{InterruptID: "colour", EventID: w.State("fix-login").Head.Interrupts[0].Position.ID, Payload: []byte(answer)}))
			}
		}},
		"a question expired": {work: expires, people: func(w *waymarktest.World, _ *waymarktest.Executor) {
			w.Await("fix-login", schema.StatusWaiting)
			w.Advance(2 * time.Hour)
		}},
		"a tool failed with a retryable error": {
			work: func(ctx context.Context, run *publisher.Run) error { return retryable(nil).Work(ctx, run) }, people: func(*waymarktest.World, *waymarktest.Executor) {},
			again: func(r *waymarktest.Recorded) publisher.Work { return retryable(r).Work },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := recordWith(t, nil, c.work, c.people)
			require.Empty(t, saidOf(t, file, nil, func(r *waymarktest.Recorded) publisher.Work {
				if c.again != nil {
					return c.again(r)
				}
				return c.work
			}))
		})
	}
}

// retryable is the mailer, whose tool fails with an error that may pass by itself.
func retryable(r *waymarktest.Recorded) publisher.Loop {
	loop := mailer(publisher.NewTool("send_mail", "Sends a mail.", publisher.Pure, func(context.Context, mail) (string, error) {
		return "", publisher.Retryable(errors.New("mailbox is full"))
	}), nil)
	loop.ToolTries = 1
	if r != nil {
		loop.Model = r.Model
	}
	return loop
}

// A file in which lines are missing is refused.
func TestReplay_LinesAreMissing_IsRefused(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(record(t, nil, mailer(sending(publisher.Hold, "sent"), nil)))
	require.NoError(t, err)
	lines := strings.SplitAfter(strings.TrimSpace(string(b)), "\n")
	for i := 1; i < len(lines)-1; i++ {
		file := filepath.Join(t.TempDir(), "run.jsonl")
		require.NoError(t, os.WriteFile(file, []byte(strings.Join(lines[:i], "")+strings.Join(lines[i+1:], "")), 0o600))
		require.Contains(t, replayed(t, file), "is not valid after the events before it", "without line %d: %s", i+1, lines[i])
	}
}

// Right agents whose texts name runs pass.
func TestCrashEverywhere_TextsNameRuns_Pass(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]func(publisher.Invocation) string{
		"the key":     func(inv publisher.Invocation) string { return "receipt of " + inv.IdempotencyKey },
		"another run": func(publisher.Invocation) string { return "dry-run-1, runbook run-5" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Empty(t, found(t, func(tb testing.TB) {
				tb.Helper()
				waymarktest.CrashEverywhere(tb, func(out *waymarktest.Outside) publisher.Work {
					return mailer(publisher.NewTool("send_mail", "Sends a mail.", publisher.Hold, func(ctx context.Context, _ mail) (string, error) {
						return text(publisher.InvocationOf(ctx)), out.Effect(ctx, "mail")
					}), out).Work
				})
			}))
		})
	}
}

// What a crash repeats besides effects: questions, artifacts, values.
func TestCrashEverywhere_RecordDiffers_IsFound(t *testing.T) {
	t.Parallel()
	said := found(t, func(tb testing.TB) {
		tb.Helper()
		waymarktest.CrashEverywhereWith(tb, waymarktest.Crash{
			NoEffects: true, Answer: func(schema.OpenInterrupt) publisher.Input { return publisher.Input{Payload: []byte(`1`)} },
		}, func(out *waymarktest.Outside) publisher.Work {
			lives := waymarktest.Keep(out, "lives", func() *int { return new(int) })
			*lives++
			return func(ctx context.Context, run *publisher.Run) error {
				id := "q" + strings.Repeat("i", *lives) // as a random one would be
				_, err := run.Ask(ctx, schema.RunWaitingData{InterruptID: id, Reason: schema.WaitHumanInput, Message: "Which one?"})
				return err
			}
		})
	})
	require.Contains(t, said, "a repeated question needs the same InterruptID")
	said = found(t, func(tb testing.TB) {
		tb.Helper()
		waymarktest.CrashEverywhereWith(tb, waymarktest.Crash{NoEffects: true}, func(out *waymarktest.Outside) publisher.Work {
			lives := waymarktest.Keep(out, "lives", func() *int { return new(int) })
			*lives++
			return func(ctx context.Context, run *publisher.Run) error {
				return run.Artifact(ctx, schema.ArtifactAddedData{ArtifactID: "a" + strings.Repeat("i", *lives), Name: "report"})
			}
		})
	})
	require.Contains(t, said, "artifact aii is there; without a crash it is not there")
}

// A request that passes its tool by is an effect outside of a tool.
func TestTransport_RequestWithoutItsTool_IsFound(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: agents are killed everywhere")
	}
	api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(api.Close)
	said := found(t, func(tb testing.TB) {
		tb.Helper()
		waymarktest.CrashEverywhere(tb, func(out *waymarktest.Outside) publisher.Work {
			client := http.Client{Transport: out.Transport(nil)}
			return mailer(publisher.NewTool("send_mail", "Sends a mail.", publisher.Pure, func(_ context.Context, in mail) (string, error) {
				response, err := client.Post(api.URL, "text/plain", strings.NewReader(in.To))
				if err != nil {
					return "", err
				}
				return "sent", response.Body.Close()
			}), out).Work
		})
	})
	api.CloseClientConnections()
	require.Contains(t, said, "happened 2 times, and once without a crash: it was made outside of a tool")
}
