package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/form"
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
// Permanent errors, such as that for a refused API key, are marked by [publisher.Permanent].
func Model[Option any](f Form, settings any, post func(ctx context.Context, path string, body, response any, options ...Option) error) publisher.Model {
	return func(ctx context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
		body, err := f.Request(request, settings)
		if err != nil {
			return publisher.Answer{}, publisher.Permanent(err)
		}
		var response []byte
		if err := post(ctx, f.path(), body, &response); err != nil {
			if refused(err) {
				err = publisher.Permanent(err)
			}
			return publisher.Answer{}, err
		}
		return f.Answer(response)
	}
}

// refused reports whether a provider's error is permanent. The clients' errors contain the body of the response.
func refused(err error) bool {
	type withBody interface {
		error
		RawJSON() string
	}
	failed, ok := errors.AsType[withBody](err)
	if !ok {
		return false
	}
	raw := jsontext.Value(failed.RawJSON())
	if form.CheckJSON(raw) != nil {
		return false
	}
	o, _ := form.ParseObject(raw)
	if o == nil {
		return false
	}
	if inner, ok := form.TakeObject(o, "error"); ok {
		o = inner
	}
	typ, _ := o.Str("type")
	return slices.Contains([]string{
		"invalid_request_error", "authentication_error", "permission_error", "not_found_error", "request_too_large", "billing_error", "insufficient_quota",
	}, typ)
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
	if v, _ := o.Take(conversation); v != nil && v.Kind() != 'n' {
		return nil, fmt.Errorf("the settings have %s, but the run's record supplies it: remove it", conversation)
	}
	var w form.Writer
	var system, messages jsontext.Value
	switch f {
	case Anthropic:
		system, messages, err = anthropicMessages(request.Messages)
	case OpenAIChat:
		messages, err = chatMessages(request.Messages)
	case OpenAIResponses:
		e := &form.Encoder{Keys: []string{form.KeyResponses}}
		messages = form.Array(e.Responses(request.Messages))
		err = e.Err()
	default:
		err = fmt.Errorf("form %.40q is unknown", string(f))
	}
	if err != nil {
		return nil, err
	}
	for i, name := range o.Names {
		if name == "system" && f == Anthropic && system != nil {
			return nil, errors.New("both the settings and the run have system: use only Loop.System")
		}
		w.Set(name, form.Compact(o.Values[i]))
	}
	if system != nil {
		w.Set("system", system)
	}
	if tools != nil {
		w.Set("tools", tools)
	}
	w.Set(conversation, messages)
	return w.Value(), nil
}

