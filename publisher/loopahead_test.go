package publisher_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// The results of pure and idempotent tools are on their way while the model is asked; all others are durable.
func TestLoop_ResultOnItsWay_ModelIsAskedMeanwhile(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		replay schema.Replay
		await  bool
		ahead  int // results that are not durable when the model is asked
	}{
		"pure":                         {replay: publisher.Pure, ahead: 2},
		"idempotent, one of the other": {replay: publisher.Idempotent, ahead: 1},
		"hold":                         {replay: publisher.Hold},
		"pure, awaited":                {replay: publisher.Pure, await: true},
		"idempotent, awaited":          {replay: publisher.Idempotent, await: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			p := newProxy(t, w.server.URL())
			run := start(t, w.fleet(func(c *publisher.Config) {
				c.Conn, c.URL, c.Options, c.TryTimeout = nil, p.url(), w.server.Options(), time.Minute
			}), "r1")
			m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "x", `{"at":1}`), call("b", "x", `{"at":2}`))}}
			open := -1
			model := func(ctx context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
				if request.Turn == 2 {
					open = len(run.Head().OpenCalls)
					p.release()
				}
				return m.model(ctx, request)
			}
			ran := 0
			x := publisher.NewTool("x", "", test.replay, func(context.Context, place) (string, error) {
				if ran++; ran == 2 && test.ahead > 0 {
					p.hold()
				}
				return "seen", nil
			})
			require.NoError(t, publisher.Loop{Model: model, Tools: []publisher.Tool{x}, AwaitResults: test.await, Parallel: 1}.Work(t.Context(), run))
			if test.ahead > 0 {
				require.Positive(t, open, "the results were awaited")
			}
			require.LessOrEqual(t, open, test.ahead)
			said := m.sent()[1]
			require.Equal(t, []string{`tool a "seen"`, `tool b "seen"`}, said[len(said)-2:])
			s := w.requireSameFold(run)
			require.Equal(t, said, lines(s.Conversation())[:len(said)])
			log := names(w.log("r1"))
			require.Equal(t, []string{"tool.returned", "turn.answered", "run.ended"}, log[len(log)-3:], "the answer stands behind the results")
		})
	}
}

// A result that cannot be recorded ends the request, and the answer that came all the same is dropped.
func TestLoop_ResultCannotBeRecorded_TheAnswerIsDropped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "look", `{"at":1}`))}}
	full := true
	var cause error
	model := func(ctx context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
		if request.Turn == 2 && full {
			<-ctx.Done()
			cause = context.Cause(ctx)
		}
		return m.model(context.WithoutCancel(ctx), request)
	}
	ran := 0
	looking := look(func(context.Context, int) (string, error) {
		ran++
		s, err := w.js.Stream(t.Context(), w.names.EventStream())
		require.NoError(t, err)
		w.limit(int64(s.CachedInfo().State.Bytes) + 20<<10) //nolint:gosec // a small log
		return strings.Repeat("x", 100<<10), nil
	})
	loop := publisher.Loop{Model: model, Tools: []publisher.Tool{looking}}
	require.ErrorIs(t, loop.Work(t.Context(), run), publisher.ErrFleetFull)
	require.ErrorIs(t, cause, publisher.ErrFleetFull)
	require.Equal(t, []string{"run.started", "turn.started", "turn.answered"}, names(w.log("r1")), "there was room for the answer")

	full = false
	w.limit(256 << 20)
	require.NoError(t, loop.Work(t.Context(), run))
	require.Equal(t, 1, ran, "its result was kept")
	require.Len(t, m.asked, 3)
	require.Equal(t, schema.StatusCompleted, w.requireSameFold(run).Head.Status)
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

// Results on their way are shown as they are recorded: redacted, and large ones loaded.
func TestLoop_ResultOnItsWay_IsShownAsRecorded(t *testing.T) {
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

// A person closes a call while its result is on its way: the model is asked again, with what the record has.
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
