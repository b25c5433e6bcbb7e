package wire_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/wire"
	"github.com/waymarkio/waymark/schema"
)

var forms = []wire.Form{wire.Anthropic, wire.OpenAIChat, wire.OpenAIResponses}

func TestRequest_Tools_StandBehindThoseOfTheProvider(t *testing.T) {
	t.Parallel()
	look := publisher.Tool{Name: "look", Description: "Looks.", Parameters: []byte(`{"type":"object","properties":{"at":{"type":"integer"}}}`)}
	request := publisher.ModelRequest{Messages: []schema.Message{user("Go.")}, Tools: []publisher.Tool{look, {Name: "stop"}}}
	for f, want := range map[wire.Form]string{
		wire.Anthropic: `[{"type":"web_search"},{"name":"look","description":"Looks.","input_schema":{"type":"object","properties":{"at":{"type":"integer"}}}},
			{"name":"stop","input_schema":{"type":"object","properties":{}}}]`,
		wire.OpenAIChat: `[{"type":"web_search"},{"type":"function","function":{"name":"look","description":"Looks.","parameters":{"type":"object","properties":{"at":{"type":"integer"}}}}},
			{"type":"function","function":{"name":"stop","parameters":{"type":"object","properties":{}}}}]`,
		wire.OpenAIResponses: `[{"type":"web_search"},{"type":"function","name":"look","description":"Looks.","parameters":{"type":"object","properties":{"at":{"type":"integer"}}},"strict":false},
			{"type":"function","name":"stop","parameters":{"type":"object","properties":{}},"strict":false}]`,
	} {
		text, err := f.Request(request, map[string]any{"tools": []any{map[string]any{"type": "web_search"}}})
		require.NoError(t, err)
		require.JSONEq(t, want, asJSON(t, object(t, text)["tools"]), f)
	}
}

func TestRequest_WhatAFormCannotExpress_IsNamed(t *testing.T) {
	t.Parallel()
	sound, film := "UklGRg==", "AAAA"
	audio := schema.Message{Role: schema.RoleUser, Parts: []schema.Part{{Type: schema.PartBlob, Modality: "audio", MimeType: "audio/wav", Content: &sound}}}
	video := schema.Message{Role: schema.RoleUser, Parts: []schema.Part{{Type: schema.PartBlob, Modality: "video", MimeType: "video/mp4", Content: &film}}}
	foreign := schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{{Type: "hologram", Content: &film}}}
	for _, f := range forms {
		for name, m := range map[string]schema.Message{"audio": audio, "video": video, "hologram": foreign} {
			_, err := f.Request(publisher.ModelRequest{Messages: []schema.Message{m}}, nil)
			if name == "audio" && f == wire.OpenAIChat {
				require.NoError(t, err)
				continue
			}
			require.ErrorIs(t, err, wire.ErrRequest, "%s, %s", f, name)
			require.ErrorContains(t, err, name)
		}
	}
}

func TestRequest_SettingsThatContradictTheRun_AreRefused(t *testing.T) {
	t.Parallel()
	said := publisher.ModelRequest{Messages: []schema.Message{{Role: schema.RoleSystem, Parts: []schema.Part{schema.Text("Be terse.")}}, user("Go.")}}
	for name, settings := range map[string]any{
		"messages": map[string]any{"messages": []any{}}, "input": map[string]any{"input": "x"}, "system": map[string]any{"system": "x"},
		"not a list": map[string]any{"tools": 5}, "not an object": 5, "settings": func() {},
	} {
		f := wire.Anthropic
		if name == "input" {
			f = wire.OpenAIResponses
		}
		_, err := f.Request(said, settings)
		require.ErrorIs(t, err, wire.ErrRequest, name)
		require.ErrorContains(t, err, name)
	}
	_, err := wire.Anthropic.Request(said, map[string]any{"messages": nil, "tools": nil})
	require.NoError(t, err, "as the parameters of a client have them that are not set")
	_, err = wire.Form("other").Request(said, nil)
	require.ErrorIs(t, err, wire.ErrRequest)
}

