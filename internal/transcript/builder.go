package transcript

import (
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/form"
	"github.com/waymarkio/waymark/schema"
)

// builder splits a sequence of messages into turns, generates missing call ids and matches results to calls.
type builder struct {
	run    *Run
	format Format
	rep    *Report

	cur     *Turn
	key     string
	number  int32
	pending []Message
	// open are calls without a result, oldest first.
	open []*Call
	// occurrences counts the current turn's calls by id.
	occurrences map[string]int
	last        time.Time
	// odd: an id of a call that is not a string was noted.
	odd bool
}

func newBuilder(run *Run, format Format, rep *Report) *builder {
	return &builder{run: run, format: format, rep: rep}
}

// long notes a message that is too long to be decoded.
func (b *builder) long(m *decoded) {
	if m.unrecorded > 0 {
		b.rep.note("run %s has a message with %d calls or parts, more than fit into one event: they are kept unchanged, and none of its calls is recorded", b.run.ID, m.unrecorded)
	}
}

// answer is a source's data about a model call.
type answer struct {
	finishReasons []string
	responseID    string
	model         string
	usage         *schema.Usage
}

// assistant adds a message of the assistant. Messages with the same key belong to one turn; an empty key begins a new
// one.
func (b *builder) assistant(m *decoded, key string, a answer) *Turn {
	b.see(m.At)
	b.long(m)
	if b.cur == nil || key == "" || key != b.key {
		b.endTurn()
		b.number++
		at := m.At
		if n := len(b.pending); n > 0 && !b.pending[n-1].At.IsZero() {
			at = b.pending[n-1].At
		}
		b.cur = &Turn{Number: b.number, New: b.pending, At: at}
		b.key, b.pending, b.occurrences = key, nil, nil
		b.run.Steps = append(b.run.Steps, Step{Turn: b.cur})
	}
	b.flushInto()
	if b.run.Model == "" {
		b.run.Model = a.model
	}
	said := &said{Message: &m.Message, told: a}
	for i := range m.calls {
		said.calls = append(said.calls, b.call(m, &m.calls[i]))
	}
	m.Source = m.d.source(b.format)
	b.cur.source = append(b.cur.source, sourceItem{said: said})
	return b.cur
}

// call gives a call its key: the source's id if it is usable, otherwise step-<turn>.
func (b *builder) call(m *decoded, p *form.Call) *Call {
	c := &Call{Arguments: p.Arguments, At: m.At, legacy: p.Legacy}
	id, isString := form.Unquote(p.ID)
	if text, ok := idText(p.ID); ok {
		c.rawID = &text
	}
	if p.ID != nil && !isString && !b.odd {
		b.odd = true
		b.rep.note("run %s has tool call ids that are not strings, the first is %s: its call is named after its turn", b.run.ID, clip(string(p.ID)))
	}
	if !isString || !validIdentifier(id) || b.isOpen(id) {
		switch {
		case p.ID != nil:
			p.Detail.ID = p.ID
		case !p.Legacy: // the older form has none
			p.Detail.Lacking("id")
		}
		id = b.stepID()
	}
	if b.occurrences == nil {
		b.occurrences = make(map[string]int)
	}
	b.occurrences[id]++
	c.Key = schema.CallKey{Turn: b.number, ToolCallID: id, Occurrence: b.occurrences[id]}
	c.Name, _ = form.Unquote(p.Name)
	if !validIdentifier(c.Name) {
		if p.Name == nil {
			p.Detail.Lacking("name")
		} else {
			p.Detail.Name = p.Name
		}
		c.Name = "unnamed"
	}
	part := &m.Parts[p.Part]
	part.Type, part.ID, part.Name = schema.PartToolCall, id, c.Name
	if c.Key.Occurrence > 1 {
		part.Occurrence = c.Key.Occurrence
	}
	part.Source = p.Detail.Source(string(b.format))
	b.open = append(b.open, c)
	return c
}

