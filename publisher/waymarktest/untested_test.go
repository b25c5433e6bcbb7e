package waymarktest_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// silent is the mailer, whose tool tells of no effect.
func silent(replay schema.Replay) waymarktest.Agent {
	return func(out *waymarktest.Outside) publisher.Work { return mailer(sending(replay, "sent"), out).Work }
}

// A test that tests nothing fails, and says what to do. Where it is meant so, it says so.
func TestCrashEverywhere_NothingIsTested_Fails(t *testing.T) {
	t.Parallel()
	broken := func(out *waymarktest.Outside) publisher.Work {
		loop := mailer(sender(out, publisher.Hold), out)
		loop.Model = func(context.Context, publisher.ModelRequest) (publisher.Answer, error) {
			return publisher.Answer{}, publisher.Permanent(errors.New("no route to the model"))
		}
		return loop.Work
	}
	wrong := func(out *waymarktest.Outside) publisher.Work {
		type other struct {
			Address string `json:"address"`
		}
		return mailer(publisher.NewTool("send_mail", "Sends a mail.", publisher.Hold, func(ctx context.Context, in other) (string, error) {
			return "sent", out.Effect(ctx, in.Address)
		}), out).Work
	}
	half := func(out *waymarktest.Outside) publisher.Work {
		return func(ctx context.Context, run *publisher.Run) error {
			if err := out.Once(ctx, run.ID(), "row"); err != nil {
				return err
			}
			return mailer(sending(publisher.Hold, "sent"), out).Work(ctx, run)
		}
	}
	const tests = "the run without a crash tests nothing: "
	for name, c := range map[string]struct {
		crash waymarktest.Crash
		agent waymarktest.Agent
		says  string
	}{
		"the model always fails": {
			waymarktest.Crash{},
			broken,
			tests + "it ends as failed, not as completed: error: no route to the model; if this is correct, set Crash.Status to \"failed\"",
		},
		"a failure is meant": {waymarktest.Crash{Status: schema.StatusFailed, NoEffects: true}, broken, ""},
		"a failure is meant, and it completes": {
			waymarktest.Crash{Status: schema.StatusFailed}, silent(publisher.Hold), tests + "it ends as completed, not as failed: Sent.",
		},
		"the arguments are wrong": {waymarktest.Crash{}, wrong, "call send_mail {\"to\":\"bob@example.com\"} in turn 2 (failed: invalid_arguments: "},
		"no effect is told":       {waymarktest.Crash{}, silent(publisher.Pure), tests + "no effect is reported to Outside: call Outside.Effect or Outside.Once"},
		"no effect is meant":      {waymarktest.Crash{NoEffects: true}, silent(publisher.Hold), ""},
		"a tool tells of no effect": {
			waymarktest.Crash{}, half, tests + "no effect of tool send_mail (hold) is reported to Outside: call Outside.Effect",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			made := 0
			said := found(t, func(tb testing.TB) {
				tb.Helper()
				waymarktest.CrashEverywhereWith(tb, c.crash, func(out *waymarktest.Outside) publisher.Work {
					made++
					return c.agent(out)
				})
			})
			if c.says == "" {
				require.Empty(t, said)
				return
			}
			require.Contains(t, said, c.says)
			require.Equal(t, 1, made, "it goes on, though its effects may be real ones")
		})
	}
}

// That executors are killed is no news: the log has nothing of it, but that of the history that is reported.
func TestCrashEverywhere_ExecutorsAreKilled_LogsAreQuiet(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: an agent is killed everywhere, twice")
	}
	for _, replay := range []schema.Replay{publisher.Hold, publisher.Pure} {
		said, logged := foundAndLogged(t, func(tb testing.TB) {
			tb.Helper()
			waymarktest.CrashEverywhere(tb, func(out *waymarktest.Outside) publisher.Work { return mailer(sender(out, replay), out).Work })
		})
		if replay == publisher.Hold {
			require.Empty(t, said)
			require.Contains(t, logged, "always the same end")
			require.NotContains(t, logged, "\n")
			continue
		}
		require.Empty(t, logged)
		require.Equal(t, 1, strings.Count(said, "log of its executors:\n"))
		require.Equal(t, 1, strings.Count(said, "outcome not published"), said)
	}
}

// Requests of tools count by the header that APIs take the key from.
func TestTransport_IdempotencyKey_CountsOnce(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: an agent is killed everywhere, twice")
	}
	api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(api.Close)
	for _, header := range []string{"Idempotency-Key", "X-Other"} {
		said := found(t, func(tb testing.TB) {
			tb.Helper()
			waymarktest.CrashEverywhere(tb, func(out *waymarktest.Outside) publisher.Work {
				client := http.Client{Transport: out.Transport(nil)}
				return mailer(publisher.NewTool("send_mail", "Sends a mail.", publisher.Idempotent, func(ctx context.Context, in mail) (string, error) {
					request, err := http.NewRequestWithContext(ctx, http.MethodPost, api.URL, strings.NewReader(in.To))
					if err != nil {
						return "", err
					}
					request.Header.Set(header, publisher.InvocationOf(ctx).IdempotencyKey)
					response, err := client.Do(request)
					if err != nil {
						return "", err
					}
					return "sent", response.Body.Close()
				}), out).Work
			})
		})
		api.CloseClientConnections()
		if header == "Idempotency-Key" {
			require.Empty(t, said)
		} else {
			require.Contains(t, said, "happened 2 times, and once without a crash: tool send_mail is idempotent")
		}
	}
}
