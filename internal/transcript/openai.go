package transcript

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/form"
	"github.com/waymarkio/waymark/schema"
)

var errNoMessages = errors.New("no list of messages")

// maxRunSource bounds the source of a run, of its end or of a compaction, in bytes: these events cannot move it to the
// blob store. Further members are counted in the report.
const maxRunSource = 64 << 10

// openAIRun reads one conversation. An error contains the JSON path.
func openAIRun(v jsontext.Value, run *Run, rep *Report) (*Run, error) {
	run.Format = OpenAIChat
	var messages []jsontext.Value
	var o *form.Object
	if list, ok := form.ParseArray(v); ok {
		messages = list
	} else {
		o, ok = form.ParseObject(v)
		if !ok {
			return nil, errNoMessages
		}
		raw, _ := o.Take("messages")
		if messages, ok = form.ParseArray(raw); !ok {
			return nil, at("/messages", errNoMessages)
		}
	}
	b := newBuilder(run, OpenAIChat, rep)
	c := chatDecoder(OpenAIChat)
	if len(messages) == 0 {
		rep.noMessage(run)
	}
	blocks := 0
	for i, raw := range messages {
		if err := rep.stopped(); err != nil {
			return nil, err
		}
		path := fmt.Sprintf("/messages/%d", i)
		entry, ok := form.ParseObject(raw)
		if !ok {
			return nil, at(path, errors.New("the message is not an object"))
		}
		m, err := chatMessage(c, entry)
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
		rep.note("run %s has %s in the form of Anthropic's Messages API, which import does not support: kept unchanged, and not recorded as calls and results",
			run.ID, plural(blocks, "part"))
	}
	if o != nil {
		if model, ok := o.Str("model"); ok {
			run.Model = model
		}
		if v, ok := o.Get("usage"); ok {
			run.End.Usage = chatUsage(v)
		}
		for _, name := range []string{"created_at", "created", "timestamp"} {
			if v, ok := o.Get(name); ok && run.StartedAt.IsZero() {
				run.StartedAt = form.TimeOf(v)
			}
		}
		if id, ok := o.Str("id"); ok && validIdentifier(id) {
			run.ThreadID = id
		}
		run.Source = runSource(o, OpenAIChat, detail{}, rep)
	} else {
		run.Source = (&detail{Detail: form.Detail{Content: form.ShapeList}}).source(OpenAIChat)
	}
	return b.finish(), nil
}

// runSource keeps a document's own members if they are small. It is never nil: an export of the run then knows that
// other members were not in the document.
func runSource(o *form.Object, f Format, d detail, rep *Report) jsontext.Value {
	if d.Members = o.Rest(); d.Members == nil {
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

// chatAnswer reads the data that some collectors add to an assistant message.
func chatAnswer(m *decoded) answer {
	var a answer
	if v, ok := m.d.Members["finish_reason"]; ok {
		if s, ok := form.Unquote(v); ok {
			a.finishReasons = []string{s}
		}
	}
	if v, ok := m.d.Members["usage"]; ok {
		a.usage = chatUsage(v)
	}
	if v, ok := m.d.Members["model"]; ok {
		a.model, _ = form.Unquote(v)
	}
	if v, ok := m.d.Members["response_id"]; ok {
		a.responseID, _ = form.Unquote(v)
	}
	return a
}

// chatUsage reads token counts; nil if there are none.
func chatUsage(v jsontext.Value) *schema.Usage {
	u := form.Usage(v)
	if u == nil || u.IsZero() {
		return nil
	}
	return u
}
