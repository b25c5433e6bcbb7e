package transcript

import (
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// claude writes a line for each message, and one for each compaction at its place. An answer that was several lines is several lines again.
func (x *exporter) claude(w io.Writer) error {
	run, _ := x.runDetail()
	var waiting []saidMessage
	// release writes what waits for no other message any more, or all of it.
	release := func(all bool) error {
		for len(waiting) > 0 && (all || waiting[0].after <= 0) {
			if err := write(w, x.claudeLine(&waiting[0].StateMessage, &run)); err != nil {
				return err
			}
			waiting = waiting[1:]
		}
		return nil
	}
	joined := x.messages()
	next, own := 0, 0
	for i := 0; i <= len(joined); i++ {
		last := i == len(joined)
		if boundary := next < len(x.s.Compactions) && x.s.Compactions[next].At <= own; boundary || last || joined[i].Role == schema.RoleAssistant {
			if err := release(true); err != nil {
				return err
			}
		}
		for ; next < len(x.s.Compactions) && x.s.Compactions[next].At <= own; next++ {
			if err := write(w, x.claudeBoundary(&x.s.Compactions[next], &run)); err != nil {
				return err
			}
		}
		if last {
			return nil
		}
		said := saidMessages(&joined[i])
		if err := write(w, x.claudeLine(&said[0].StateMessage, &run)); err != nil {
			return err
		}
		if joined[i].EventID != "" { // messages that were made up for results do not count
			own++
			for j := range waiting {
				waiting[j].after--
			}
		}
		waiting = append(waiting, said[1:]...)
		if err := release(false); err != nil {
			return err
		}
	}
	return nil
}

// saidMessage is a message of the source that an answer is made of, and how many other messages go before it.
type saidMessage struct {
	schema.StateMessage
	after int
}

// saidMessages are the messages of the source that a message is made of: mostly itself.
func saidMessages(m *schema.StateMessage) []saidMessage {
	d, _ := detailOf(m.Source, ClaudeCode)
	parts := m.Parts
	list := make([]saidMessage, 0, len(d.Said))
	for _, s := range d.Said {
		if s.Parts < 0 || s.Parts > len(parts) {
			return []saidMessage{{StateMessage: *m}}
		}
		one := saidMessage{StateMessage: *m, after: s.After}
		one.Parts, one.Source = parts[:s.Parts:s.Parts], s.Source
		list, parts = append(list, one), parts[s.Parts:]
	}
	if len(list) == 0 || len(parts) > 0 {
		return []saidMessage{{StateMessage: *m}}
	}
	return list
}

// around writes the members of the line around a message. A line that was imported has its own again; any other has
// what lines of a session have.
func (x *exporter) around(o *writer, d, run *detail, own bool) {
	for _, name := range sortedKeys(run.Line) {
		if _, has := d.Line[name]; !has && !slices.Contains(d.LineAbsent, name) {
			o.set(name, run.Line[name])
		}
	}
	o.members(d.Line)
	if own {
		return
	}
	sidechain := x.s.Started != nil && x.s.Started.Parent != nil
	if run.Line["sessionId"] == nil {
		o.str("sessionId", x.sessionID())
	}
	if run.Line["isSidechain"] == nil {
		o.set("isSidechain", marshalValue(sidechain))
	}
	if _, agent, ok := strings.Cut(x.s.Head.Run, "-agent-"); ok && sidechain && run.Line["agentId"] == nil {
		o.str("agentId", agent)
	}
}

func (x *exporter) sessionID() string {
	if x.s.Started != nil && x.s.Started.ThreadID != "" {
		return x.s.Started.ThreadID
	}
	return x.s.Head.Run
}

func (x *exporter) claudeBoundary(c *schema.StateCompaction, run *detail) jsontext.Value {
	d, own := detailOf(c.Source, ClaudeCode)
	var o writer
	o.str("type", "system")
	if !own {
		o.str("subtype", "compact_boundary")
		o.str("content", "Conversation compacted")
		if c.Time != "" {
			o.str("timestamp", c.Time)
		}
	}
	x.around(&o, &d, run, own)
	return o.value()
}

// claudeLine writes a message with the line around it.
func (x *exporter) claudeLine(m *schema.StateMessage, run *detail) jsontext.Value {
	d, own := detailOf(m.Source, ClaudeCode)
	var o writer
	typ := m.Role
	if typ != schema.RoleAssistant {
		typ = schema.RoleUser
	}
	o.str("type", typ)
	o.set("message", x.claudeMessage(m, &d, typ))
	if m.Role == schema.RoleSystem && !own {
		o.set("isMeta", jsontext.Value("true"))
	}
	if !own && m.Time != "" {
		o.str("timestamp", m.Time)
	}
	x.around(&o, &d, run, own)
	return o.value()
}

func (x *exporter) claudeMessage(m *schema.StateMessage, d *detail, typ string) jsontext.Value {
	var o writer
	switch {
	case d.Role != "":
		o.str("role", d.Role)
	case !d.lacks("role"):
		o.str("role", typ)
	}
	o.content(d.Content, naturalClaudeShape(typ, m.Parts), m.Parts, func(p *schema.Part) jsontext.Value { return x.claudeBlock(m, p) })
	o.members(d.Members)
	return o.value()
}

// claudeBlock writes one block of a content list.
func (x *exporter) claudeBlock(m *schema.StateMessage, p *schema.Part) jsontext.Value {
	d, _ := detailOf(p.Source, ClaudeCode)
	if d.JSON && p.Content != nil {
		return jsontext.Value(*p.Content)
	}
	var o, inner writer
	content := func(name string) {
		if p.Content != nil {
			o.str(name, *p.Content)
		}
	}
	switch p.Type {
	case schema.PartReasoning:
		if d.Type != "" {
			o.str("type", d.Type)
		} else {
			o.str("type", "thinking")
			content("thinking")
		}
	case schema.PartToolCall:
		o.str("type", "tool_use")
		writeID(&o, "id", p.ID, &d)
		writeName(&o, p.Name, &d)
		if !d.lacks("input") {
			o.set("input", inputOf(p.Arguments, &d))
		}
	case schema.PartToolCallResponse:
		x.claudeResult(&o, m, p, &d)
	case schema.PartBlob, schema.PartURI:
		kind := "image"
		if p.Modality == "document" {
			kind = p.Modality
		}
		o.str("type", kind)
		if p.Type == schema.PartBlob {
			inner.str("type", "base64")
			inner.str("media_type", p.MimeType)
			if p.Content != nil {
				inner.str("data", *p.Content)
			}
		} else {
			inner.str("type", "url")
			inner.str("url", p.URI)
		}
		inner.members(d.Inner)
		o.set("source", inner.value())
	default:
		o.str("type", "text")
		content("text")
	}
	o.members(d.Members)
	return o.value()
}

// inputOf is an object; the text of another format's arguments is read as one where it is one.
func inputOf(args jsontext.Value, d *detail) jsontext.Value {
	if args.Kind() == '{' || d.Content != "" {
		return orNull(args)
	}
	if s, ok := unquote(args); ok {
		if v := jsontext.Value(s); v.Kind() == '{' && checkJSON(v) == nil {
			return compact(v)
		}
	}
	var o writer
	if args != nil {
		o.set("arguments", args)
	}
	return o.value()
}

func (x *exporter) claudeResult(o *writer, m *schema.StateMessage, p *schema.Part, d *detail) {
	o.str("type", "tool_result")
	writeID(o, "tool_use_id", p.ID, d)
	v := p.Response
	var call *schema.Call
	if d.From != fromMessage {
		call = x.callOf(m, p)
	}
	failed := call != nil && call.Error != nil
	if v == nil && failed {
		v = quote(call.Error.Message)
	}
	switch {
	case d.lacks("content"):
	case d.Content == shapeNull:
		o.set("content", jsontext.Value("null"))
	case v == nil, v.Kind() == 'n' && d.Content == "":
		o.str("content", "")
	case v.Kind() == '"', v.Kind() == '[', d.Content == shapeValue:
		o.set("content", v)
	default:
		o.str("content", string(v))
	}
	switch {
	case d.IsError != nil:
		o.set("is_error", d.IsError)
	case call != nil && call.IsError != nil:
		o.set("is_error", marshalValue(*call.IsError))
	case failed:
		o.set("is_error", jsontext.Value("true"))
	}
}
