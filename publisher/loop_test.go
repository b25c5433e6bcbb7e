package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// scripted is a model that answers as it is told, turn by turn, and keeps what it was asked.
type scripted struct {
	mu    sync.Mutex
	asked []publisher.ModelRequest
	// answers by turn; a turn without one is answered without a call.
	answers map[int32]publisher.Answer
}

func (m *scripted) model(_ context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = append(m.asked, request)
	answer, ok := m.answers[request.Turn]
	if !ok {
		answer = publisher.Answer{Message: assistant(schema.Text("I am done."))}
	}
	return answer, nil
}

// sent returns the conversations that the model was sent, a line for each part.
func (m *scripted) sent() (all [][]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, request := range m.asked {
		all = append(all, lines(request.Messages))
	}
	return all
}

func lines(conversation []schema.Message) (out []string) {
	for _, m := range conversation {
		for _, p := range m.Parts {
			switch {
			case p.Type == schema.PartToolCall:
				out = append(out, m.Role+" calls "+p.ID+" "+p.Name+string(p.Arguments))
			case p.IsError:
				out = append(out, m.Role+" "+p.ID+" error "+string(p.Response))
			case p.Type == schema.PartToolCallResponse:
				out = append(out, m.Role+" "+p.ID+" "+string(p.Response))
			default:
				out = append(out, m.Role+": "+*p.Content)
			}
		}
	}
	return out
}

// calls is an answer that only calls tools.
func calls(list ...publisher.ToolCall) publisher.Answer { return publisher.Answer{Calls: list} }

func call(id, name, arguments string) publisher.ToolCall {
	return publisher.ToolCall{ID: id, Name: name, Arguments: raw(arguments)}
}

type place struct {
	At int `json:"at" jsonschema:"the line to look at"`
}

// look is a pure tool that runs f, or says where it looked.
func look(f func(ctx context.Context, at int) (string, error)) publisher.Tool {
	return publisher.NewTool("look", "Looks at a line.", publisher.Pure, func(ctx context.Context, in place) (string, error) {
		if f == nil {
			return fmt.Sprint("line ", in.At), nil
		}
		return f(ctx, in.At)
	})
}

func TestLoop_KilledInACall_TheModelIsSentTaskCallsAndResults(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	m := &scripted{answers: map[int32]publisher.Answer{
		1: calls(call("a", "look", `{"at":1}`), call("b", "look", `{"at":2}`)),
		2: calls(call("", "look", `"{\"at\":3}"`)), // no id, and a string, as some providers give them
	}}
	var ran atomic.Int64
	ctx, die := context.WithCancel(t.Context())
	loop := publisher.Loop{
		Model: m.model, System: "You mend parsers.", Parallel: 1,
		Tools: []publisher.Tool{look(func(_ context.Context, at int) (string, error) {
			if ran.Add(1) == 2 {
				die() // in the second call of the first turn
				return "", context.Canceled
			}
			return fmt.Sprint("line ", at), nil
		})},
	}
	run := start(t, w.fleet(), "r1")
	require.Error(t, loop.Work(ctx, run))
	begin := []string{"system: You mend parsers.", "user: write it"}
	require.Equal(t, [][]string{begin}, m.sent())

	run = resume(t, w.fleet(), "r1")
	require.NoError(t, loop.Work(t.Context(), run))
	first := append(slices.Clone(begin), `assistant calls a look{"at":1}`, `assistant calls b look{"at":2}`, `tool a "line 1"`, `tool b "line 2"`)
	second := append(slices.Clone(first), `assistant calls call-2-1 look"{\"at\":3}"`, `tool call-2-1 "line 3"`)
	require.Equal(t, [][]string{begin, first, second}, m.sent(), "once for each turn: not again for the one that was interrupted")
	require.EqualValues(t, 4, ran.Load(), "only the call in doubt ran twice")
	s := w.requireSameFold(run)
	require.Len(t, s.Turns, 3)
	require.Equal(t, schema.StatusCompleted, s.Head.Status)
	require.Equal(t, "I am done.", s.Head.Summary)
}

