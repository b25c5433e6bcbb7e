package transcript

import (
	"fmt"
	"io"
	"iter"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/form"
	"github.com/waymarkio/waymark/schema"
)

// Export writes a run in a transcript format. It is derived from the state's messages, calls and results. Data from the
// same format comes back JSON-equal. A run of another origin is written in the usual form of the format. Content in the
// blob store must have been loaded before (see the publisher's Hydrate), otherwise Export returns [ErrUnresolvedBlob].
// [ErrEncrypted] names the key of encrypted content.
func Export(w io.Writer, s *schema.State, f Format) error {
	if err := resolved(s, f); err != nil {
		return fmt.Errorf("export run %s: %w", s.Head.Run, err)
	}
	x := &exporter{s: s, f: f, calls: make(map[schema.CallKey]*schema.Call, len(s.Calls))}
	for i := range s.Calls {
		x.calls[s.Calls[i].CallKey] = &s.Calls[i]
	}
	var err error
	switch f {
	case OpenAIChat:
		err = x.openAI(w)
	case ClaudeCode:
		err = x.claude(w)
	case SWEAgent:
		err = x.sweAgent(w)
	default:
		return fmt.Errorf("export run %s as %.60q: %w", s.Head.Run, f, ErrUnknownFormat)
	}
	if err != nil {
		return fmt.Errorf("export run %s: %w", s.Head.Run, err)
	}
	return nil
}

// exporter writes one state in one format.
type exporter struct {
	s     *schema.State
	f     Format
	calls map[schema.CallKey]*schema.Call
}

// callOf finds the call that a part of a message names.
func (x *exporter) callOf(m *schema.StateMessage, p *schema.Part) *schema.Call {
	k := schema.CallKey{Turn: m.Turn, ToolCallID: p.ID, Occurrence: max(p.Occurrence, 1)}
	if p.CallTurn != 0 {
		k.Turn = p.CallTurn
	}
	return x.calls[k]
}

// encoder writes the messages of the format. The outcome of a call comes from the call.
func (x *exporter) encoder(m *schema.StateMessage) *form.Encoder {
	e := &form.Encoder{Keys: keysOfForm(x.f), Reasoning: form.FieldReasoning, Observations: x.f == SWEAgent}
	if x.f == SWEAgent {
		e.Reasoning = fieldThought
	}
	e.Outcome = func(p *schema.Part, d *form.Detail) (response jsontext.Value, isError *bool) {
		response = p.Response
		if d.From == fromMessage && x.f == ClaudeCode {
			return response, nil
		}
		c := x.callOf(m, p)
		if c == nil {
			return response, nil
		}
		isError = c.IsError
		if c.Error != nil {
			if response == nil {
				response = form.Quote(c.Error.Message)
			}
			if isError == nil {
				isError = new(true)
			}
		}
		return response, isError
	}
	return e
}

// chatMessages writes a message in chat form, with the members that duplicate its text.
func (x *exporter) chatMessages(m *schema.StateMessage) []jsontext.Value {
	_, own := detailOf(m.Source, x.f)
	e := x.encoder(m)
	return e.ChatMessages(&m.Message, own || x.runFormat() == x.f, func(one *schema.Message) jsontext.Value {
		d, _ := detailOf(one.Source, x.f)
		return e.Chat(one, &d.Detail, func(o *form.Writer, content []schema.Part) {
			for field, from := range d.Copy {
				if from == "content" && len(content) > 0 && content[0].Content != nil {
					o.Str(field, *content[0].Content)
				}
			}
		})
	})
}

// write writes a value and a line feed.
func write(w io.Writer, v jsontext.Value) error {
	_, err := w.Write(append(v, '\n'))
	return err
}

// openAI writes the conversation as one line.
func (x *exporter) openAI(w io.Writer) error {
	var messages []jsontext.Value
	joined := x.messages()
	for i := range joined {
		messages = append(messages, x.chatMessages(&joined[i])...)
	}
	d, own := x.runDetail()
	if d.Content == form.ShapeList {
		return write(w, form.Array(messages))
	}
	var o form.Writer
	if !own {
		o.Str("id", x.s.Head.Run)
	}
	o.Members(d.Members)
	o.Set("messages", form.Array(messages))
	return write(w, o.Value())
}

// runDetail is the run's data of a document or session in the export's format; own is false for a run of another
// origin.
func (x *exporter) runDetail() (d detail, own bool) {
	if x.s.Started == nil {
		return d, false
	}
	d, own = detailOf(x.s.Started.Source, x.f)
	if x.s.Ended != nil {
		if end, _ := detailOf(x.s.Ended.Source, x.f); end.Run != nil {
			d.Members, d.Absent = end.Run, end.Absent // the transcript grew
			if end.Steps != nil {
				d.Steps = end.Steps
			}
		}
	}
	return d, own
}