// isOpen reports whether the turn has an open call with the id: a second one would be indistinguishable.
func (b *builder) isOpen(id string) bool {
	return slices.ContainsFunc(b.open, func(c *Call) bool { return c.Key.Turn == b.number && c.Key.ToolCallID == id })
}

func (b *builder) stepID() string {
	id := fmt.Sprintf("step-%d", b.number)
	for i := 2; b.isOpen(id) || b.occurrences[id] > 0; i++ {
		id = fmt.Sprintf("step-%d-%d", b.number, i)
	}
	return id
}

// other adds a message that is not the assistant's. Results of the turn's calls keep the message in the turn; other
// messages wait for the next item.
func (b *builder) other(m *decoded, belongs bool) {
	b.see(m.At)
	b.long(m)
	inTurn := belongs && b.cur != nil
	for i := range m.responses {
		if c := b.response(m, &m.responses[i]); c != nil && b.cur != nil && c.Key.Turn == b.cur.Number {
			inTurn = true
			b.flushInto()
			b.cur.source = append(b.cur.source, sourceItem{result: c})
		} else if c != nil {
			// The result of an earlier turn is recorded there, after the call.
			b.recordLate(c)
		}
	}
	m.Source = m.d.source(b.format)
	if !inTurn {
		b.pending = append(b.pending, m.Message)
		return
	}
	b.flushInto()
	b.cur.source = append(b.cur.source, sourceItem{message: &m.Message})
}

// response finds the call of a result and closes it. Without a call the result stays in its part.
func (b *builder) response(m *decoded, p *form.Response) *Call {
	part := &m.Parts[p.Part]
	part.Type = schema.PartToolCallResponse
	raw, isString := form.Unquote(p.ID)
	text, isText := idText(p.ID)
	i := b.find(p, text, isText)
	if i < 0 {
		part.ID = raw
		if !validIdentifier(raw) {
			part.ID = "unknown"
			if p.ID == nil {
				p.Detail.Lacking("id")
			} else {
				p.Detail.ID = p.ID
			}
		}
		part.Response = p.Content
		p.Detail.From = fromMessage
		if p.IsError != nil {
			p.Detail.IsError = form.Marshal(*p.IsError)
		}
		part.Source = p.Detail.Source(string(b.format))
		return nil
	}
	c := b.open[i]
	b.open = slices.Delete(b.open, i, i+1)
	part.ID = c.Key.ToolCallID
	if c.Key.Occurrence > 1 {
		part.Occurrence = c.Key.Occurrence
	}
	if b.cur == nil || c.Key.Turn != b.cur.Number {
		part.CallTurn = c.Key.Turn
	}
	if p.Legacy == "" && (!isString || raw != part.ID) {
		if p.ID == nil {
			p.Detail.Lacking("id")
		} else {
			p.Detail.ID = p.ID
		}
	}
	part.Source = p.Detail.Source(string(b.format))
	c.Answered, c.Result, c.IsError, c.ResultAt = true, p.Content, p.IsError, m.At
	return c
}

// idText returns an id that is a string or a number as text.
func idText(raw jsontext.Value) (string, bool) {
	if raw.Kind() == '0' {
		return string(form.Compact(raw)), true
	}
	return form.Unquote(raw)
}

// find returns the index of the open call of a result: first in the current turn, in order, then the latest earlier
// one. A result without an id belongs to the turn's first open call.
func (b *builder) find(p *form.Response, raw string, isString bool) int {
	matches := func(c *Call) bool {
		switch {
		case p.Legacy != "":
			return c.legacy && c.Name == p.Legacy
		case isString && c.rawID != nil:
			return *c.rawID == raw
		case isString:
			return c.Key.ToolCallID == raw
		default:
			return b.cur != nil && c.Key.Turn == b.cur.Number
		}
	}
	for i, c := range b.open {
		if b.cur != nil && c.Key.Turn == b.cur.Number && matches(c) {
			return i
		}
	}
	for i, c := range slices.Backward(b.open) {
		if matches(c) {
			return i
		}
	}
	return -1
}

