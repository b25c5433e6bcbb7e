package wire_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/wire"
	"github.com/waymarkio/waymark/schema"
)

const chatResponse = `{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"gpt-x","choices":[{"index":0,"finish_reason":"tool_calls","logprobs":null,
	"message":{"role":"assistant","content":"I look.","refusal":null,"annotations":[],"reasoning_content":"Let me see.","reasoning_details":[{"type":"reasoning.encrypted","data":"gAAA/+="}],
	"tool_calls":[{"id":"call_1","type":"function","function":{"name":"weather","arguments":"{\"city\": \"Bern\"}"},"extra_content":{"google":{"thought_signature":"Cg=="}}},
		{"id":"call_2","type":"custom","custom":{"name":"shell","input":"ls"}}]}}],
	"usage":{"prompt_tokens":12,"completion_tokens":5,"total_tokens":17,"prompt_tokens_details":{"cached_tokens":3},"completion_tokens_details":{"reasoning_tokens":2}},"service_tier":"default"}`

func TestOpenAIChat_AnswerOfEveryKind_ComesBackAsItWas(t *testing.T) {
	t.Parallel()
	answer, err := wire.OpenAIChat.Answer([]byte(chatResponse))
	require.NoError(t, err)
	require.Equal(t, []string{"tool_calls"}, answer.FinishReasons)
	require.Equal(t, "chatcmpl-1", answer.ResponseID)
	require.EqualValues(t, 12, answer.Usage.InputTokens)
	require.EqualValues(t, 3, answer.Usage.CacheReadInputTokens)
	require.EqualValues(t, 2, answer.Usage.ReasoningOutputTokens)
	require.Equal(t, []publisher.ToolCall{
		{ID: "call_1", Name: "weather", Arguments: []byte(`"{\"city\": \"Bern\"}"`)}, {ID: "call_2", Name: "shell", Arguments: []byte(`"ls"`)},
	}, answer.Calls)
	require.Contains(t, string(answer.Source), `"service_tier":"default"`)

	request := asked(t, wire.OpenAIChat, chatResponse, []byte(`{"sun":true}`))
	require.JSONEq(t, `{"role":"assistant","content":"I look.","reasoning_content":"Let me see.","reasoning_details":[{"type":"reasoning.encrypted","data":"gAAA/+="}],
	"tool_calls":[{"id":"call_1","type":"function","function":{"name":"weather","arguments":"{\"city\": \"Bern\"}"},"extra_content":{"google":{"thought_signature":"Cg=="}}},
		{"id":"call_2","type":"custom","custom":{"name":"shell","input":"ls"}}]}`, asJSON(t, at(request, "messages", 1)))
	require.JSONEq(t, `{"role":"tool","tool_call_id":"call_1","content":"{\"sun\":true}"}`, asJSON(t, at(request, "messages", 2)))
	require.JSONEq(t, `{"role":"tool","tool_call_id":"call_2","content":"{\"sun\":true}"}`, asJSON(t, at(request, "messages", 3)))
}

func TestOpenAIChat_Refusal_IsTheAnswer(t *testing.T) {
	t.Parallel()
	response := `{"choices":[{"message":{"role":"assistant","content":null,"refusal":"No."},"finish_reason":"stop"}]}`
	answer, err := wire.OpenAIChat.Answer([]byte(response))
	require.NoError(t, err)
	require.Equal(t, "No.", *answer.Message.Parts[0].Content)
	require.JSONEq(t, `{"role":"assistant","content":null,"refusal":"No."}`, asJSON(t, at(asked(t, wire.OpenAIChat, response, nil), "messages", 1)))
}

const responsesOutput = `[
	{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"I think\u0021"}],"encrypted_content":"gAAAAABo+/=="},
	{"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"x"}},
	{"type":"message","id":"msg_1","role":"assistant","status":"completed","phase":"commentary","content":[
		{"type":"output_text","text":"I look.","annotations":[],"logprobs":[]},{"type":"refusal","refusal":"Not there."}]},
	{"type":"message","id":"msg_2","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Here.","annotations":[]}]},
	{"type":"function_call","id":"fc_1","call_id":"call_1","name":"weather","arguments":"{\"city\": \"Bern\"}","status":"completed"},
	{"type":"custom_tool_call","id":"ct_1","call_id":"call_2","name":"shell","input":"ls"},
	{"type":"message","id":"msg_3","role":"assistant","content":[{"type":"hologram","data":1}]}]`

