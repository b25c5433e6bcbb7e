package transcript

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/form"
	"github.com/waymarkio/waymark/schema"
)

// Sources of a result other than a call's outcome.
const (
	fromMessage    = "message"
	fromTrajectory = "trajectory"
	fromFirst      = "first"
)

// saidDetail is one of several assistant messages in an answer.
type saidDetail struct {
	// Parts counts its parts.
	Parts int `json:"parts"`
	// After counts the other messages between the answer's first message and this one.
	After  int            `json:"after,omitzero"`
	Source jsontext.Value `json:"source,omitzero"`
}

// detail is the rest of a transcript besides text, calls and results: of a message and of its enclosing line. It is
// stored in source{} under the name of the format. All of it may be deleted without losing text, calls or results.
type detail struct {
	form.Detail
	// Line keeps the members of the line around a claude-code message that differ from those of the run's first line,
	// which are the run's own Line. It is not nil on every imported message.
	Line map[string]jsontext.Value `json:"line,omitzero"`
	// LineAbsent are the common members that this line lacks.
	LineAbsent []string `json:"line_absent,omitzero"`
	// Said are the source's assistant messages in an answer, if there are several.
	Said []saidDetail `json:"said,omitzero"`
	// Steps of a swe-agent trajectory that belong to this message, in order.
	Steps []sweStep `json:"steps,omitzero"`
	// Copy: the member named by Field is the same text as the content.
	Copy map[string]string `json:"copy,omitzero"`
	// Run, of a run's end: the document's members that changed since the run was started.
	Run map[string]jsontext.Value `json:"run,omitzero"`
}

func (d *detail) isZero() bool {
	return d.IsZero() && d.Line == nil && len(d.LineAbsent) == 0 && len(d.Said) == 0 && len(d.Steps) == 0 && len(d.Copy) == 0 && d.Run == nil
}

// source returns the stored form; nil if there is nothing to keep.
func (d *detail) source(f Format) jsontext.Value {
	if d.isZero() {
		return nil
	}
	return form.Marshal(map[Format]*detail{f: d})
}

// detailOf reads a format's details from source{}; found is false if there are none.
func detailOf(source jsontext.Value, f Format) (d detail, found bool) {
	found = form.Stored(source, &d, string(f))
	return d, found
}

// keysOfForm are the keys in source{} for details of a format, including those of the model's API.
func keysOfForm(f Format) []string {
	if f == ClaudeCode {
		return []string{string(f), form.KeyAnthropic}
	}
	return []string{string(f)}
}

// decoded is a message of a transcript before ids are assigned.
type decoded struct {
	Message
	d         detail
	calls     []form.Call
	responses []form.Response
	// unrecorded counts the calls or parts of a list that is too long and was kept unchanged.
	unrecorded int
}

func decodedOf(m *form.Message) *decoded {
	return &decoded{Message: Message{Message: m.Message}, d: detail{Detail: m.Detail}, calls: m.Calls, responses: m.Responses, unrecorded: m.Unrecorded}
}

// chatDecoder reads messages in chat-completions form; swe-agent's history entries are such messages with more members.
func chatDecoder(f Format) *form.Decoder {
	return &form.Decoder{Key: string(f), Observations: f == SWEAgent, Full: func(parts []schema.Part, calls []form.Call) bool {
		var l load
		for i := range parts {
			l.part(&parts[i])
		}
		for i := range calls {
			c := &calls[i]
			names := len(c.ID) + len(c.Name)
			l.part(&schema.Part{Source: c.Detail.Source(string(f))})
			l.bytes += names
			l.call(names, len(c.Arguments), 0)
		}
		return l.full()
	}}
}

// chatMessage reads one message, and its time if a collector added one.
func chatMessage(c *form.Decoder, o *form.Object) (*decoded, error) {
	m, err := c.Chat(o)
	if err != nil {
		return nil, err
	}
	d := decodedOf(m)
	for _, field := range []string{"timestamp", "created_at", "created"} {
		if d.At.IsZero() {
			d.At = form.TimeOf(d.d.Members[field])
		}
	}
	return d, nil
}

// maxMember is the largest common member of a session, in bytes.
const maxMember = form.MaxMember

// validIdentifier reports whether the schema accepts s as an identifier.
func validIdentifier(s string) bool {
	if s == "" || len(s) > schema.MaxIdentifier {
		return false
	}
	return schema.Validate(&schema.ToolReturnedData{ToolCallID: s}) == nil
}