// settingsOf decodes the settings, as the client would encode them.
func settingsOf(settings any) (*form.Object, error) {
	if settings == nil {
		return new(form.Object), nil
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

// tools writes the tools of the settings and of the request; nil if there are none.
func (f Form) tools(o *form.Object, tools []publisher.Tool) (jsontext.Value, error) {
	given, _ := o.Take("tools")
	list, ok := form.ParseArray(given)
	if !ok && given != nil && given.Kind() != 'n' {
		return nil, errors.New("the settings have tools that are not a list")
	}
	for i := range tools {
		t := &tools[i]
		parameters := []byte(t.Parameters)
		if len(parameters) == 0 {
			parameters = []byte(`{"type":"object","properties":{}}`)
		}
		var tool, inner form.Writer
		w := &tool
		if f != Anthropic {
			tool.Str("type", "function")
		}
		if f == OpenAIChat {
			w = &inner
		}
		w.Str("name", t.Name)
		if t.Description != "" {
			w.Str("description", t.Description)
		}
		if f == Anthropic {
			w.Set("input_schema", parameters)
		} else {
			w.Set("parameters", parameters)
		}
		if f == OpenAIResponses {
			w.Set("strict", jsontext.Value("false")) // the default true supports few schemas
		}
		if f == OpenAIChat {
			tool.Set("function", inner.Value())
		}
		list = append(list, tool.Value())
	}
	if len(list) == 0 {
		return nil, nil
	}
	return form.Array(list), nil
}

// anthropicMessages returns the texts of the role system, and the others in turns of user and assistant. Results come
// first in their turn.
func anthropicMessages(conversation []schema.Message) (system, messages jsontext.Value, err error) {
	e := &form.Encoder{Keys: []string{form.KeyAnthropic}}
	type turn struct {
		role            string
		results, blocks []jsontext.Value
	}
	var texts []jsontext.Value
	var turns []turn
	for i := range conversation {
		m := &conversation[i]
		blocks, results, err := anthropicBlocks(e, m)
		if err != nil {
			return nil, nil, fmt.Errorf("message %d: %w", i+1, err)
		}
		role := m.Role
		switch role {
		case schema.RoleSystem:
			texts = append(texts, blocks...)
			continue
		case schema.RoleAssistant:
		default:
			role = schema.RoleUser
		}
		if len(blocks)+len(results) == 0 {
			continue
		}
		if n := len(turns); n == 0 || turns[n-1].role != role {
			turns = append(turns, turn{role: role})
		}
		t := &turns[len(turns)-1]
		t.results, t.blocks = append(t.results, results...), append(t.blocks, blocks...)
	}
	list := make([]jsontext.Value, len(turns))
	for i := range turns {
		var o form.Writer
		o.Str("role", turns[i].role)
		o.Set("content", form.Array(append(turns[i].results, turns[i].blocks...)))
		list[i] = o.Value()
	}
	if len(texts) > 0 {
		system = form.Array(texts)
	}
	return system, form.Array(list), nil
}

func anthropicBlocks(e *form.Encoder, m *schema.Message) (blocks, results []jsontext.Value, err error) {
	if d, _ := form.DetailOf(m.Source, e.Keys...); d.Content == form.ShapeValue && len(m.Parts) == 1 && m.Parts[0].Content != nil {
		// A list with more blocks than a message may have parts.
		list, ok := form.ParseArray(jsontext.Value(*m.Parts[0].Content))
		if !ok {
			return nil, nil, errors.New("its content is neither text nor a list")
		}
		return list, nil, nil
	}
	for i := range m.Parts {
		p := &m.Parts[i]
		d, own := form.DetailOf(p.Source, e.Keys...)
		switch {
		case p.Type == schema.PartReasoning && !own:
		case p.Type == schema.PartText && p.Content != nil && *p.Content == "" && emptied(d.Members) == nil:
		case p.Type == schema.PartToolCallResponse:
			results = append(results, e.AnthropicBlock(p))
		default:
			blocks = append(blocks, e.AnthropicBlock(p))
		}
	}
	return blocks, results, e.Err()
}

func chatMessages(conversation []schema.Message) (jsontext.Value, error) {
	e := &form.Encoder{Keys: []string{form.KeyChat}}
	var list []jsontext.Value
	for i := range conversation {
		m := &conversation[i]
		if len(m.Parts) == 0 {
			continue
		}
		_, own := form.DetailOf(m.Source, e.Keys...)
		list = append(list, e.ChatMessages(m, own, func(one *schema.Message) jsontext.Value {
			d, _ := form.DetailOf(one.Source, e.Keys...)
			d.Members = emptied(d.Members)
			return e.Chat(one, &d)
		})...)
		if err := e.Err(); err != nil {
			return nil, fmt.Errorf("message %d: %w", i+1, err)
		}
	}
	return form.Array(list), nil
}

// emptied returns the members without empty ones; nil if none is left.
func emptied(members map[string]jsontext.Value) map[string]jsontext.Value {
	maps.DeleteFunc(members, func(_ string, v jsontext.Value) bool {
		return v.Kind() == 'n' || string(v) == "[]"
	})
	if len(members) == 0 {
		return nil
	}
	return members
}
