package examples_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/docs/examples"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// model answers, turn by turn, with the calls it is told to ask for, and keeps what it was sent.
type model struct {
	mu     sync.Mutex
	sent   [][]string
	script [][]publisher.ToolCall
}

func (m *model) next(_ context.Context, conversation []schema.Message) (publisher.Answer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sent = append(m.sent, lines(conversation))
	said := 0
	for _, message := range conversation {
		if message.Role == schema.RoleAssistant {
			said++
		}
	}
	answer := schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("I go on.")}}
	if said >= len(m.script) {
		return publisher.Answer{Message: answer}, nil
	}
	for _, call := range m.script[said] {
		answer.Parts = append(answer.Parts, schema.CallPart(call.ID, call.Name))
	}
	return publisher.Answer{Message: answer, Calls: m.script[said]}, nil
}

// lines writes a conversation, a line for each part.
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

func looks(id, arguments string) publisher.ToolCall {
	return publisher.ToolCall{ID: id, Name: "look", Arguments: jsontext.Value(arguments), Replay: schema.ReplayPure}
}

// echo returns its arguments.
func echo(_ context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
	return publisher.Result(inv.Name + " " + string(inv.Arguments))
}

func TestLoop_KilledInACall_TheModelIsSentTaskCallsAndResults(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := &model{script: [][]publisher.ToolCall{{looks("a", `{"at":1}`), looks("b", `{"at":2}`)}, {looks("c", `{"at":3}`)}}}
	ran := 0
	ctx, die := context.WithCancel(t.Context())
	looking := examples.Loop(m.next, map[string]publisher.ToolFunc{"look": func(ctx context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
		if ran++; ran == 2 {
			die() // in the second call of the first turn
			return publisher.ToolResult{}, context.Canceled
		}
		return echo(ctx, inv)
	}})
	run, err := w.fleet("ex-1", nil).Start(t.Context(), publisher.RunSpec{ID: "r1", Task: "Mend the parser."})
	require.NoError(t, err)
	require.Error(t, looking(ctx, run))
	require.Equal(t, [][]string{{"user: Mend the parser."}}, m.sent)

	run = takeOver(t, w.fleet("ex-2", nil))
	require.NoError(t, looking(t.Context(), run))
	first := []string{
		"user: Mend the parser.",
		"assistant: I go on.", `assistant calls a look{"at":1}`, `assistant calls b look{"at":2}`,
		`tool a "look {\"at\":1}"`, `tool b "look {\"at\":2}"`,
	}
	second := append(slices.Clone(first), "assistant: I go on.", `assistant calls c look{"at":3}`, `tool c "look {\"at\":3}"`)
	require.Equal(t, [][]string{{"user: Mend the parser."}, first, second}, m.sent, "once for each turn: not again for the one that was interrupted")
	require.Equal(t, 4, ran, "only the call in doubt ran twice")
	require.Len(t, run.State().Turns, 3)

	require.NoError(t, looking(t.Context(), run))
	require.NoError(t, looking(t.Context(), takeOver(t, w.fleet("ex-3", nil))))
	require.Len(t, m.sent, 3, "there is nothing left to do")
}

func TestLoop_KilledBeforeTheAnswer_TheTurnIsStartedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	task := strings.Repeat("Mend it. ", 40<<10) // in the blob store
	m := new(model)
	run, err := w.fleet("ex-1", nil).Start(t.Context(), publisher.RunSpec{ID: "r1", Task: task})
	require.NoError(t, err)
	require.Error(t, examples.Loop(func(ctx context.Context, conversation []schema.Message) (publisher.Answer, error) {
		_, err := m.next(ctx, conversation)
		return publisher.Answer{}, errors.Join(err, context.Canceled)
	}, nil)(t.Context(), run))
	require.NoError(t, examples.Loop(m.next, nil)(t.Context(), takeOver(t, w.fleet("ex-2", nil))))
	require.Equal(t, [][]string{{"user: " + task}, {"user: " + task}}, m.sent)
}

func TestLoop_CallsThatCannotBeMade_TheModelReadsWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := &model{script: [][]publisher.ToolCall{
		{{ID: "a", Name: "fly"}, {ID: "b", Name: "look", Arguments: jsontext.Value(`{"at":`)}, {ID: "c", Name: "fall"}},
	}}
	run, err := w.fleet("ex-1", nil).Start(t.Context(), publisher.RunSpec{ID: "r1", Task: "Fly."})
	require.NoError(t, err)
	require.NoError(t, examples.Loop(m.next, map[string]publisher.ToolFunc{
		"look": echo,
		"fall": func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
			return publisher.ToolResult{}, errors.New("it fell")
		},
	})(t.Context(), run))
	require.Len(t, m.sent, 2)
	require.Equal(t, []string{
		`tool a error {"error":{"type":"unknown_tool","message":"there is no tool \"fly\""}}`,
		`tool b error {"error":{"type":"invalid_arguments","message":"the arguments are not JSON"}}`,
		`tool c error {"error":{"type":"error","message":"it fell"}}`,
	}, m.sent[1][len(m.sent[1])-3:])
}

func TestLoop_APersonAbandonsACall_TheModelReadsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	second := w.fleet("ex-2", nil)
	m := &model{script: [][]publisher.ToolCall{{{ID: "a", Name: "mail"}}}}
	ctx, die := context.WithCancel(t.Context())
	mailing := examples.Loop(m.next, map[string]publisher.ToolFunc{"mail": func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		die()
		return publisher.ToolResult{}, context.Canceled
	}})
	require.Error(t, mailing(ctx, start(t, w.fleet("ex-1", nil))))
	run := takeOver(t, second)
	held, ok := errors.AsType[*publisher.HeldError](mailing(t.Context(), run))
	require.True(t, ok)
	_, err := second.Settle(t.Context(), "r1", schema.SettleRequest{CallKey: held.Key, How: schema.SettledAbandoned, By: "ann"})
	require.NoError(t, err)
	require.NoError(t, run.AwaitSettled(t.Context(), held.Key))
	require.NoError(t, mailing(t.Context(), run))
	require.Equal(t, `tool a error {"error":{"type":"abandoned","message":"the call was given up; whether it had its effect is not known"}}`,
		m.sent[1][len(m.sent[1])-1])
}

// The calls of an answer are gone on with although their arguments are not in the message.
func TestLoop_LargeArgumentsAndAKill_TheToolGetsThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	arguments := `{"text":"` + strings.Repeat("x", 300<<10) + `"}`
	m := &model{script: [][]publisher.ToolCall{{looks("a", arguments)}}}
	ctx, die := context.WithCancel(t.Context())
	var got []string
	looking := examples.Loop(m.next, map[string]publisher.ToolFunc{"look": func(_ context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
		if got = append(got, string(inv.Arguments)); len(got) == 1 {
			die()
			return publisher.ToolResult{}, context.Canceled
		}
		return publisher.Result(strings.Repeat("y", 300<<10))
	}})
	require.Error(t, looking(ctx, start(t, w.fleet("ex-1", nil))))
	require.NoError(t, looking(t.Context(), takeOver(t, w.fleet("ex-2", nil))))
	require.Equal(t, []string{arguments, arguments}, got)
	require.Equal(t, []string{"assistant calls a look" + arguments, `tool a "` + strings.Repeat("y", 300<<10) + `"`}, m.sent[1][2:])
}
