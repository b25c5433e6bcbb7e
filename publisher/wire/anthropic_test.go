package wire_test

import (
	"bytes"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/wire"
	"github.com/waymarkio/waymark/schema"
)

// content of an answer with all that Anthropic signs, an escape that JSON need not have, and a block of a tool that the provider runs.
const anthropicContent = `[
	{"type":"thinking","thinking":"Let me see\u0021 <\u2028>","signature":"EqQBCgIYAhIM/+Zz=="},
	{"type":"redacted_thinking","data":"EmwKAhgBEgy3va3pzix/LafPsn4a"},
	{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{"query":"weather"}},
	{"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":[{"type":"web_search_result","encrypted_content":"Eo8=","page_age":null}]},
	{"type":"text","text":"I look.","citations":[{"type":"char_location","cited_text":"x"}]},
	{"type":"tool_use","id":"toolu_1","name":"weather","input":{"city":"Bern","n":9007199254740993},"caller":{"type":"direct"}},
	{"type":"tool_use","id":"toolu_2","name":"weather","input":{}}]`

const anthropicResponse = `{"id":"msg_1","type":"message","role":"assistant","model":"claude-x","content":` + anthropicContent + `,
	"stop_reason":"tool_use","stop_sequence":null,"usage":{"input_tokens":12,"cache_read_input_tokens":3,"output_tokens":5,"service_tier":"standard"}}`

func TestAnthropic_AnswerOfEveryKind_ComesBackAsItWas(t *testing.T) {
	t.Parallel()
	answer, err := wire.Anthropic.Answer([]byte(anthropicResponse))
	require.NoError(t, err)
	require.Equal(t, []string{"tool_use"}, answer.FinishReasons)
	require.Equal(t, "msg_1", answer.ResponseID)
	require.Equal(t, "claude-x", answer.Model)
	require.Equal(t, &schema.Usage{InputTokens: 12, CacheReadInputTokens: 3, OutputTokens: 5, Extra: []byte(`{"service_tier":"standard"}`)}, answer.Usage)
	require.Equal(t, []publisher.ToolCall{
		{ID: "toolu_1", Name: "weather", Arguments: []byte(`{"city":"Bern","n":9007199254740993}`)},
		{ID: "toolu_2", Name: "weather", Arguments: []byte(`{}`)},
	}, answer.Calls)
	require.Equal(t, "Let me see! <\u2028>", *answer.Message.Parts[0].Content)

	request := asked(t, wire.Anthropic, anthropicResponse, []byte(`"sunny"`))
	require.JSONEq(t, anthropicContent, asJSON(t, at(request, "messages", 1, "content")))
	require.JSONEq(t, `{"role":"user","content":[
		{"type":"tool_result","tool_use_id":"toolu_1","content":"sunny"},{"type":"tool_result","tool_use_id":"toolu_2","content":"sunny"}]}`,
		asJSON(t, at(request, "messages", 2)))
}

// TestAnthropic_SignedFields_AreTheSameBytes looks at the text of the body, where a JSON comparison would forgive another escape.
func TestAnthropic_SignedFields_AreTheSameBytes(t *testing.T) {
	t.Parallel()
	answer, err := wire.Anthropic.Answer([]byte(anthropicResponse))
	require.NoError(t, err)
	conversation, err := recorded(nil, answer, user("Go on."))
	require.NoError(t, err)
	request, err := wire.Anthropic.Request(publisher.ModelRequest{Messages: conversation}, nil)
	require.NoError(t, err)
	for _, signed := range []string{`"signature":"EqQBCgIYAhIM/+Zz=="`, `"data":"EmwKAhgBEgy3va3pzix/LafPsn4a"`, `"encrypted_content":"Eo8="`, `"n":9007199254740993`} {
		require.Contains(t, string(request), signed)
	}
	again, err := wire.Anthropic.Request(publisher.ModelRequest{Messages: conversation}, nil)
	require.NoError(t, err)
	require.True(t, bytes.Equal(request, again))
}

