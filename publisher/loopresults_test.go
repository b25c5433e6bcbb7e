package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// The results of an answer's calls are durable before the model is asked again, whatever the policy of their tools.
func TestLoop_Results_AreRecordedBeforeTheModelIsAsked(t *testing.T) {
	t.Parallel()
	for _, replay := range []schema.Replay{publisher.Pure, publisher.Idempotent, publisher.Hold} {
		t.Run(string(replay), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			run := start(t, w.fleet(), "r1")
			m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "x", `{"at":1}`), call("b", "x", `{"at":2}`))}}
			var log []string
			model := func(ctx context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
				if request.Turn == 2 {
					log = names(w.log("r1"))
				}
				return m.model(ctx, request)
			}
			x := publisher.NewTool("x", "", replay, func(context.Context, place) (string, error) { return "seen", nil })
			require.NoError(t, publisher.Loop{Model: model, Tools: []publisher.Tool{x}}.Work(t.Context(), run))
			require.Equal(t, []string{"tool.returned", "tool.returned"}, slices.DeleteFunc(log, func(name string) bool { return name != "tool.returned" }))
			said := m.sent()[1]
			require.Equal(t, []string{`tool a "seen"`, `tool b "seen"`}, said[len(said)-2:])
			w.requireSameFold(run)
		})
	}
}

// While an outcome cannot be recorded, the model is not asked. Later it is recorded, and the tool does not run again.
func TestLoop_OutcomeCannotBeRecorded_TheModelIsNotAsked(t *testing.T) {
	t.Parallel()
	for _, replay := range []schema.Replay{publisher.Pure, publisher.Hold} {
		for name, fails := range map[string]bool{"result": false, "failure": true} {
			t.Run(string(replay)+" "+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				run := start(t, w.fleet(), "r1")
				m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "x", `{"at":1}`))}}
				ran := 0
				x := publisher.NewTool("x", "", replay, func(context.Context, place) (string, error) {
					ran++
					s, err := w.js.Stream(t.Context(), w.names.EventStream())
					require.NoError(t, err)
					w.limit(int64(s.CachedInfo().State.Bytes) + 20<<10) //nolint:gosec // a small log
					if fails {
						return "", errors.New(strings.Repeat("x", 100<<10))
					}
					return strings.Repeat("x", 100<<10), nil
				})
				loop := publisher.Loop{Model: m.model, Tools: []publisher.Tool{x}}
				require.ErrorIs(t, loop.Work(t.Context(), run), publisher.ErrFleetFull)
				require.NotRegexp(t, "tool.returned|tool.failed", strings.Join(names(w.log("r1")), " "))
				require.Len(t, m.asked, 1)

				w.limit(256 << 20)
				require.NoError(t, loop.Work(t.Context(), run))
				require.Equal(t, 1, ran, "its outcome was kept")
				require.Len(t, m.asked, 2)
				require.Equal(t, schema.StatusCompleted, w.requireSameFold(run).Head.Status)
			})
		}
	}
}

// A takeover ends the request, and the answer that came all the same is dropped.
func TestLoop_TakenOverWhileTheModelIsAsked_TheAnswerIsDropped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	run := start(t, w.fleet(), "r1")
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "look", `{"at":1}`))}}
	var taken *publisher.Run
	model := func(ctx context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
		if request.Turn == 2 && taken == nil {
			taken = resume(t, w.fleet(), "r1")
			require.ErrorIs(t, run.Sync(t.Context()), publisher.ErrFenced)
			<-ctx.Done()
		}
		return m.model(context.WithoutCancel(ctx), request)
	}
	loop := publisher.Loop{Model: model, Tools: []publisher.Tool{look(nil)}}
	require.ErrorIs(t, loop.Work(t.Context(), run), publisher.ErrFenced)
	require.NoError(t, loop.Work(t.Context(), taken))
	s := w.requireSameFold(taken)
	require.Len(t, s.Turns, 2)
	require.EqualValues(t, 2, s.Turns[1].Epoch)
	require.Len(t, m.asked, 3)
}

// Results are shown as they are recorded: redacted, and large ones loaded.
func TestLoop_Results_AreShownAsRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	run := start(t, w.fleet(redacting), "r1")
	large := strings.Repeat("words ", 44<<10)
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "look", `{"at":1}`), call("b", "look", `{"at":2}`), call("c", "look", `{"at":3}`))}}
	looking := look(func(_ context.Context, at int) (string, error) {
		return []string{"", canary, large, large + canary}[at], nil
	})
	require.NoError(t, publisher.Loop{Model: m.model, Tools: []publisher.Tool{looking}}.Work(t.Context(), run))
	said := m.sent()[1]
	require.Equal(t, []string{`tool a "[redacted:canary]"`, `tool b "` + large + `"`, `tool c "` + large + `[redacted:canary]"`}, said[len(said)-3:])
	conversation, err := run.Conversation(t.Context())
	require.NoError(t, err)
	require.Equal(t, said, lines(conversation)[:len(said)])
	w.requireSameFold(run)
}