// recordLate adds a result to the turn of its call, after the answer with the call.
func (b *builder) recordLate(c *Call) {
	for _, s := range slices.Backward(b.run.Steps) {
		if s.Turn == nil || s.Turn.Number != c.Key.Turn {
			continue
		}
		at := slices.IndexFunc(s.Turn.source, func(it sourceItem) bool { return it.said != nil && slices.Contains(it.said.calls, c) })
		s.Turn.source = slices.Insert(s.Turn.source, at+1, sourceItem{result: c})
		return
	}
}

// flushInto moves waiting messages into the current turn, because a later item of the turn followed.
func (b *builder) flushInto() {
	for i := range b.pending {
		b.cur.source = append(b.cur.source, sourceItem{message: &b.pending[i]})
	}
	b.pending = nil
}

// endTurn closes the current turn; waiting messages belong to the next one.
func (b *builder) endTurn() { b.cur, b.key = nil, "" }

// compaction ends the turn and puts waiting messages before it.
func (b *builder) compaction(c *Compaction) {
	b.see(c.At)
	b.endTurn()
	b.flushOutside()
	c.ThroughTurn = b.number
	b.run.Steps = append(b.run.Steps, Step{Compaction: c})
}

func (b *builder) flushOutside() {
	for i := range b.pending {
		b.run.Steps = append(b.run.Steps, Step{Message: &b.pending[i]})
	}
	b.pending = nil
}

// finish ends the run: trailing messages are added outside any turn.
func (b *builder) finish() *Run {
	b.endTurn()
	b.flushOutside()
	if b.run.End.Status == "" {
		b.run.End.Status = schema.StatusCompleted
		if n := len(b.open); n > 0 {
			// The agent was stopped before the tools answered.
			b.run.End.Status = schema.StatusCancelled
			b.run.End.Summary = fmt.Sprintf("the transcript ends with %d unanswered tool calls", n)
			if n == 1 {
				b.run.End.Summary = "the transcript ends with an unanswered tool call"
			}
		}
	}
	if b.run.End.At.IsZero() {
		b.run.End.At = b.last
	}
	b.run.source = b.run.Steps
	return b.run.cut(nil)
}

func (b *builder) see(t time.Time) {
	if t.IsZero() {
		return
	}
	if b.run.StartedAt.IsZero() || t.Before(b.run.StartedAt) && len(b.run.Steps) == 0 {
		b.run.StartedAt = t
	}
	b.last = later(b.last, t)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// inline fills calls and responses of a message that is no turn's (a demonstration) into its parts.
func (m *decoded) inline(f Format) {
	for i := range m.calls {
		p := &m.calls[i]
		part := &m.Parts[p.Part]
		part.Type = schema.PartToolCall
		part.ID, part.Name = inlineID(p.ID, &p.Detail), inlineName(p.Name, &p.Detail)
		part.Arguments = p.Arguments
		part.Source = p.Detail.Source(string(f))
	}
	for i := range m.responses {
		p := &m.responses[i]
		part := &m.Parts[p.Part]
		part.Type = schema.PartToolCallResponse
		part.ID, part.Response = inlineID(p.ID, &p.Detail), p.Content
		p.Detail.From = fromMessage
		part.Source = p.Detail.Source(string(f))
	}
	m.calls, m.responses = nil, nil
}

func inlineID(raw jsontext.Value, d *form.Detail) string {
	id, ok := form.Unquote(raw)
	if ok && validIdentifier(id) {
		return id
	}
	if raw == nil {
		d.Lacking("id")
	} else {
		d.ID = raw
	}
	return "unknown"
}

func inlineName(raw jsontext.Value, d *form.Detail) string {
	name, ok := form.Unquote(raw)
	if ok && validIdentifier(name) {
		return name
	}
	if raw == nil {
		d.Lacking("name")
	} else {
		d.Name = raw
	}
	return "unnamed"
}