func TestLoop_CallsThatCannotBeMade_TheModelReadsWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(
		call("a", "fly", `{}`), call("b", "look", `{"at":`), call("c", "look", `{"at":"here"}`), call("d", "look", ``), call("e", "fall", `{}`), call("f", "panic", ``),
	)}}
	fall := publisher.NewTool("fall", "Falls.", publisher.Pure, func(context.Context, struct{}) (string, error) { return "", errors.New("it fell") })
	shout := publisher.Tool{Name: "panic", Replay: publisher.Pure, Run: func(context.Context, publisher.Invocation) (publisher.ToolResult, error) { panic("oh") }}
	run := start(t, w.fleet(), "r1")
	require.NoError(t, publisher.Loop{Model: m.model, Tools: []publisher.Tool{look(nil), fall, shout}}.Work(t.Context(), run))
	require.Len(t, m.asked, 2)
	said := m.sent()[1]
	require.Equal(t, []string{
		`tool a error {"error":{"type":"unknown_tool","message":"there is no tool \"fly\""}}`,
	}, said[len(said)-6:len(said)-5])
	for i, want := range []string{
		"the arguments are not JSON", "the arguments do not match the schema of look", "the arguments do not match the schema of look", "it fell", "panic: oh",
	} {
		require.Contains(t, said[len(said)-5+i], want)
	}
	w.requireSameFold(run)
}

func TestLoop_APersonAbandonsACall_TheModelReadsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "mail", ``))}}
	ctx, die := context.WithCancel(t.Context())
	loop := publisher.Loop{Model: m.model, Tools: []publisher.Tool{{Name: "mail", Run: func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		die()
		return publisher.ToolResult{}, context.Canceled
	}}}}
	require.Error(t, loop.Work(ctx, start(t, w.fleet(), "r1")))
	f := w.fleet()
	run := resume(t, f, "r1")
	held, ok := errors.AsType[*publisher.HeldError](loop.Work(t.Context(), run))
	require.True(t, ok)
	_, err := f.Settle(t.Context(), "r1", schema.SettleRequest{CallKey: held.Key, CallEpoch: held.Epoch, How: schema.SettledAbandoned, By: "ann"})
	require.NoError(t, err)
	require.NoError(t, run.AwaitSettled(t.Context(), held.Key))
	require.NoError(t, loop.Work(t.Context(), run))
	said := m.sent()[1]
	require.Equal(t, `tool a error {"error":{"type":"abandoned","message":"the call was given up; whether it had its effect is not known"}}`, said[len(said)-1])
}

func TestLoop_LargeArgumentsAndResults_AreLoaded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	task, text := strings.Repeat("Mend it. ", 40<<10), strings.Repeat("x", 300<<10)
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "echo", `{"text":"`+text+`"}`))}}
	ctx, die := context.WithCancel(t.Context())
	var ran atomic.Int64
	loop := publisher.Loop{Model: m.model, Tools: []publisher.Tool{publisher.NewTool("echo", "", publisher.Pure, func(_ context.Context, in struct {
		Text string `json:"text"`
	},
	) (string, error) {
		if ran.Add(1) == 1 {
			die()
			return "", context.Canceled
		}
		return in.Text, nil
	})}}
	f := w.fleet()
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: "r1", Task: task})
	require.NoError(t, err)
	require.Error(t, loop.Work(ctx, run))
	require.NoError(t, loop.Work(t.Context(), resume(t, w.fleet(), "r1")))
	require.Equal(t, []string{"user: " + task, `assistant calls a echo{"text":"` + text + `"}`, `tool a "` + text + `"`}, m.sent()[1])
}