// sweAgent writes a trajectory document.
func (x *exporter) sweAgent(w io.Writer) error {
	var history, steps []jsontext.Value
	d, own := x.runDetail()
	joined := x.messages()
	at := make([]int, len(joined))
	for i := range joined {
		at[i] = len(history)
		history = append(history, x.chatMessages(&joined[i])...)
	}
	for i := range d.Steps {
		var of *schema.StateMessage
		var entry jsontext.Value
		if n := d.Steps[i].Of; n > 0 && n <= len(joined) {
			of, entry = &joined[n-1], history[at[n-1]]
		}
		steps = append(steps, x.step(&d.Steps[i], of, entry, history))
	}
	for i := range joined {
		md, _ := detailOf(joined[i].Source, SWEAgent)
		for j := range md.Steps {
			if d.Steps != nil {
				break // the run's own are all
			}
			steps = append(steps, x.step(&md.Steps[j], &joined[i], history[at[i]], history))
		}
	}
	for i := range x.s.Turns {
		if !own {
			steps = append(steps, x.sweStep(x.s.Turns[i].Turn, joined))
		}
	}
	var o form.Writer
	o.Members(d.Members)
	o.Set("history", form.Array(history))
	if d.Members["trajectory"] == nil && !d.Lacks("trajectory") {
		o.Set("trajectory", form.Array(steps))
	}
	if d.Members["info"] == nil && !d.Lacks("info") {
		o.Set("info", x.sweInfo())
	}
	return write(w, o.Value())
}

// sweStep is one step of the trajectory: text, action and observation. Its observation comes from the message.
func (x *exporter) sweStep(turn int32, joined []schema.StateMessage) jsontext.Value {
	var o form.Writer
	action, observation := form.Quote(""), jsontext.Value("null")
	for i := range x.s.Calls {
		c := &x.s.Calls[i]
		if c.Turn != turn {
			continue
		}
		if c.Arguments.Kind() == '"' {
			action = c.Arguments
		} else if c.Arguments != nil {
			action = form.Quote(string(c.Arguments))
		}
		if c.Outcome != schema.OutcomeOpen {
			observation = form.Quote("")
		}
		if c.Result != nil {
			observation = c.Result
		}
		break
	}
	response := ""
	for i := range joined {
		if m := &joined[i]; m.Turn == turn && m.Role == schema.RoleAssistant && m.EventID != "" {
			response = textOf(&m.Message)
			if v := x.actionOf(m); v != nil {
				action = v
			}
			break
		}
	}
	o.Set("action", action)
	o.Set(fieldObservation, observation)
	o.Str(fieldResponse, response)
	return o.Value()
}

// actionOf is the action that the source has in addition to the call.
func (x *exporter) actionOf(m *schema.StateMessage) jsontext.Value {
	d, _ := detailOf(m.Source, SWEAgent)
	return d.Members[form.FieldAction]
}

func (x *exporter) sweInfo() jsontext.Value {
	var o form.Writer
	if e := x.s.Ended; e != nil {
		d, _ := detailOf(e.Source, SWEAgent)
		o.Members(d.Members)
		if d.Members["exit_status"] == nil && x.runFormat() != SWEAgent {
			o.Str("exit_status", e.Status)
		}
		if e.Output != nil {
			o.Set("submission", e.Output)
		}
	}
	return o.Value()
}

// runFormat is the format the run was imported from; empty for others.
func (x *exporter) runFormat() Format {
	if x.s.Started == nil {
		return ""
	}
	return Format(x.s.Started.Labels["format"])
}

// ExportCloudEvents writes records as structured CloudEvents, one JSON object per line. Data stays unchanged byte for
// byte, because ids contain its hash. Records that are not CloudEvents are counted and omitted.
func ExportCloudEvents(w io.Writer, records iter.Seq2[schema.Record, error]) (written, left int, err error) {
	for rec, err := range records {
		if err != nil {
			return written, left, err
		}
		e, err := schema.Decode(rec.Header, rec.Body)
		if err != nil {
			left++
			continue
		}
		b, err := e.EncodeStructured()
		if err != nil {
			return written, left, fmt.Errorf("export event %s: %w", e.ID, err)
		}
		if err := write(w, b); err != nil {
			return written, left, err
		}
		written++
	}
	return written, left, nil
}

// resolved returns an error for content that is in the blob store or encrypted.
func resolved(s *schema.State, f Format) error {
	for i := range s.Messages {
		if err := readable(fmt.Sprintf("message %d", i+1), s.Messages[i].Refs); err != nil {
			return err
		}
	}
	for i := range s.Calls {
		if err := readable(fmt.Sprintf("call %s of turn %d", s.Calls[i].ToolCallID, s.Calls[i].Turn), s.Calls[i].Refs); err != nil {
			return err
		}
	}
	if s.Ended != nil && f == SWEAgent { // the other formats omit the output
		return readable("the end of the run", s.Ended.Refs)
	}
	return nil
}

func readable(what string, refs []schema.Ref) error {
	if i := slices.IndexFunc(refs, func(r schema.Ref) bool { return r.KeyID != "" }); i >= 0 {
		return fmt.Errorf("%s at %s %w with key %s", what, refs[i].Path, ErrEncrypted, refs[i].KeyID)
	}
	if len(refs) > 0 {
		return fmt.Errorf("%s at %s: %w", what, refs[0].Path, ErrUnresolvedBlob)
	}
	return nil
}
