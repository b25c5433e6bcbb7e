package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// A loop dies at each of its events, before it is sent and before it is acknowledged, in each tool, and in each request to the model. The
// next executor comes to the same conversation; a side effect happens once, or its call is held; the model is asked again only for an
// answer that was not stored, once.
func TestLoop_ExecutorDiesAnywhere_ComesToTheSameConversation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	m := func() *scripted {
		return &scripted{answers: map[int32]publisher.Answer{
			1: calls(call("a", "look", `{"at":1}`), call("b", "mail", `{"at":1}`), call("c", "put", `{"at":2}`)),
			2: calls(call("b", "mail", `{"at":2}`), call("a", "look", `{"at":2}`)),
			3: {Message: assistant(schema.Text("It is done.")), Calls: []publisher.ToolCall{call("d", "submit", `{"result":"42"}`)}},
		}}
	}
	// play works on the run until it ends; inTool is called in each tool.
	play := func(ctx context.Context, model publisher.Model, run *publisher.Run, inTool func(publisher.Invocation)) error {
		tool := func(name string, replay schema.Replay) publisher.Tool {
			return publisher.NewTool(name, "", replay, func(ctx context.Context, in place) (string, error) {
				inTool(publisher.InvocationOf(ctx))
				return fmt.Sprint(name, " ", in.At), nil
			})
		}
		loop := publisher.Loop{
			Model: model, System: "Work.", Complete: "submit", MaxTurns: 20, Parallel: 1,
			Tools: []publisher.Tool{tool("look", publisher.Pure), tool("mail", publisher.Hold), tool("put", publisher.Idempotent), submit()},
		}
		return loop.Work(ctx, run)
	}
	const events = 14 // of the run, start and end included
	type death struct {
		nth  int64
		sent bool
		tool int64 // the nth tool
		ask  int   // the nth request to the model
	}
	deaths := []death{{}}
	for n := range int64(events) {
		deaths = append(deaths, death{nth: n + 1}, death{nth: n + 1, sent: true})
	}
	for n := range int64(5) {
		deaths = append(deaths, death{tool: n + 1})
	}
	for n := range 3 {
		deaths = append(deaths, death{ask: n + 1})
	}
	var want []schema.Message
	held := 0
	for i, d := range deaths {
		name, id, m := fmt.Sprintf("%+v", d), fmt.Sprint("r", i), m()
		effects := map[string]int{}
		var dead atomic.Bool
		ctx, die := context.WithCancel(t.Context())
		left := new(atomic.Int64)
		left.Store(d.nth)
		subject := []byte("HPUB " + w.names.EventSubject(id) + " ")
		nc, err := nats.Connect(w.server.URL(), append(w.server.Options(), nats.NoReconnect(), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), nats.SetCustomDialer(dialer(func(c net.Conn) net.Conn {
			return &mortal{Conn: c, subject: subject, left: left, sent: d.sent, dead: &dead}
		})))...)
		require.NoError(t, err)
		f, err := publisher.Connect(t.Context(), publisher.Config{Conn: nc, Executor: "exec-1", Agent: "coder"})
		require.NoError(t, err)
		publisher.SetOutwait(f, 0)
		nthTool := int64(0)
		run, err := f.Start(t.Context(), publisher.RunSpec{ID: id, Task: "write it"})
		if err == nil {
			end := func() {
				dead.Store(true)
				die()
				nc.Close()
			}
			err = play(ctx, func(ctx context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
				answer, err := m.model(ctx, request)
				if len(m.asked) == d.ask {
					end()
				}
				return answer, err // too late
			}, run, func(inv publisher.Invocation) {
				require.False(t, dead.Load(), "%s: a tool ran in a dead process", name)
				effects[inv.IdempotencyKey]++
				if nthTool++; nthTool == d.tool {
					end()
				}
			})
		}
		die()
		require.Equal(t, dead.Load(), err != nil, "%s: %v", name, err)
		require.Equal(t, d != death{}, dead.Load(), name)
		nc.Close()
		closing, cancel := context.WithTimeout(t.Context(), time.Second)
		_ = f.Close(closing) // its connection is gone
		cancel()

		f = w.fleet()
		stored := w.log(id)
		err = nil
		switch {
		case len(stored) == 0:
			run, err = f.Start(t.Context(), publisher.RunSpec{ID: id, Task: "write it"})
		case w.fold(id).Head.Status.Terminal():
			run = nil
		default:
			run, err = f.Resume(t.Context(), id, publisher.ResumeSpec{})
		}
		require.NoError(t, err, name)
		again := func(inv publisher.Invocation) { effects[inv.IdempotencyKey]++ }
		for run != nil {
			err := play(t.Context(), m.model, run, again)
			wait, isHeld := errors.AsType[*publisher.HeldError](err)
			if !isHeld {
				require.NoError(t, err, name)
				break
			}
			require.Equal(t, "mail", wait.Name, name)
			held++
			arguments := fmt.Sprintf(`"mail %d"`, wait.Key.Turn)
			_, err = f.Settle(t.Context(), id, schema.SettleRequest{CallKey: wait.Key, CallEpoch: wait.Epoch, How: schema.SettledDecided, Result: raw(arguments), By: "ann"})
			require.NoError(t, err, name)
			require.NoError(t, run.AwaitSettled(t.Context(), wait.Key), name)
			effects[fmt.Sprintf("%s.%d.b.1", id, wait.Key.Turn)] = 1 // the person has seen to it
		}
		s := w.fold(id)
		require.Zero(t, s.Head.Counts.DeadLetters, name)
		require.Equal(t, schema.StatusCompleted, s.Head.Status, name)
		require.Equal(t, "d", s.Head.CompletedBy, name)
		if want == nil {
			want = s.Conversation()
			require.Len(t, lines(want), 15)
			require.Len(t, stored, events, name)
		}
		require.Equal(t, want, s.Conversation(), name)
		require.LessOrEqual(t, len(m.asked), 4, "%s: the model was asked again more than once", name)
		if d.ask > 0 {
			require.Len(t, m.asked, 4, name)
		}
		require.NoError(t, shownOtherwise(m.asked, s), name)
		for key, n := range effects {
			hold := strings.HasSuffix(key, ".b.1")
			require.True(t, n == 1 || n == 2 && !hold, "%s: %s ran %d times", name, key, n)
		}
		require.Len(t, effects, 5, name)
	}
	require.Positive(t, held)
}

// shownOtherwise returns an error for an answer that does not stand behind what its model was shown.
func shownOtherwise(asked []publisher.ModelRequest, s *schema.State) error {
	shown := make(map[int32][]string)
	for i := range asked {
		shown[asked[i].Turn] = lines(asked[i].Messages)
	}
	all := lines(s.Conversation())
	for i := range s.Turns {
		turn := &s.Turns[i]
		got := shown[turn.Turn]
		if turn.Answer != nil && (len(got) == 0 || len(got) > len(all) || !slices.Equal(got, all[:len(got)])) {
			return fmt.Errorf("turn %d: the model was shown %q, the record has %q", turn.Turn, got, all)
		}
	}
	return nil
}