func TestLoop_PureCallsOfAnAnswer_RunTogetherAndOthersAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var list []publisher.ToolCall
	for i, name := range []string{"look", "look", "look", "mail", "mail", "look"} {
		list = append(list, call(fmt.Sprint("c", i), name, `{"at":1}`))
	}
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(list...)}}
	var mu sync.Mutex
	var order []string
	var running, most int
	together := make(chan struct{})
	enter := func(id string) func() {
		mu.Lock()
		defer mu.Unlock()
		running++
		most = max(most, running)
		if running == 2 && len(order) == 0 {
			close(together)
		}
		return func() {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, id)
			running--
		}
	}
	looking := publisher.NewTool("look", "", publisher.Pure, func(ctx context.Context, _ place) (string, error) {
		defer enter(publisher.InvocationOf(ctx).Key.ToolCallID)()
		<-together // two at a time
		return "", nil
	})
	mailing := publisher.NewTool("mail", "", publisher.Hold, func(ctx context.Context, _ place) (string, error) {
		leave := enter(publisher.InvocationOf(ctx).Key.ToolCallID)
		defer leave()
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, 1, running)
		return "", nil
	})
	run := start(t, w.fleet(), "r1")
	require.NoError(t, publisher.Loop{Model: m.model, Tools: []publisher.Tool{looking, mailing}, Parallel: 2}.Work(t.Context(), run))
	require.Equal(t, 2, most)
	require.Equal(t, []string{"c3", "c4", "c5"}, order[3:])
	said := m.sent()[1]
	require.Equal(t, []string{"tool c0", "tool c1", "tool c2", "tool c3", "tool c4", "tool c5"}, func() (ids []string) {
		for _, line := range said[len(said)-6:] {
			ids = append(ids, strings.TrimSuffix(line, ` ""`))
		}
		return ids
	}(), "results in the order of the calls")
	w.requireSameFold(run)
}

func TestLoop_ErrorsThatPass_PureToolsAreTriedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "look", `{"at":1}`), call("b", "look", `{"at":2}`), call("c", "look", `{"at":3}`), call("d", "mail", ``))}}
	var tries [4]atomic.Int64
	looking := look(func(ctx context.Context, at int) (string, error) {
		switch n := tries[at].Add(1); {
		case at == 1 && n < 3:
			return "", publisher.Retryable(errors.New("busy"))
		case at == 2:
			return "", errors.New("no such line")
		case at == 3:
			<-ctx.Done()
			return "", context.Cause(ctx)
		}
		return "seen", nil
	})
	looking.Timeout = 20 * time.Millisecond
	mailing := publisher.NewTool("mail", "", publisher.Hold, func(context.Context, struct{}) (string, error) {
		tries[0].Add(1)
		return "", publisher.Retryable(errors.New("busy"))
	})
	run := start(t, w.fleet(), "r1")
	require.NoError(t, publisher.Loop{Model: m.model, Tools: []publisher.Tool{looking, mailing}}.Work(t.Context(), run))
	said := m.sent()[1]
	require.Equal(t, `tool a "seen"`, said[len(said)-4])
	require.Contains(t, said[len(said)-3], "no such line")
	require.Contains(t, said[len(said)-2], `"type":"timeout"`)
	require.Contains(t, said[len(said)-1], "busy")
	require.Equal(t, []int64{1, 3, 1, 3}, []int64{tries[0].Load(), tries[1].Load(), tries[2].Load(), tries[3].Load()})

	// Each outcome says which try it is of, where it is not the first one that returned.
	attempts := make(map[string]int64)
	log := w.log("r1")
	for i := range log {
		e, err := schema.Decode(log[i].Header, log[i].Body)
		require.NoError(t, err)
		data, err := schema.ParseData(e)
		require.NoError(t, err)
		switch d := data.(type) {
		case *schema.ToolReturnedData:
			attempts[d.ToolCallID] = d.Attempt
			require.Positive(t, d.DurationMS, "less than a millisecond is one: 0 is not known")
		case *schema.ToolFailedData:
			attempts[d.ToolCallID] = d.Attempt
		case *schema.TurnAnsweredData:
			require.Positive(t, d.DurationMS, "the loop measures how long the model takes")
		}
	}
	require.Equal(t, map[string]int64{"a": 3, "b": 1, "c": 3, "d": 1}, attempts)
}

