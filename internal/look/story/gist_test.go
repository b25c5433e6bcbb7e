package story

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestGist_AnswerAndOrphan_AreReadable(t *testing.T) {
	t.Parallel()
	event := func(name, data string) *schema.Event {
		return &schema.Event{Type: schema.TypeOf(name), DataContentType: schema.ContentTypeJSON, Data: []byte(data)}
	}
	require.Equal(t, "turn 1, assistant: two, c1 look, c2 mail", Gist(event(schema.TurnAnswered,
		`{"turn":1,"message":{"role":"assistant","parts":[{"type":"text","content":"two"},{"type":"tool_call","id":"c1","name":"look"},{"type":"tool_call","id":"c2","name":"mail"}]},`+
			`"calls":[{"tool_call_id":"c1","name":"look"},{"tool_call_id":"c2","name":"mail"}]}`)))
	require.Regexp(t, `^executor e, last seen \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$`, Gist(event(schema.RunOrphaned, `{"executor":"e","last_seen":"2026-01-31T08:00:00.123456789Z"}`)))
}

func TestMessages_EmptyText_LeavesNoMark(t *testing.T) {
	t.Parallel()
	empty, text := "", "on my way"
	call := func(name string) schema.Part { return schema.Part{Type: "tool_call", Name: name} }
	require.Equal(t, "assistant: book_berth, book_berth", MessagesText([]schema.Message{
		{Role: "assistant", Parts: []schema.Part{{Type: "text", Content: &empty}, call("book_berth"), call("book_berth")}},
	}))
	require.Equal(t, "on my way, book_berth", MessagesText([]schema.Message{{Parts: []schema.Part{{Type: "text", Content: &text}, call("book_berth")}}}))
}