// A person closes a call while its tool runs: the model is asked again, with what the record has.
func TestLoop_CallClosedBeforeItsResultIsRecorded_TheModelIsShownTheRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "look", `{"at":1}`))}}
	var ran atomic.Int64
	ctx, die := context.WithCancel(t.Context())
	f := w.fleet()
	loop := publisher.Loop{Model: m.model, Tools: []publisher.Tool{look(func(context.Context, int) (string, error) {
		if ran.Add(1) == 1 {
			die()
			return "", context.Canceled
		}
		_, err := f.Settle(t.Context(), "r1", schema.SettleRequest{CallKey: schema.CallKey{Turn: 1, ToolCallID: "a", Occurrence: 1}, CallEpoch: attempt(t, f, "r1", schema.CallKey{Turn: 1, ToolCallID: "a", Occurrence: 1}), How: schema.SettledAbandoned, By: "ann"})
		return "seen", err
	})}}
	require.Error(t, loop.Work(ctx, start(t, f, "r1")))
	run := resume(t, f, "r1")
	require.NoError(t, loop.Work(t.Context(), run))
	said := m.sent()[len(m.asked)-1]
	require.Contains(t, said[len(said)-1], `tool a error {"error":{"type":"abandoned"`)
	s := w.requireSameFold(run)
	require.Equal(t, said, lines(s.Conversation())[:len(said)])
	require.Equal(t, schema.StatusCompleted, s.Head.Status)
}

// An answer with more calls than an event can carry is recorded with the first of them, and the model is told.
func TestLoop_AnswerOfVeryManyCalls_TheModelReadsThatTheyAreTooMany(t *testing.T) {
	if testing.Short() {
		t.Skip("short: an answer of 6,000 calls")
	}
	t.Parallel()
	w := newWorld(t)
	var list []publisher.ToolCall
	parts := []schema.Part{schema.Text("I look everywhere.")}
	for i := range 6000 {
		list = append(list, call(fmt.Sprint("c", i), "look", `{"at":1,"why":"`+strings.Repeat("x", 100)+`"}`))
		parts = append(parts, schema.CallPart(list[i].ID, "look"))
	}
	m := &scripted{answers: map[int32]publisher.Answer{1: {Message: assistant(parts...), Calls: list}}}
	var ran atomic.Int64
	looking := publisher.NewTool("look", "", publisher.Pure, func(context.Context, map[string]any) (string, error) {
		ran.Add(1)
		return "", nil
	})
	run := start(t, w.fleet(), "r1")
	require.NoError(t, publisher.Loop{Model: m.model, Tools: []publisher.Tool{looking}}.Work(t.Context(), run))
	require.EqualValues(t, 1024, ran.Load())
	s := w.requireSameFold(run)
	require.Equal(t, schema.StatusCompleted, s.Head.Status)
	require.Len(t, s.Calls, 1500)
	said := m.sent()[1]
	require.Len(t, said, 1+1+2*1500, "task, text, and each call with a response")
	require.Contains(t, said[len(said)-1], `"type":"too_many_calls","message":"the answer had 6000 calls, which is too large to be recorded`)
}

// A person abandons the call of the completion tool while it runs again: the run goes on.
func TestLoop_CompletionClosedBeforeItsResultIsRecorded_TheRunGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "submit", `{"result":"done"}`)), 2: calls(call("b", "submit", `{"result":"done"}`))}}
	ctx, die := context.WithCancel(t.Context())
	f := w.fleet()
	key := schema.CallKey{Turn: 1, ToolCallID: "a", Occurrence: 1}
	var ran atomic.Int64
	tool := submit()
	tool.Run = func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		switch ran.Add(1) {
		case 1:
			die()
			return publisher.ToolResult{}, context.Canceled
		case 2:
			_, err := f.Settle(t.Context(), "r1", schema.SettleRequest{CallKey: key, CallEpoch: attempt(t, f, "r1", key), How: schema.SettledAbandoned, By: "ann"})
			require.NoError(t, err)
		}
		return publisher.Result("done")
	}
	loop := publisher.Loop{Model: m.model, Tools: []publisher.Tool{tool}, Complete: "submit"}
	require.Error(t, loop.Work(ctx, start(t, f, "r1")))
	run := resume(t, f, "r1")
	require.NoError(t, loop.Work(t.Context(), run))
	require.Equal(t, schema.StatusCompleted, w.requireSameFold(run).Head.Status)
	require.EqualValues(t, 3, ran.Load(), "the model asked for it once more")
}