func TestAnthropic_Conversation_IsTurnsOfUserAndAssistant(t *testing.T) {
	t.Parallel()
	png, text := "iVBORw==", ""
	request := body(t, wire.Anthropic, []schema.Message{
		{Role: schema.RoleSystem, Parts: []schema.Part{schema.Text("You are terse.")}},
		user("Look at this."),
		{Role: schema.RoleUser, Parts: []schema.Part{
			{Type: schema.PartBlob, Modality: "image", MimeType: "image/png", Content: &png},
			{Type: schema.PartURI, Modality: "document", URI: "https://example.org/a.pdf"},
			{Type: schema.PartFile, FileID: "file_1"},
		}},
		{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Reasoning("Another provider's."), {Type: schema.PartText, Content: &text}, {
			Type: schema.PartToolCall, ID: "call.1", Name: "look", Arguments: []byte(`"{\"at\": 1}"`),
		}}},
		user("And hurry."),
		{Role: schema.RoleTool, Parts: []schema.Part{{Type: schema.PartToolCallResponse, ID: "call.1", Response: []byte(`{"error":"no"}`), IsError: true}}},
	})
	require.JSONEq(t, `{"model":"m","system":[{"type":"text","text":"You are terse."}],"messages":[
		{"role":"user","content":[{"type":"text","text":"Look at this."},
			{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw=="}},
			{"type":"document","source":{"type":"url","url":"https://example.org/a.pdf"}},
			{"type":"document","source":{"type":"file","file_id":"file_1"}}]},
		{"role":"assistant","content":[{"type":"tool_use","id":"call_1","name":"look","input":{"at":1}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"call_1","content":"{\"error\":\"no\"}","is_error":true},{"type":"text","text":"And hurry."}]}]}`,
		asJSON(t, request))
}

func TestRequest_ToolResults_Encoded(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ result, anthropic, chat, responses string }{
		"text":              {`"yes"`, `"yes"`, `"yes"`, `"yes"`},
		"nothing":           {``, `""`, `""`, `""`},
		"null":              {`null`, `""`, `""`, `""`},
		"a number":          {`5`, `"5"`, `"5"`, `"5"`},
		"a list of numbers": {`[1,2]`, `"[1,2]"`, `"[1,2]"`, `"[1,2]"`},
		"an empty list":     {`[]`, `"[]"`, `"[]"`, `"[]"`},
		"content of MCP": {
			`[{"type":"text","text":"a","annotations":{}}]`, `[{"type":"text","text":"a"}]`, `[{"type":"text","text":"a"}]`, `[{"type":"input_text","text":"a"}]`,
		},
		"blocks of Anthropic": {
			`[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]`, `[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]`,
			`[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]`, `"[{\"type\":\"text\",\"text\":\"a\",\"cache_control\":{\"type\":\"ephemeral\"}}]"`,
		},
		"an image of MCP": {
			`[{"type":"image","data":"iVBO","mimeType":"image/png"}]`, `[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBO"}}]`,
			``, `[{"type":"input_image","detail":"auto","image_url":"data:image/png;base64,iVBO"}]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conversation := []schema.Message{
				user("Go."),
				{Role: schema.RoleAssistant, Parts: []schema.Part{{Type: schema.PartToolCall, ID: "c", Name: "f", Arguments: []byte(`{}`)}}},
				{Role: schema.RoleTool, Parts: []schema.Part{{Type: schema.PartToolCallResponse, ID: "c", Response: jsontext.Value(tt.result)}}},
			}
			require.JSONEq(t, tt.anthropic, asJSON(t, at(body(t, wire.Anthropic, conversation), "messages", 2, "content", 0, "content")))
			require.JSONEq(t, tt.responses, asJSON(t, at(body(t, wire.OpenAIResponses, conversation), "input", 2, "output")))
			if tt.chat == "" {
				_, err := wire.OpenAIChat.Request(publisher.ModelRequest{Messages: conversation}, nil)
				require.ErrorIs(t, err, wire.ErrRequest)
				require.ErrorContains(t, err, "image")
				return
			}
			require.JSONEq(t, tt.chat, asJSON(t, at(body(t, wire.OpenAIChat, conversation), "messages", 2, "content")))
		})
	}
}
