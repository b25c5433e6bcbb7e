package wire

import (
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/internal/base/form"
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
	var m *form.Answer
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
	a.Message = m.Message
	for _, c := range m.Calls {
		a.Calls = append(a.Calls, publisher.ToolCall{ID: c.ID, Name: c.Name, Arguments: []byte(c.Arguments)})
	}
	a.ResponseID, _ = o.TakeStr("id")
	a.Model, _ = o.TakeStr("model")
	if usage := o["usage"]; usage.Kind() == '{' {
		delete(o, "usage")
		if a.Usage, err = form.Usage(usage); err != nil {
			return a, err
		}
	}
	source, err := (&form.Detail{Members: o}).Source(string(f))
	a.Source = []byte(source)
	return a, err
}

func anthropicAnswer(o form.Object, a *publisher.Answer) (*form.Answer, error) {
	if typ, _ := o.TakeStr("type"); typ != "message" {
		return nil, fmt.Errorf("the body has the type %.40q", typ)
	}
	role, _ := o.TakeStr("role")
	blocks, ok := form.ParseArray(o.Take("content"))
	if role != schema.RoleAssistant || !ok {
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
	return form.Anthropic(blocks)
}

func chatAnswer(o form.Object, a *publisher.Answer) (*form.Answer, error) {
	choices, _ := form.ParseArray(o.Take("choices"))
	if len(choices) != 1 {
		return nil, fmt.Errorf("the response has %d choices, but an answer needs exactly one", len(choices))
	}
	choice, ok := form.ParseObject(choices[0])
	if !ok {
		return nil, errors.New("the choice is not an object")
	}
	message, ok := choice.TakeObject("message")
	if !ok {
		return nil, errors.New("the choice has no message")
	}
	if choice["finish_reason"].Kind() == 'n' {
		return nil, errors.New("its finish_reason is null, so it may be incomplete")
	}
	if reason, ok := choice.TakeStr("finish_reason"); ok { // servers that imitate OpenAI's API omit it
		a.FinishReasons = []string{reason}
	}
	if len(choice) > 0 {
		rest, err := form.Marshal(choice)
		if err != nil {
			return nil, err
		}
		o["choice"] = rest
	}
	return form.Chat(message)
}

func responsesAnswer(o form.Object, a *publisher.Answer) (*form.Answer, error) {
	items, ok := form.ParseArray(o.Take("output"))
	if !ok {
		return nil, errors.New("the response has no output")
	}
	status, _ := o.TakeStr("status")
	switch status {
	case "completed":
		a.FinishReasons = []string{status}
	case "incomplete":
		reason := status
		if details, ok := form.ParseObject(o["incomplete_details"]); ok {
			if r, ok := details.Str("reason"); ok {
				reason = r
			}
		}
		a.FinishReasons = []string{reason}
	default:
		return nil, fmt.Errorf("the response is %.40q: %.500s", status, o["error"])
	}
	return form.Responses(items)
}
