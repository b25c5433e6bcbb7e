package wire_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/wire"
	"github.com/waymarkio/waymark/schema"
)

func user(text string) schema.Message {
	return schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(text)}}
}

// recorded is the conversation of a run in which a model was asked and gave the answer, and its calls returned the result: as any executor
// finds it in the log. An error says that no event can carry the answer.
func recorded(result jsontext.Value, answer publisher.Answer, before ...schema.Message) ([]schema.Message, error) {
	s := schema.NewState("default", "r1")
	w := schema.Writer{Fleet: "default", Run: "r1", Executor: "ex-1", Epoch: 1}
	add := func(data schema.Data, turn int32) error {
		e, err := w.Event(data, turn, time.Unix(0, 0), 0)
		if err == nil {
			err = w.Commit(e)
		}
		if err != nil {
			return err
		}
		header, body := e.Encode()
		rec := schema.NewRecord(schema.StreamSequence(e.Sequence), header, body)
		if v := s.Apply(schema.NoKeys, &rec); v.Kind != schema.Applied {
			return &schema.DataError{Event: e.Name(), Problem: v.Detail}
		}
		return nil
	}
	if err := add(&schema.RunStartedData{Agent: "coder", Executor: "ex-1"}, 0); err != nil {
		return nil, err
	}
	if err := add(&schema.TurnStartedData{Turn: 1, Messages: before}, 1); err != nil {
		return nil, err
	}
	data := &schema.TurnAnsweredData{Turn: 1, Message: answer.Message, FinishReasons: answer.FinishReasons, Usage: answer.Usage, Source: []byte(answer.Source)}
	for _, c := range answer.Calls {
		data.Calls = append(data.Calls, schema.RequestedCall{ToolCallID: c.ID, Name: c.Name, Arguments: []byte(c.Arguments), Replay: schema.ReplayPure})
	}
	if err := add(data, 1); err != nil {
		return nil, err
	}
	for _, c := range s.Calls {
		if err := add(&schema.ToolReturnedData{ToolCallID: c.ToolCallID, Occurrence: c.Occurrence, Result: result}, 1); err != nil {
			return nil, err
		}
	}
	return s.Conversation(), nil
}

// asked is the next request after a response, as plain JSON.
func asked(t *testing.T, f wire.Form, response string, result []byte) map[string]any {
	t.Helper()
	answer, err := f.Answer([]byte(response))
	require.NoError(t, err)
	conversation, err := recorded(result, answer, user("Go on."))
	require.NoError(t, err)
	return body(t, f, conversation)
}

func body(t *testing.T, f wire.Form, conversation []schema.Message) map[string]any {
	t.Helper()
	request, err := f.Request(publisher.ModelRequest{Messages: conversation}, map[string]any{"model": "m"})
	require.NoError(t, err)
	return object(t, request)
}

func object(t *testing.T, text []byte) map[string]any {
	t.Helper()
	out := map[string]any{}
	require.NoError(t, json.Unmarshal(text, &out), "%s", text)
	return out
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return string(text)
}

// at is a value in JSON by the names and indexes that lead to it.
func at(v any, path ...any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			o, _ := v.(map[string]any)
			v = o[step]
		case int:
			list, _ := v.([]any)
			if step >= len(list) {
				return nil
			}
			v = list[step]
		}
	}
	return v
}
