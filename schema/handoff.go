package schema

import (
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
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

// takeCamelCase moves members with camelCase names, which the hand-offs of other systems have, into our fields.
func (d *HandoffOfferedData) takeCamelCase() error {
	err := takeMembers("", &d.Extra, map[string]alias{
		"handoffId": {"handoff_id", &d.HandoffID}, "nextAgent": {"next_agent", &d.NextAgent}, "createdAt": {"created_at", &d.CreatedAt},
		"agentId": {"agent_id", &d.AgentID}, "sizeChars": {"size_chars", &d.SizeChars},
	})
	for i := range d.Remaining {
		if err == nil {
			r := &d.Remaining[i]
			err = takeMembers(fmt.Sprintf("/remaining/%d", i), &r.Extra, map[string]alias{"referencePattern": {"reference_pattern", &r.ReferencePattern}})
		}
	}
	if c := d.Context; c != nil && err == nil {
		err = takeMembers("/context", &c.Extra, map[string]alias{"filesModified": {"files_modified", &c.FilesModified}})
	}
	return err
}

// alias is the field for another name of a member.
type alias struct {
	name string
	// field is a pointer to a string, an integer or a list of strings.
	field any
}

// takeMembers moves members of extra into their fields.
func takeMembers(path string, extra *jsontext.Value, names map[string]alias) error {
	if len(*extra) == 0 {
		return nil
	}
	var members map[string]jsontext.Value
	if err := json.Unmarshal(*extra, &members); err != nil {
		return dataError(HandoffOffered, err)
	}
	taken := false
	for _, name := range slices.Sorted(maps.Keys(names)) {
		value, ok := members[name]
		if !ok {
			continue
		}
		to := names[name]
		if given(to.field) {
			return &DataError{Event: HandoffOffered, Path: path + "/" + name, Problem: "is given together with " + to.name + ": give one of the two"}
		}
		if err := json.Unmarshal(value, to.field); err != nil {
			wrong := dataError(HandoffOffered, err)
			wrong.Path = path + "/" + name + wrong.Path
			return wrong
		}
		delete(members, name)
		taken = true
	}
	if !taken {
		return nil
	}
	*extra = nil
	if len(members) == 0 {
		return nil
	}
	rest, err := json.Marshal(members, json.Deterministic(true))
	*extra = rest
	return err
}

func given(field any) bool {
	switch f := field.(type) {
	case *string:
		return *f != ""
	case *int64:
		return *f != 0
	case *[]string:
		return len(*f) > 0
	}
	return false
}
