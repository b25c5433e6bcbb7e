package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/base/form"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Form is the format of conversations in an API.
type Form string

// Forms.
const (
	// Anthropic is the Messages API of Anthropic.
	Anthropic Form = form.KeyAnthropic
	// OpenAIChat is the Chat Completions API of OpenAI, which other providers offer, too.
	OpenAIChat Form = form.KeyChat
	// OpenAIResponses is the Responses API of OpenAI. Each request has the whole conversation. For reasoning models,
	// set store false and include reasoning.encrypted_content, so that they can continue their reasoning on any
	// executor.
	OpenAIResponses Form = form.KeyResponses
)

var (
	// ErrRequest is returned for a conversation that a form cannot express, and for settings that contradict it.
	ErrRequest = errors.New("cannot make a request in this form")
	// ErrResponse is returned for an incomplete or invalid response.
	ErrResponse = errors.New("not a complete answer")
)

// path of the API below its client's base address.
func (f Form) path() string {
	return map[Form]string{Anthropic: "v1/messages", OpenAIChat: "chat/completions", OpenAIResponses: "responses"}[f]
}

// Model asks a model through the Post method of a provider's official client. For settings see [Form.Request].
// Errors of the API are those of [Error]. Make the client without retries of its own (option.WithMaxRetries(0)): they
// would hold the executor, and ask before the time that the provider names.
func Model[Option any](f Form, settings any, post func(ctx context.Context, path string, body, response any, options ...Option) error) publisher.Model {
	return func(ctx context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
		body, err := f.Request(request, settings)
		if err != nil {
			return publisher.Answer{}, publisher.Permanent(err)
		}
		var response []byte
		if err := post(ctx, f.path(), body, &response); err != nil {
			return publisher.Answer{}, ofClient(err)
		}
		return f.Answer(response)
	}
}

// Request is the body of the request for the next answer. settings are the other members of the body, such as the model
// and the token limit: a map, or the parameters of the provider's client. Tools in them, which the provider runs, come
// before those of the request.
func (f Form) Request(request publisher.ModelRequest, settings any) ([]byte, error) {
	body, err := f.request(request, settings)
	if err != nil {
		return nil, fmt.Errorf("%w (%s): %w", ErrRequest, f, err)
	}
	return body, nil
}

func (f Form) request(request publisher.ModelRequest, settings any) ([]byte, error) {
	o, err := settingsOf(settings)
	if err != nil {
		return nil, err
	}
	tools, err := f.tools(o, request.Tools)
	if err != nil {
		return nil, err
	}
	conversation := map[Form]string{Anthropic: "messages", OpenAIChat: "messages", OpenAIResponses: "input"}[f]
	if v := o.Take(conversation); v != nil && v.Kind() != 'n' {
		return nil, fmt.Errorf("the settings have %s, but the run's record supplies it: remove it", conversation)
	}
	body := make(map[string]any, len(o)+3)
	for name, v := range o {
		body[name] = v
	}
	e, history := form.NewEncoder(string(f)), schema.ValidHistory(request.Messages)
	switch f {
	case Anthropic:
		system, messages := anthropicMessages(e, history)
		body[conversation] = messages
		if len(system) > 0 {
			if o["system"] != nil {
				return nil, errors.New("both the settings and the run have system: use only Loop.System")
			}
			body["system"] = system
		}
	case OpenAIChat:
		messages := []any{}
		for i := range history {
			messages = append(messages, e.Chat(&history[i])...)
		}
		body[conversation] = messages
	case OpenAIResponses:
		body[conversation] = e.Responses(history)
	default:
		return nil, fmt.Errorf("form %.40q is unknown", string(f))
	}
	if err := e.Err(); err != nil {
		return nil, err
	}
	if len(tools) > 0 {
		body["tools"] = tools
	}
	return form.Marshal(body)
}

// settingsOf decodes the settings, as the client would encode them.
func settingsOf(settings any) (form.Object, error) {
	if settings == nil {
		return nil, nil
	}
	text, err := json.Marshal(settings)
	if err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	if err := form.CheckJSON(text); err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	o, ok := form.ParseObject(text)
	if !ok {
		return nil, fmt.Errorf("settings are %T, which is not an object", settings)
	}
	return o, nil
}

// tools are the tools of the settings and of the request.
func (f Form) tools(o form.Object, tools []publisher.Tool) ([]any, error) {
	given := o.Take("tools")
	values, ok := form.ParseArray(given)
	if !ok && given != nil && given.Kind() != 'n' {
		return nil, errors.New("the settings have tools that are not a list")
	}
	list := make([]any, 0, len(values)+len(tools))
	for _, v := range values {
		list = append(list, v)
	}
	for i := range tools {
		t := &tools[i]
		parameters := jsontext.Value(t.Parameters)
		if len(parameters) == 0 {
			parameters = jsontext.Value(`{"type":"object","properties":{}}`)
		}
		tool := map[string]any{"name": t.Name}
		if t.Description != "" {
			tool["description"] = t.Description
		}
		switch f {
		case Anthropic:
			tool["input_schema"] = parameters
		case OpenAIChat:
			tool["parameters"] = parameters
			tool = map[string]any{"type": "function", "function": tool}
		case OpenAIResponses:
			tool["type"], tool["parameters"] = "function", parameters
			tool["strict"] = false // the default true supports few schemas
		}
		list = append(list, tool)
	}
	return list, nil
}

// anthropicMessages returns the texts of the role system, and the others in turns of user and assistant. Results come
// first in their turn.
func anthropicMessages(e *form.Encoder, conversation []schema.Message) (system, messages []any) {
	messages = []any{}
	var role string
	var results, blocks []any
	flush := func() {
		if content := append(results, blocks...); len(content) > 0 {
			messages = append(messages, map[string]any{"role": role, "content": content})
		}
		results, blocks = nil, nil
	}
	for i := range conversation {
		m := &conversation[i]
		r, b := e.Anthropic(m)
		if m.Role == schema.RoleSystem {
			system = append(system, b...)
			continue
		}
		of := schema.RoleUser
		if m.Role == schema.RoleAssistant {
			of = m.Role
		}
		if of != role && len(r)+len(b) > 0 {
			flush()
			role = of
		}
		results, blocks = append(results, r...), append(blocks, b...)
	}
	flush()
	return system, messages
}
