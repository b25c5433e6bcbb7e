package transcript

import (
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/form"
	"github.com/waymarkio/waymark/schema"
)

// claude writes a line for each message and each compaction, in order. An answer that came from several lines becomes
// several lines again.
func (x *exporter) claude(w io.Writer) error {
	run, _ := x.runDetail()
	var waiting []saidMessage
	// release writes the messages that no longer wait for other ones, or all of them.
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

// saidMessage is a source message in an answer, and the number of other messages before it.
type saidMessage struct {
	schema.StateMessage
	after int
}

// saidMessages are the source messages of a message: usually the message itself.
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

// around writes the members of the line around a message. An imported line gets its own members again; others get the
// usual members of session lines.
func (x *exporter) around(o *form.Writer, d, run *detail, own bool) {
	for _, name := range form.SortedKeys(run.Line) {
		if _, has := d.Line[name]; !has && !slices.Contains(d.LineAbsent, name) {
			o.Set(name, run.Line[name])
		}
	}
	o.Members(d.Line)
	if own {
		return
	}
	sidechain := x.s.Started != nil && x.s.Started.Parent != nil
	if run.Line["sessionId"] == nil {
		o.Str("sessionId", x.sessionID())
	}
	if run.Line["isSidechain"] == nil {
		o.Set("isSidechain", form.Marshal(sidechain))
	}
	if _, agent, ok := strings.Cut(x.s.Head.Run, "-agent-"); ok && sidechain && run.Line["agentId"] == nil {
		o.Str("agentId", agent)
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
	var o form.Writer
	o.Str("type", "system")
	if !own {
		o.Str("subtype", "compact_boundary")
		o.Str("content", "Conversation compacted")
		if c.Time != "" {
			o.Str("timestamp", c.Time)
		}
	}
	x.around(&o, &d, run, own)
	return o.Value()
}

// claudeLine writes a message with the line around it.
func (x *exporter) claudeLine(m *schema.StateMessage, run *detail) jsontext.Value {
	d, own := detailOf(m.Source, ClaudeCode)
	var o form.Writer
	typ := m.Role
	if typ != schema.RoleAssistant {
		typ = schema.RoleUser
	}
	o.Str("type", typ)
	o.Set("message", x.encoder(m).Anthropic(&m.Message, &d.Detail, typ))
	if m.Role == schema.RoleSystem && !own {
		o.Set("isMeta", jsontext.Value("true"))
	}
	if !own && m.Time != "" {
		o.Str("timestamp", m.Time)
	}
	x.around(&o, &d, run, own)
	return o.Value()
}
