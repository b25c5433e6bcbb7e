package transcript

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

var (
	errNoRole     = errors.New("the message has no role")
	errNoMessages = errors.New("no list of messages")
)

// maxRunSource bounds the members that the source of a run, of its end or of a compaction keeps, in bytes: these events
// cannot move it to the blob store. Further members are counted in the report.
const maxRunSource = 64 << 10

// openAIRun reads one conversation. An error carries the JSON path.
func openAIRun(v jsontext.Value, run *Run, rep *Report) (*Run, error) {
	run.Format = OpenAIChat
	var messages []jsontext.Value
	var o *object
	if list, ok := parseArray(v); ok {
		messages = list
	} else {
		o, ok = parseObject(v)
		if !ok {
			return nil, errNoMessages
		}
		raw, _ := o.take("messages")
		if messages, ok = parseArray(raw); !ok {
			return nil, at("/messages", errNoMessages)
		}
	}
	b := newBuilder(run, OpenAIChat, rep)
	c := chat{OpenAIChat}
	if len(messages) == 0 {
		rep.noMessage(run)
	}
	blocks := 0
	for i, raw := range messages {
		if err := rep.stopped(); err != nil {
			return nil, err
		}
		path := fmt.Sprintf("/messages/%d", i)
		entry, ok := parseObject(raw)
		if !ok {
			return nil, at(path, errors.New("the message is no object"))
		}
		m, err := c.message(entry)
		if err != nil {
			return nil, at(path, err)
		}
		for j := range m.Parts {
			if t := m.Parts[j].Type; t == "tool_use" || t == "tool_result" {
				blocks++
			}
		}
		if m.Role == schema.RoleAssistant {
			b.assistant(m, "", chatAnswer(m))
		} else {
			b.other(m, m.Role == schema.RoleTool)
		}
	}
	if blocks > 0 {
		rep.note("run %s has %s in the form of Anthropic's Messages API, which is no format of import: kept as they are, and not recorded as calls and results",
			run.ID, plural(blocks, "part"))
	}
	if o != nil {
		if model, ok := o.str("model"); ok {
			run.Model = model
		}
		if v, ok := o.get("usage"); ok {
			run.End.Usage = chatUsage(v)
		}
		for _, name := range []string{"created_at", "created", "timestamp"} {
			if v, ok := o.get(name); ok && run.StartedAt.IsZero() {
				run.StartedAt = timeOf(v)
			}
		}
		if id, ok := o.str("id"); ok && validIdentifier(id) {
			run.ThreadID = id
		}
		run.Source = runSource(o, OpenAIChat, detail{}, rep)
	} else {
		run.Source = (&detail{Content: shapeList}).source(OpenAIChat)
	}
	return b.finish(), nil
}

// runSource keeps a document's own members, as far as they are small. It is never nil: an export of the run then knows
// that what is not in it was not in the document.
func runSource(o *object, f Format, d detail, rep *Report) jsontext.Value {
	if d.Members = o.rest(); d.Members == nil {
		d.Members = make(map[string]jsontext.Value)
	}
	rep.within(d.Members, "")
	return d.source(f)
}

// pathError is an error at a place in a document.
type pathError struct {
	path string
	err  error
}

func (e *pathError) Error() string { return "at " + e.path + ": " + e.err.Error() }
func (e *pathError) Unwrap() error { return e.err }

func at(path string, err error) error { return &pathError{path, err} }

// chatAnswer reads what some collectors add to an assistant message.
func chatAnswer(m *decoded) answer {
	var a answer
	if v, ok := m.d.Members["finish_reason"]; ok {
		if s, ok := unquote(v); ok {
			a.finishReasons = []string{s}
		}
	}
	if v, ok := m.d.Members["usage"]; ok {
		a.usage = chatUsage(v)
	}
	if v, ok := m.d.Members["model"]; ok {
		a.model, _ = unquote(v)
	}
	if v, ok := m.d.Members["response_id"]; ok {
		a.responseID, _ = unquote(v)
	}
	return a
}

// chatUsage reads token counts by the names of either generation of the interface.
func chatUsage(v jsontext.Value) *schema.Usage {
	o, ok := parseObject(v)
	if !ok {
		return nil
	}
	u := new(schema.Usage)
	first := func(names ...string) int64 {
		for _, name := range names {
			if v, ok := o.get(name); ok {
				if n, ok := integer(v); ok && n >= 0 {
					return n
				}
			}
		}
		return 0
	}
	u.InputTokens = first("prompt_tokens", "input_tokens")
	u.OutputTokens = first("completion_tokens", "output_tokens")
	u.CacheReadInputTokens = first("cache_read_input_tokens")
	u.CacheCreationInputTokens = first("cache_creation_input_tokens")
	if d, ok := takeObject(o, "prompt_tokens_details"); ok {
		o = d
		u.CacheReadInputTokens = first("cached_tokens")
	}
	o, _ = parseObject(v)
	if d, ok := takeObject(o, "completion_tokens_details"); ok {
		o = d
		u.ReasoningOutputTokens = first("reasoning_tokens")
	}
	if u.IsZero() {
		return nil
	}
	return u
}
