package schema

import (
	"fmt"
	"slices"
	"unicode/utf8"
)

// HandoffCheck is the result of checking a hand-off before it is offered.
type HandoffCheck struct {
	// SizeChars is the number of characters of its text, or the size that its writer states if that is more.
	SizeChars int64 `json:"size_chars"`
	// Warning says that it is longer than [HandoffSizeWarning] characters, and what to do; otherwise it is empty.
	Warning string `json:"warning,omitzero"`
}

// CheckHandoff validates a hand-off before it is offered, and measures it. It returns [*DataError] for one that would
// be refused. One that is too long is valid: it is accepted, and its run is flagged.
func CheckHandoff(d *HandoffOfferedData) (HandoffCheck, error) {
	if err := Validate(d); err != nil {
		return HandoffCheck{}, err
	}
	c := HandoffCheck{SizeChars: d.chars()}
	if d.TooLong() {
		c.Warning = fmt.Sprintf("the hand-off has %d characters, more than %d: say what the next agent must know, and leave the rest in the run",
			c.SizeChars, HandoffSizeWarning)
	}
	return c, nil
}

// ParseHandoff reads a hand-off from a JSON document and validates it. Names are those of handoff.offered, or the same in camelCase
// (referencePattern, filesModified, createdAt, agentId). Errors are of type [*DataError].
func ParseHandoff(document []byte) (*HandoffOfferedData, error) {
	data, err := ParseData(&Event{Type: TypeOf(HandoffOffered), DataContentType: ContentTypeJSON, Data: document})
	if err != nil {
		return nil, err
	}
	offered, ok := data.(*HandoffOfferedData)
	if !ok {
		return nil, &DataError{Event: HandoffOffered, Problem: "is not of this event"}
	}
	return offered, nil
}

// Size is the number of characters of the hand-off's text: its items and its context, without what the run's log
// adds.
func (d *HandoffOfferedData) Size() int64 {
	n := 0
	add := func(list ...string) {
		for _, s := range list {
			n += utf8.RuneCountInString(s)
		}
	}
	for i := range d.Completed {
		c := &d.Completed[i]
		add(c.File, c.Status, c.Notes)
	}
	for i := range d.Remaining {
		r := &d.Remaining[i]
		add(r.File, r.Description, r.ReferencePattern, r.Priority)
	}
	if c := d.Context; c != nil {
		add(c.Decisions...)
		add(c.Patterns...)
		add(c.Issues...)
		add(c.FilesModified...)
	}
	return int64(n)
}

// TooLong reports whether the hand-off is longer than [HandoffSizeWarning] characters, measured or as its writer
// states. Only the writer knows the size of an encrypted one.
func (d *HandoffOfferedData) TooLong() bool { return d.chars() > HandoffSizeWarning }

func (d *HandoffOfferedData) chars() int64 {
	if slices.ContainsFunc(d.Refs, func(r Ref) bool { return r.KeyID != "" }) {
		return d.SizeChars
	}
	return max(d.SizeChars, d.Size())
}