const responsesResponse = `{"id":"resp_1","object":"response","status":"completed","error":null,"model":"gpt-x","output":` + responsesOutput + `,
	"usage":{"input_tokens":12,"input_tokens_details":{"cached_tokens":3},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":2},"total_tokens":17}}`

func TestOpenAIResponses_AnswerOfEveryKind_ComesBackAsItWas(t *testing.T) {
	t.Parallel()
	answer, err := wire.OpenAIResponses.Answer([]byte(responsesResponse))
	require.NoError(t, err)
	require.Equal(t, []string{"completed"}, answer.FinishReasons)
	require.EqualValues(t, 2, answer.Usage.ReasoningOutputTokens)
	require.EqualValues(t, 3, answer.Usage.CacheReadInputTokens)
	require.Equal(t, []publisher.ToolCall{
		{ID: "call_1", Name: "weather", Arguments: []byte(`"{\"city\": \"Bern\"}"`)}, {ID: "call_2", Name: "shell", Arguments: []byte(`"ls"`)},
	}, answer.Calls)
	require.Equal(t, "I think!", *answer.Message.Parts[0].Content)

	conversation, err := recorded([]byte(`"sunny"`), answer, user("Go on."))
	require.NoError(t, err)
	request := body(t, wire.OpenAIResponses, conversation)
	input, _ := at(request, "input").([]any)
	require.Len(t, input, 10)
	require.JSONEq(t, responsesOutput, asJSON(t, input[1:8]))
	require.JSONEq(t, `[{"type":"function_call_output","call_id":"call_1","output":"sunny"},{"type":"custom_tool_call_output","call_id":"call_2","output":"sunny"}]`, asJSON(t, input[8:]))
	text, err := wire.OpenAIResponses.Request(publisher.ModelRequest{Messages: conversation}, nil)
	require.NoError(t, err)
	require.Contains(t, string(text), `"encrypted_content":"gAAAAABo+/=="`)
}

func TestOpenAI_Conversation_OfAnotherProvider(t *testing.T) {
	t.Parallel()
	png, pdf := "iVBORw==", "JVBERi0="
	conversation := []schema.Message{
		{Role: schema.RoleSystem, Parts: []schema.Part{schema.Text("You are terse.")}},
		{Role: schema.RoleUser, Parts: []schema.Part{
			schema.Text("Look."),
			{Type: schema.PartBlob, Modality: "image", MimeType: "image/png", Content: &png},
			{Type: schema.PartBlob, Modality: "document", MimeType: "application/pdf", Content: &pdf},
			{Type: schema.PartFile, Modality: "document", FileID: "file_1"},
		}},
		{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Reasoning("Another provider's."), schema.Text("I look."), {
			Type: schema.PartToolCall, ID: "c1", Name: "look", Arguments: []byte(`{"at":1}`),
		}}},
		{Role: schema.RoleTool, Parts: []schema.Part{{Type: schema.PartToolCallResponse, ID: "c1", Response: []byte(`"a cat"`)}}},
	}
	require.JSONEq(t, `{"model":"m","messages":[{"role":"system","content":"You are terse."},
		{"role":"user","content":[{"type":"text","text":"Look."},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw=="}},
			{"type":"file","file":{"filename":"document","file_data":"data:application/pdf;base64,JVBERi0="}},{"type":"file","file":{"file_id":"file_1"}}]},
		{"role":"assistant","content":"I look.","tool_calls":[{"id":"c1","type":"function","function":{"name":"look","arguments":"{\"at\":1}"}}]},
		{"role":"tool","tool_call_id":"c1","content":"a cat"}]}`, asJSON(t, body(t, wire.OpenAIChat, conversation)))
	require.JSONEq(t, `{"model":"m","input":[{"type":"message","role":"system","content":[{"type":"input_text","text":"You are terse."}]},
		{"type":"message","role":"user","content":[{"type":"input_text","text":"Look."},{"type":"input_image","detail":"auto","image_url":"data:image/png;base64,iVBORw=="},
			{"type":"input_file","filename":"document","file_data":"data:application/pdf;base64,JVBERi0="},{"type":"input_file","file_id":"file_1"}]},
		{"type":"message","role":"assistant","content":[{"type":"output_text","text":"I look."}]},
		{"type":"function_call","call_id":"c1","name":"look","arguments":"{\"at\":1}"},
		{"type":"function_call_output","call_id":"c1","output":"a cat"}]}`, asJSON(t, body(t, wire.OpenAIResponses, conversation)))
}