func TestLoop_AHoldToolExceedsItsTimeout_APersonSettlesIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "mail", ``))}}
	var sent atomic.Int64
	mailing := publisher.NewTool("mail", "", publisher.Hold, func(ctx context.Context, _ struct{}) (string, error) {
		sent.Add(1)
		<-ctx.Done()
		return "", context.Cause(ctx)
	})
	mailing.Timeout = 20 * time.Millisecond
	f := w.fleet()
	s := serveRuns(t, f, nil, func(spec *publisher.ExecutorSpec) {
		spec.Capacity = 0
		spec.Loops = map[string]publisher.Loop{"coder": {Model: m.model, Tools: []publisher.Tool{mailing}}}
	})
	begin(t, s, "r1")
	require.Equal(t, publisher.OutcomeWaiting, s.outcome(t, "r1").outcome)
	// It is in doubt from the next takeover on, which makes the run wait for good.
	require.Equal(t, publisher.OutcomeWaiting, s.outcome(t, "r1").outcome)
	require.Eventually(t, func() bool {
		_, err := f.Settle(t.Context(), "r1", schema.SettleRequest{
			CallKey: schema.CallKey{Turn: 1, ToolCallID: "a", Occurrence: 1}, CallEpoch: attempt(t, f, "r1", schema.CallKey{Turn: 1, ToolCallID: "a", Occurrence: 1}), How: schema.SettledDecided, Result: raw(`"sent"`), By: "ann",
		})
		return err == nil
	}, patience, 50*time.Millisecond)
	require.Equal(t, publisher.OutcomeCompleted, s.outcome(t, "r1").outcome)
	require.EqualValues(t, 1, sent.Load())
	said := m.sent()[1]
	require.Equal(t, `tool a "sent"`, said[len(said)-1])
}

func TestLoop_TheModelFails_ItIsAskedAgainUnlessTheErrorStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	asked := 0
	failing := func(ctx context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
		if asked++; asked == 1 {
			<-ctx.Done() // until the timeout
			return publisher.Answer{}, context.Cause(ctx)
		}
		return (&scripted{}).model(ctx, request)
	}
	run := start(t, f, "r1")
	require.NoError(t, publisher.Loop{Model: failing, ModelTimeout: 20 * time.Millisecond}.Work(t.Context(), run))
	require.Equal(t, 2, asked)

	refused := errors.New("the key is refused")
	asked = 0
	stays := func(context.Context, publisher.ModelRequest) (publisher.Answer, error) {
		asked++
		return publisher.Answer{}, publisher.Permanent(refused)
	}
	require.ErrorIs(t, publisher.Loop{Model: stays}.Work(t.Context(), start(t, f, "r2")), refused)
	require.Equal(t, 1, asked)

	asked = 0
	down := errors.New("no model")
	ever := func(context.Context, publisher.ModelRequest) (publisher.Answer, error) {
		asked++
		return publisher.Answer{}, down
	}
	require.ErrorIs(t, publisher.Loop{Model: ever, ModelTries: 2, Patience: -1}.Work(t.Context(), start(t, f, "r3")), down)
	require.Equal(t, 2, asked)
}

func submit() publisher.Tool {
	return publisher.NewTool("submit", "Ends the work.", publisher.Pure, func(_ context.Context, in struct {
		Result string `json:"result"`
	},
	) (string, error) {
		if in.Result == "" {
			return "", errors.New("the result is empty")
		}
		return in.Result, nil
	})
}

func TestLoop_CompletionTool_EndsTheRunOnceItHasReturned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := &scripted{answers: map[int32]publisher.Answer{
		1: {Message: assistant(schema.Text("Let me think."))},
		2: calls(call("a", "submit", `{"result":""}`)),
		3: {Message: assistant(schema.Text("Here it is.")), Calls: []publisher.ToolCall{call("b", "submit", `{"result":"42"}`), call("c", "look", `{"at":1}`)}},
	}}
	run := start(t, w.fleet(), "r1")
	loop := publisher.Loop{Model: m.model, Tools: []publisher.Tool{look(nil), submit()}, Complete: "submit"}
	require.NoError(t, loop.Work(t.Context(), run))
	s := w.requireSameFold(run)
	require.Equal(t, "b", s.Head.CompletedBy)
	require.Equal(t, "Here it is.", s.Head.Summary)
	require.Equal(t, `"42"`, string(s.Ended.Output))
	require.Equal(t, "user: You answered without calling a tool. Continue the work, or call submit if it is done.", m.sent()[1][2])
	require.Len(t, m.asked, 3)
}