func TestAnswer_NoWholeAnswer_IsRefused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		form     wire.Form
		response string
	}{
		"no JSON":                         {wire.Anthropic, `<html>`},
		"not an object":                   {wire.OpenAIChat, `[]`},
		"an error":                        {wire.Anthropic, `{"type":"error","error":{"type":"overloaded_error"}}`},
		"half a character":                {wire.Anthropic, `{"type":"message","role":"assistant","content":[{"type":"thinking","thinking":"\ud83d","signature":"x"}]}`},
		"another role":                    {wire.Anthropic, `{"type":"message","role":"user","content":[]}`},
		"no content":                      {wire.Anthropic, `{"type":"message","role":"assistant"}`},
		"no reason to end":                {wire.Anthropic, `{"type":"message","role":"assistant","content":[{"type":"text","text":"half"}],"stop_reason":null}`},
		"a finish reason of null":         {wire.OpenAIChat, `{"choices":[{"finish_reason":null,"message":{"role":"assistant","content":"half"}}]}`},
		"a paused turn":                   {wire.Anthropic, `{"type":"message","role":"assistant","content":[],"stop_reason":"pause_turn"}`},
		"an id that is no text":           {wire.Anthropic, `{"type":"message","role":"assistant","content":[{"type":"tool_use","id":5,"name":"f"}]}`},
		"no choice":                       {wire.OpenAIChat, `{"choices":[]}`},
		"two choices":                     {wire.OpenAIChat, `{"choices":[{},{}]}`},
		"a choice without a message":      {wire.OpenAIChat, `{"choices":[{}]}`},
		"a choice that is no object":      {wire.OpenAIChat, `{"choices":[5]}`},
		"a message without a role":        {wire.OpenAIChat, `{"choices":[{"message":{}}]}`},
		"a message of the user":           {wire.OpenAIChat, `{"choices":[{"message":{"role":"user"}}]}`},
		"function_call":                   {wire.OpenAIChat, `{"choices":[{"message":{"role":"assistant","function_call":{"name":"f","arguments":""}}}]}`},
		"calls that are no objects":       {wire.OpenAIChat, `{"choices":[{"message":{"role":"assistant","tool_calls":[5]}}]}`},
		"no output":                       {wire.OpenAIResponses, `{"status":"completed"}`},
		"a response that is still made":   {wire.OpenAIResponses, `{"status":"in_progress","output":[]}`},
		"a response that failed":          {wire.OpenAIResponses, `{"status":"failed","error":{"code":"server_error"},"output":[]}`},
		"a form that this does not know":  {wire.Form("other"), `{}`},
		"a name of a tool that is a list": {wire.OpenAIResponses, `{"status":"completed","output":[{"type":"function_call","call_id":"c","name":[],"arguments":"{}"}]}`},
	} {
		_, err := tt.form.Answer([]byte(tt.response))
		require.ErrorIs(t, err, wire.ErrResponse, name)
	}
	answer, err := wire.OpenAIResponses.Answer([]byte(`{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"output":[]}`))
	require.NoError(t, err)
	require.Equal(t, []string{"max_output_tokens"}, answer.FinishReasons)
}

// refusal is an error as the official clients return it.
// refusal is an error as the official clients have it.
type refusal struct {
	status int
	header string
	body   string
}

func (r *refusal) Error() string { return "POST the address" }

func (r *refusal) DumpResponse(bool) []byte {
	return fmt.Appendf(nil, "HTTP/2.0 %d %s\r\n%sContent-Length: %d\r\n\r\n%s", r.status, http.StatusText(r.status), r.header, len(r.body), r.body)
}

type option struct{}

func TestModel_Request_Answers(t *testing.T) {
	t.Parallel()
	responses := map[wire.Form]string{wire.Anthropic: anthropicResponse, wire.OpenAIChat: chatResponse, wire.OpenAIResponses: responsesResponse}
	paths := map[wire.Form]string{wire.Anthropic: "v1/messages", wire.OpenAIChat: "chat/completions", wire.OpenAIResponses: "responses"}
	for _, f := range forms {
		model := wire.Model(f, map[string]any{"model": "m"}, func(_ context.Context, path string, body, response any, _ ...option) error {
			require.Equal(t, paths[f], path)
			text, ok := body.([]byte)
			require.True(t, ok)
			require.True(t, json.Valid(text))
			into, ok := response.(*[]byte)
			require.True(t, ok)
			*into = []byte(responses[f])
			return nil
		})
		answer, err := model(t.Context(), publisher.ModelRequest{Messages: []schema.Message{user("Go.")}})
		require.NoError(t, err)
		require.Len(t, answer.Calls, 2)
	}
}

func TestModel_ErrorOfTheClient_IsThatOfItsResponse(t *testing.T) {
	t.Parallel()
	ask := func(settings any, failed error) error {
		_, err := wire.Model(wire.Anthropic, settings, func(context.Context, string, any, any, ...option) error { return failed })(t.Context(), publisher.ModelRequest{})
		return err
	}
	refused := &refusal{status: 401, body: `{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}`}
	err := ask(nil, refused)
	require.ErrorIs(t, err, refused)
	require.ErrorIs(t, err, publisher.ErrUnauthorized)
	require.EqualError(t, err, "401 Unauthorized: invalid x-api-key")
	busy := &refusal{status: 429, header: "Retry-After: 600\r\n", body: "slow down"}
	err = ask(nil, busy)
	require.ErrorIs(t, err, busy)
	require.NotErrorIs(t, err, publisher.ErrUnauthorized)
	require.EqualError(t, err, "429 Too Many Requests: slow down")
	reset := errors.New("connection reset")
	require.Same(t, reset, ask(nil, reset))
	err = ask(5, nil)
	require.Equal(t, fmt.Sprintf("%T", publisher.Permanent(errors.New("x"))), fmt.Sprintf("%T", err))
	require.ErrorIs(t, err, wire.ErrRequest)
}
