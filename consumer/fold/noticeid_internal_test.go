package fold

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// The calls of an answer are announced with the answer's id and a suffix. An id of 256 bytes is allowed.
func TestNotices_AnswerHasTheLongestID_CallsCanBeDecoded(t *testing.T) {
	t.Parallel()
	e := &schema.Event{
		ID: strings.Repeat("i", schema.MaxIdentifier), Source: "/waymark/default/py-1", Type: schema.TypeOf(schema.TurnAnswered), Subject: "r1",
		Epoch: 1, Turn: 1, DataContentType: schema.ContentTypeJSON,
		Data: []byte(`{"turn":1,"message":{"role":"assistant"},"calls":[{"tool_call_id":"a","name":"n"}]}`),
	}
	_, err := schema.Decode(e.Encode())
	require.NoError(t, err, "the answer is well formed")
	h := schema.NewHead("default", "r1")
	rec := schema.NewRecord(1, nil, nil)
	rec.Header, rec.Body = e.Encode()
	v := h.Apply(schema.NoKeys, &rec)
	require.Equal(t, schema.Applied, v.Kind)
	answer, ok := v.Data.(*schema.TurnAnsweredData)
	require.True(t, ok)
	told := requested(&accepted{e: e, answer: answer, calls: v.Calls})
	require.Len(t, told, 1)
	_, err = schema.Decode(told[0].Encode())
	require.NoError(t, err, "an observer must be able to read tool.called")
}
