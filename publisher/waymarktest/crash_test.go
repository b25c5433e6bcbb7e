package waymarktest_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// failing is a test that may fail: what CrashEverywhere says of it is the result.
type failing struct {
	testing.TB
	mu    sync.Mutex
	said  []string
	logs  []string
	fatal bool
}

// Log is what a logger or a person says.
func (f *failing) Log(args ...any) { f.Logf("%s", fmt.Sprint(args...)) }

func (f *failing) Error(args ...any) { f.say(fmt.Sprint(args...)) }

func (f *failing) Errorf(format string, args ...any) { f.say(fmt.Sprintf(format, args...)) }

func (f *failing) Fatalf(format string, args ...any) {
	f.say(fmt.Sprintf(format, args...))
	f.fatal = true
	runtime.Goexit()
}

func (f *failing) Logf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.logs = append(f.logs, fmt.Sprintf(format, args...))
}

func (f *failing) say(text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.said = append(f.said, text)
}

// found runs a test and returns what it said.
func found(t *testing.T, test func(testing.TB)) string {
	t.Helper()
	said, _ := foundAndLogged(t, test)
	return said
}

// foundAndLogged returns also what it logged.
func foundAndLogged(t *testing.T, test func(testing.TB)) (said, logged string) {
	t.Helper()
	f := &failing{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		test(f)
	}()
	<-done
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.said, "\n"), strings.Join(f.logs, "\n")
}

type mail struct {
	To string `json:"to"`
}

// mailer is an agent that looks something up and sends a mail, whose tool is as the test has it.
func mailer(send publisher.Tool, out *waymarktest.Outside) publisher.Loop {
	look := publisher.NewTool("look_up", "Looks an address up.", publisher.Pure,
		func(_ context.Context, in mail) (string, error) { return in.To + "@example.com", nil })
	return publisher.Loop{
		System: "You send mail.", Tools: []publisher.Tool{look, send},
		Model: func(_ context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
			switch request.Turn {
			case 1:
				return publisher.Answer{Calls: []publisher.ToolCall{{ID: "a", Name: "look_up", Arguments: []byte(`{"to":"bob"}`)}}}, nil
			case 2:
				return publisher.Answer{Calls: []publisher.ToolCall{{ID: "b", Name: "send_mail", Arguments: []byte(`{"to":"bob@example.com"}`)}}}, nil
			default:
				return publisher.Answer{Message: message("assistant", "Sent.")}, nil
			}
		},
	}
}

// sender sends under a policy.
func sender(out *waymarktest.Outside, replay schema.Replay) publisher.Tool {
	return publisher.NewTool("send_mail", "Sends a mail.", replay, func(ctx context.Context, in mail) (string, error) {
		if err := out.Effect(ctx, "mail to "+in.To); err != nil {
			return "", err
		}
		return "sent", nil
	})
}

func TestCrashEverywhere_RightAgents_Pass(t *testing.T) {
	t.Parallel()
	waymarktest.CrashEverywhere(t, func(out *waymarktest.Outside) publisher.Work { return mailer(sender(out, publisher.Hold), out).Work })
	waymarktest.CrashEverywhere(t, func(out *waymarktest.Outside) publisher.Work {
		return mailer(keyed(out, func(inv publisher.Invocation) string { return inv.IdempotencyKey }), out).Work
	})
}

// keyed sends through a server that knows keys, with the one that the tool hands over.
func keyed(out *waymarktest.Outside, key func(publisher.Invocation) string) publisher.Tool {
	return publisher.NewTool("send_mail", "Sends a mail.", publisher.Idempotent, func(ctx context.Context, in mail) (string, error) {
		if err := out.Once(ctx, key(publisher.InvocationOf(ctx)), "mail to "+in.To); err != nil {
			return "", err
		}
		return "sent", nil
	})
}