func TestLoop_TheModelNeverCallsTheCompletionTool_TheRunFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := new(scripted)
	s := serveRuns(t, w.fleet(), nil, func(spec *publisher.ExecutorSpec) {
		spec.Loops = map[string]publisher.Loop{"coder": {Model: m.model, Tools: []publisher.Tool{submit()}, Complete: "submit"}}
	})
	begin(t, s, "r1")
	got := s.outcome(t, "r1")
	require.Equal(t, publisher.OutcomeFailed, got.outcome)
	require.ErrorContains(t, got.err, "the model does not call the completion tool submit, although it was told to 3 times")
	require.Len(t, m.asked, 4)
}

// A run that goes back has the time and the tokens again that it had at the point: its limits count in its timeline.
func TestLoop_RewoundRunWithALimit_GoesOn(t *testing.T) {
	t.Parallel()
	for name, loop := range map[string]publisher.Loop{"tokens": {MaxTokens: 1500}, "time": {MaxTime: 30 * time.Minute}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.serve()
			loop.Tools = []publisher.Tool{look(nil)}
			model := func(answers map[int32]publisher.Answer) publisher.Model {
				m := &scripted{answers: answers}
				return func(ctx context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
					answer, err := m.model(ctx, request)
					answer.Usage = &schema.Usage{InputTokens: 900, OutputTokens: 60}
					return answer, err
				}
			}
			// The run began an hour ago.
			early := w.fleet(func(c *publisher.Config) { c.Now = func() time.Time { return time.Now().Add(-time.Hour) } })
			loop.Model = model(map[int32]publisher.Answer{1: calls(call("a", "look", `{"at":1}`)), 2: calls(call("b", "look", `{"at":2}`))})
			require.NoError(t, loop.Work(t.Context(), start(t, early, "r1")))
			again, err := w.fleet().Resume(t.Context(), "r1", publisher.ResumeSpec{At: schema.Point{Kind: schema.PointResult, Number: 1}})
			require.NoError(t, err)
			loop.Model = model(nil)
			require.NoError(t, loop.Work(t.Context(), again))
			head := again.Head()
			require.Equal(t, schema.StatusCompleted, head.Status)
			require.Empty(t, head.Limit)
		})
	}
}

func TestLoop_ALimitIsReached_TheModelSumsUp(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		loop publisher.Loop
		want string
	}{
		"turns":   {loop: publisher.Loop{MaxTurns: 2}, want: schema.LimitTurns},
		"tokens":  {loop: publisher.Loop{MaxTokens: 1500}, want: schema.LimitTokens},
		"time":    {loop: publisher.Loop{MaxTime: time.Nanosecond}, want: schema.LimitTime},
		"context": {loop: publisher.Loop{Window: 1000}, want: schema.LimitContext},
	}
	for name, test := range tests {
		for _, complete := range []string{"", "submit"} {
			t.Run(name+complete, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				m := new(scripted)
				model := func(ctx context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
					if _, err := m.model(ctx, request); err != nil || request.Limit == "" {
						answer := calls(call("a", "look", `{"at":1}`))
						answer.Usage = &schema.Usage{InputTokens: 900, OutputTokens: 60}
						return answer, err
					}
					answer := publisher.Answer{Message: assistant(schema.Text("Half of it is done."))}
					if complete != "" {
						answer.Calls = []publisher.ToolCall{call("b", "look", `{"at":2}`), call("c", "submit", `{"result":"half"}`)}
					}
					return answer, nil
				}
				loop := test.loop
				loop.Model, loop.Tools, loop.Complete = model, []publisher.Tool{look(nil), submit()}, complete
				run := start(t, w.fleet(), "r1")
				require.NoError(t, loop.Work(t.Context(), run))
				s := w.requireSameFold(run)
				require.Equal(t, test.want, s.Head.Limit)
				require.Equal(t, "Half of it is done.", s.Head.Summary)
				require.Equal(t, schema.PurposeRecovery, s.Head.TurnPurpose)
				last := m.asked[len(m.asked)-1]
				require.Equal(t, test.want, last.Limit)
				said := m.sent()
				require.Contains(t, said[len(said)-1][len(said[len(said)-1])-1], "user: The run has reached its limit ("+test.want+").")
				if complete == "" {
					require.Equal(t, schema.StatusFailed, s.Head.Status)
					require.Empty(t, last.Tools)
					return
				}
				require.Equal(t, schema.StatusCompleted, s.Head.Status)
				require.Equal(t, "c", s.Head.CompletedBy)
				require.Len(t, last.Tools, 1)
				refused := s.Calls[len(s.Calls)-2]
				require.Equal(t, "not_offered", refused.Error.Type)
			})
		}
	}
}

