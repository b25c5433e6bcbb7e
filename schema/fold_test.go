package schema_test

import (
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"
	"github.com/waymarkio/waymark/schema"
)

func TestAWriterFoldsToAState(t *testing.T) {
	w := schema.Writer{Fleet: "default", Run: "r1", Executor: "ex-1", Epoch: 1}
	s := schema.NewState("default", "r1")
	h := schema.NewHead("default", "r1")
	n := schema.StreamSequence(0)
	add := func(d schema.Data, turn int32) schema.Verdict {
		e, _, err := w.Event(d, turn, time.Unix(1000+int64(n), 0), w.Chain, 0)
		require.NoError(t, err)
		require.NoError(t, w.Commit(e))
		n++
		hd, body := e.Encode()
		rec := schema.NewRecord(n, hd, body)
		v := s.Apply(&rec)
		h.Apply(&rec)
		require.Equal(t, s.Head, h)
		return v
	}
	require.Equal(t, schema.Applied, add(&schema.RunStartedData{Agent: "a", Executor: "ex-1"}, 0).Kind)
	add(&schema.TurnStartedData{Turn: 1, Messages: []schema.Message{{Role: "user", Parts: []schema.Part{schema.Text("hi")}}}}, 1)
	add(&schema.MessageAddedData{Message: schema.Message{Role: "assistant", Parts: []schema.Part{schema.CallPart("c1", "ls")}}}, 1)
	add(&schema.ToolCalledData{ToolCallID: "c1", Name: "ls", Arguments: []byte(`{"a":1}`)}, 1)
	add(&schema.ToolReturnedData{ToolCallID: "c1", Result: []byte(`"ok"`)}, 1)
	v := add(&schema.TurnEndedData{Turn: 1, Messages: []schema.Message{{Role: "tool", Parts: []schema.Part{schema.ResponsePart("c1")}}}}, 1)
	require.Equal(t, schema.Applied, v.Kind, v.Detail)
	require.True(t, s.Head.Clean())
	j := s.Joined()
	require.JSONEq(t, `{"a":1}`, string(j[1].Parts[0].Arguments))
	require.JSONEq(t, `"ok"`, string(j[2].Parts[0].Response))
	cp := schema.Checkpoint{Head: h}
	b, err := schema.EncodeCheckpoint(&cp)
	require.NoError(t, err)
	t.Log(string(b))
	back, err := schema.DecodeCheckpoint(b)
	require.NoError(t, err)
	require.Equal(t, cp, *back)
	js, err := json.Marshal(s)
	require.NoError(t, err)
	t.Log(string(js))
}
