package wire

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/form"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Answer reads the body of a response. Members without a field of their own go to the Source of the answer or of its
// parts.
func (f Form) Answer(response []byte) (publisher.Answer, error) {
	a, err := f.answer(response)
	if err != nil {
		return publisher.Answer{}, fmt.Errorf("%w (%s): %w", ErrResponse, f, err)
	}
	return a, nil
}

func (f Form) answer(response []byte) (a publisher.Answer, err error) {
	if err := form.CheckJSON(response); err != nil {
		return a, err
	}
	o, ok := form.ParseObject(response)
	if !ok {
		return a, errors.New("the body is not an object")
	}
	var m *form.Message
	switch f {
	case Anthropic:
		m, err = anthropicAnswer(o, &a)
	case OpenAIChat:
		m, err = chatAnswer(o, &a)
	case OpenAIResponses:
		m, err = responsesAnswer(o, &a)
	default:
		err = fmt.Errorf("form %.40q is unknown", string(f))
	}
	if err != nil {
		return a, err
	}
	if a.Calls, err = f.calls(m); err != nil {
		return a, err
	}
	m.Source = m.Detail.Source(string(f))
	a.Message = m.Message
	a.ResponseID, _ = o.TakeStr("id")
	a.Model, _ = o.TakeStr("model")
	if v, ok := o.Get("usage"); ok && v.Kind() == '{' {
		o.Take("usage")
		a.Usage = usageOf(v)
	}
	a.Source = []byte((&form.Detail{Members: o.Rest()}).Source(string(f)))
	return a, nil
}

// usageOf reads the counters of a response. Those without a field in [schema.Usage] are kept, too.
func usageOf(v jsontext.Value) *schema.Usage {
	u := form.Usage(v)
	o, _ := form.ParseObject(v)
	for _, name := range []string{
		"input_tokens", "prompt_tokens", "output_tokens", "completion_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "reasoning_output_tokens",
	} {
		o.Take(name)
	}
	if rest := o.Rest(); rest != nil {
		u.Extra = form.Marshal(rest)
	}
	return u
}

// calls are the calls of an answer, each with its part.
func (f Form) calls(m *form.Message) ([]publisher.ToolCall, error) {
	if m.Unrecorded > 0 {
		return nil, fmt.Errorf("the answer has %d parts", m.Unrecorded)
	}
	var calls []publisher.ToolCall
	for i := range m.Calls {
		c := &m.Calls[i]
		id, isText := form.Unquote(c.ID)
		if c.ID != nil && !isText {
			return nil, fmt.Errorf("call %d has the id %.80s, which is not a string", i+1, c.ID)
		}
		name, isText := form.Unquote(c.Name)
		if c.Name != nil && !isText {
			return nil, fmt.Errorf("call %d has the name %.80s, which is not a string", i+1, c.Name)
		}
		p := &m.Parts[c.Part]
		*p = schema.CallPart(id, name)
		p.Source = c.Detail.Source(string(f))
		calls = append(calls, publisher.ToolCall{ID: id, Name: name, Arguments: []byte(c.Arguments)})
	}
	return calls, nil
}

func anthropicAnswer(o *form.Object, a *publisher.Answer) (*form.Message, error) {
	if typ, _ := o.TakeStr("type"); typ != "message" {
		return nil, fmt.Errorf("the body has the type %.40q", typ)
	}
	message := new(form.Object)
	for _, name := range []string{"role", "content"} {
		if v, ok := o.Take(name); ok {
			message.Put(name, v)
		}
	}
	m, err := (&form.Decoder{Key: form.KeyAnthropic}).Anthropic(message, schema.RoleAssistant)
	switch {
	case err != nil:
		return nil, err
	case m.Detail.Role != "" || m.Detail.Content != "":
		return nil, errors.New("it is not an assistant message with a list of blocks")
	}
	switch reason, _ := o.TakeStr("stop_reason"); reason {
	case "":
		return nil, errors.New("it has no stop_reason, so it may be incomplete")
	case "pause_turn":
		return nil, publisher.Permanent(errors.New("a tool of the provider paused the turn (pause_turn), and such turns are not continued"))
	default:
		a.FinishReasons = []string{reason}
	}
	return m, nil
}

func chatAnswer(o *form.Object, a *publisher.Answer) (*form.Message, error) {
	raw, _ := o.Take("choices")
	choices, _ := form.ParseArray(raw)
	if len(choices) != 1 {
		return nil, fmt.Errorf("the response has %d choices, but an answer needs exactly one", len(choices))
	}
	choice, ok := form.ParseObject(choices[0])
	if !ok {
		return nil, errors.New("the choice is not an object")
	}
	message, ok := form.TakeObject(choice, "message")
	if !ok {
		return nil, errors.New("the choice has no message")
	}
	m, err := (&form.Decoder{Key: form.KeyChat}).Chat(message)
	if err != nil {
		return nil, err
	}
	if m.Role != schema.RoleAssistant {
		return nil, fmt.Errorf("the message has the role %.40q", m.Role)
	}
	for _, c := range m.Calls {
		if c.Legacy {
			return nil, errors.New("the message has function_call, the older format without tools")
		}
	}
	if v := m.Detail.Members["tool_calls"]; v != nil && v.Kind() != 'n' && string(v) != "[]" {
		return nil, errors.New("the message has tool_calls that cannot be read")
	}
	if v, there := choice.Get("finish_reason"); there && v.Kind() == 'n' {
		return nil, errors.New("its finish_reason is null, so it may be incomplete")
	}
	if reason, ok := choice.TakeStr("finish_reason"); ok { // servers that imitate OpenAI's API omit it
		a.FinishReasons = []string{reason}
	}
	o.Put("choice", form.Marshal(choice.Rest()))
	return m, nil
}

func responsesAnswer(o *form.Object, a *publisher.Answer) (*form.Message, error) {
	raw, _ := o.Take("output")
	items, ok := form.ParseArray(raw)
	if !ok {
		return nil, errors.New("the response has no output")
	}
	status, _ := o.TakeStr("status")
	switch status {
	case "completed":
		a.FinishReasons = []string{status}
	case "incomplete":
		details, _ := o.Get("incomplete_details")
		reason := status
		if d, ok := form.ParseObject(details); ok {
			if r, ok := d.Str("reason"); ok {
				reason = r
			}
		}
		a.FinishReasons = []string{reason}
	default:
		failure, _ := o.Get("error")
		return nil, fmt.Errorf("the response is %.40q: %.500s", status, failure)
	}
	return (&form.Decoder{Key: form.KeyResponses}).Responses(items), nil
}