func TestLoop_TheContextFillsUp_GoesOnFromTheSummary(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "look", `{"at":1}`)), 2: calls(call("a", "look", `{"at":2}`))}}
	model := func(ctx context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
		answer, err := m.model(ctx, request)
		answer.Usage = &schema.Usage{InputTokens: map[int32]int64{1: 799, 2: 800, 3: 800}[request.Turn]}
		return answer, err
	}
	compacted := 0
	loop := publisher.Loop{Model: model, Tools: []publisher.Tool{look(nil)}, Window: 1000, Compact: func(_ context.Context, _ *publisher.Run, conversation []schema.Message) (string, error) {
		compacted++
		return fmt.Sprint("Two lines were seen, in ", len(conversation), " messages."), nil
	}}
	run := start(t, w.fleet(), "r1")
	require.NoError(t, loop.Work(t.Context(), run))
	require.Equal(t, 1, compacted)
	require.Equal(t, []string{"user: Two lines were seen, in 5 messages."}, m.sent()[2])
	require.Equal(t, schema.StatusCompleted, w.requireSameFold(run).Head.Status)
}

func TestLoop_WhatCannotWork_IsRefusedBeforeItBegins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	m := new(scripted).model
	noop := func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		return publisher.ToolResult{}, nil
	}
	tools := func(list ...publisher.Tool) publisher.Loop { return publisher.Loop{Model: m, Tools: list} }
	for name, loop := range map[string]publisher.Loop{
		"no model":              {},
		"a negative limit":      {Model: m, MaxTurns: -1},
		"no completion tool":    {Model: m, Complete: "submit"},
		"Compact alone":         {Model: m, Compact: func(context.Context, *publisher.Run, []schema.Message) (string, error) { return "", nil }},
		"no name":               tools(publisher.Tool{Run: noop}),
		"a tool twice":          tools(look(nil), look(nil)),
		"no Run":                tools(publisher.Tool{Name: "a"}),
		"a policy":              tools(publisher.Tool{Name: "a", Run: noop, Replay: "never"}),
		"a subject too many":    tools(publisher.Tool{Name: "a", Run: noop, VerifySubject: "a.verify"}),
		"a subject too few":     tools(publisher.Tool{Name: "a", Run: noop, Replay: publisher.Verify}),
		"parameters":            tools(publisher.Tool{Name: "a", Run: noop, Parameters: raw(`{"type":5}`)}),
		"a type without JSON":   tools(publisher.NewTool("a", "", publisher.Pure, func(context.Context, struct{ C chan int }) (int, error) { return 0, nil })),
		"a type, no object":     tools(publisher.NewTool("a", "", publisher.Pure, func(context.Context, int) (int, error) { return 0, nil })),
		"a tool without a func": tools(publisher.NewTool[place, int]("a", "", publisher.Pure, nil)),
	} {
		_, err := f.NewExecutor(publisher.ExecutorSpec{Loops: map[string]publisher.Loop{"coder": loop}})
		require.ErrorIs(t, err, publisher.ErrConfig, name)
		require.ErrorIs(t, loop.Work(t.Context(), nil), publisher.ErrConfig, name)
	}
	good := map[string]publisher.Loop{"coder": {Model: m}}
	_, err := f.NewExecutor(publisher.ExecutorSpec{Loops: good, Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){"coder": working(nil)}})
	require.ErrorIs(t, err, publisher.ErrConfig)
	_, err = f.NewExecutor(publisher.ExecutorSpec{})
	require.ErrorIs(t, err, publisher.ErrConfig)
	_, err = f.NewExecutor(publisher.ExecutorSpec{Loops: good})
	require.NoError(t, err)
}
