package inspector

import (
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// What executors wrote is made into forms and results: nothing of it is markup, and nothing of it is invisible.
func FuzzShown(f *testing.F) {
	f.Add([]byte(`{"type":"object","properties":{"a":{"type":"string","enum":["<b>"]}},"required":["a"]}`), "diff --git a b\n@@ x\n+<b>")
	f.Add([]byte(`"<script>"`), "\x1b[31m\u202e")
	parsed := parse(time.Now)
	f.Fuzz(func(t *testing.T, value []byte, text string) {
		for _, field := range fieldsOf(value) {
			require.NotEmpty(t, field.Kind)
		}
		parts := []schema.Part{
			{Type: schema.PartText, Content: &text},
			{Type: schema.PartBlob, MimeType: "image/png", Content: &text},
			{Type: schema.PartToolCallResponse, ID: text, Response: jsontext.Value(value)},
			{Type: schema.PartToolCall, Name: text, Arguments: jsontext.Value(value)},
		}
		v := &view{Body: &conversationBody{Messages: messagesOf("r", "", &schema.State{Messages: []schema.StateMessage{{Message: schema.Message{Role: text, Parts: parts}}}})}}
		var b strings.Builder
		require.NoError(t, parsed["conversation"].ExecuteTemplate(&b, "body", v))
		page := b.String()
		require.NotContains(t, strings.ToLower(page), "<script")
		require.True(t, utf8.ValidString(page))
		for _, r := range page {
			require.True(t, unicode.IsPrint(r) || r == '\n' || r == '\t', "%q in %q", r, page)
		}
	})
}