func TestCrashEverywhere_PlantedMistakes_AreFound(t *testing.T) {
	t.Parallel()
	random := 0
	for name, c := range map[string]struct {
		agent waymarktest.Agent
		// says is what the report has.
		says      []string
		noEffects bool
	}{
		"a hold tool is declared pure": {
			func(out *waymarktest.Outside) publisher.Work { return mailer(sender(out, publisher.Pure), out).Work },
			[]string{`effect "mail to bob@example.com" happened 2 times, and once without a crash: tool send_mail is pure`, "── killed; life 2"},
			false,
		},
		"an idempotent tool hands over no key": {
			func(out *waymarktest.Outside) publisher.Work {
				return mailer(keyed(out, func(publisher.Invocation) string { return "" }), out).Work
			},
			[]string{
				`effect "mail to bob@example.com" happened 2 times, and once without a crash: tool send_mail is idempotent, so it runs again with the same key, ` +
					`but the outside did not get the key: pass Invocation.IdempotencyKey to it, and report the effect with Outside.Once`,
			},
			false,
		},
		"an idempotent tool hands over another key each time": {
			func(out *waymarktest.Outside) publisher.Work {
				return mailer(keyed(out, func(publisher.Invocation) string { random++; return fmt.Sprint(random) }), out).Work
			},
			[]string{`happened 2 times, and once without a crash: tool send_mail is idempotent`},
			false,
		},
		"an effect outside of a tool": {
			func(out *waymarktest.Outside) publisher.Work {
				return func(ctx context.Context, run *publisher.Run) error {
					if err := out.Effect(ctx, "row"); err != nil {
						return err
					}
					_, err := run.Phase(ctx, "write", func(context.Context) (any, error) { return 1, nil })
					return err
				}
			},
			[]string{`effect "row" happened`, "it was made outside of a tool"},
			false,
		},
		"an answer is used before it is recorded": {
			func(out *waymarktest.Outside) publisher.Work {
				asked := waymarktest.Keep(out, "model", func() *int { return new(int) })
				return func(ctx context.Context, run *publisher.Run) error {
					turn := run.OpenTurn()
					if turn == nil {
						var err error
						if turn, err = run.StartTurn(ctx, publisher.TurnSpec{}); err != nil {
							return err
						}
					}
					*asked++ // a model that answers otherwise when it is asked again
					answer := fmt.Sprintf("draft %d", *asked)
					if err := out.Effect(ctx, "post "+answer); err != nil {
						return err
					}
					if _, err := turn.Answer(ctx, publisher.Answer{Message: message("assistant", answer)}); err != nil {
						return err
					}
					return run.End(ctx, publisher.RunEnd{})
				}
			},
			[]string{`effect "post draft 2" happened once, and never without a crash`},
			false,
		},
		"the outcome is made of the clock": {
			func(*waymarktest.Outside) publisher.Work {
				return func(ctx context.Context, run *publisher.Run) error {
					return run.End(ctx, publisher.RunEnd{Summary: time.Now().Format(time.RFC3339Nano)})
				}
			},
			[]string{"two runs without a crash differ", "not from a clock"},
			true,
		},
		"the state is in memory": {
			func(*waymarktest.Outside) publisher.Work {
				done := 0
				return func(ctx context.Context, run *publisher.Run) error {
					for _, phase := range []string{"one", "two"} {
						if _, err := run.Phase(ctx, phase, func(context.Context) (any, error) { done++; return done, nil }); err != nil {
							return err
						}
					}
					return run.End(ctx, publisher.RunEnd{Summary: fmt.Sprint(done)})
				}
			},
			[]string{`its summary is 1; without a crash it is 2`},
			true,
		},
		"it waits for a person whom the test has not": {
			func(*waymarktest.Outside) publisher.Work {
				return func(ctx context.Context, run *publisher.Run) error {
					_, err := run.Ask(ctx, schema.RunWaitingData{InterruptID: "q", Reason: schema.WaitHumanInput, Message: "Which one?"})
					return err
				}
			},
			[]string{"it waits for human_input (Which one?), and the test has no Crash.Answer"},
			false,
		},
		"it never ends": {
			func(*waymarktest.Outside) publisher.Work {
				return func(context.Context, *publisher.Run) error { return publisher.ErrUnavailable }
			},
			[]string{"it has not ended after 20 lives, and its work returned in the last one: not available"},
			false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said := found(t, func(tb testing.TB) {
				tb.Helper()
				waymarktest.CrashEverywhereWith(tb, waymarktest.Crash{NoEffects: c.noEffects}, c.agent)
			})
			for _, s := range c.says {
				require.Contains(t, said, s)
			}
		})
	}
}

// A person is asked, and answers the executor that lives then.
func TestCrashEverywhere_PersonIsAsked_Answers(t *testing.T) {
	t.Parallel()
	waymarktest.CrashEverywhereWith(t, waymarktest.Crash{
		Run:    publisher.RunSpec{Task: "Send a mail.", Labels: map[string]string{"team": "a"}},
		Config: func(c *publisher.Config) { c.Policy = askFirst },
		Answer: func(o schema.OpenInterrupt) publisher.Input {
			if o.Reason != schema.WaitToolApproval {
				t.Errorf("asked for %s", o.Reason)
			}
			return publisher.Input{Payload: []byte(`{"decision":"allow"}`), By: "alice"}
		},
	}, func(out *waymarktest.Outside) publisher.Work { return mailer(sender(out, publisher.Hold), out).Work })
}

func askFirst(_ context.Context, _ *publisher.Run, call publisher.ToolCall) (publisher.Decision, error) {
	if call.Name == "send_mail" {
		return publisher.Decision{Decision: schema.DecisionAsk, Reason: "mail leaves the house"}, nil
	}
	return publisher.Decision{Decision: schema.DecisionAllow}, nil
}
