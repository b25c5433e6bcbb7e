package schema

import (
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// BriefBytes bounds each content value in a brief page of records, in bytes of JSON. Larger values are left out.
const BriefBytes = 1 << 10

// maxBriefEvent bounds an event in a brief page: one that is still longer without its large values has no data.
const maxBriefEvent = 16 << 10

// NewRecordView returns a record as a page of records shows it; brief leaves large values out. The caller sets number, epoch and turn.
func NewRecordView(rec *Record, v *Verdict, brief bool) (RecordView, error) {
	view := RecordView{Stream: rec.Stream, Verdict: v.Kind.String(), Reason: v.Reason, Detail: v.Detail}
	if v.Call.ToolCallID != "" {
		call := v.Call
		view.Call = &call
	}
	e := v.Event
	if e == nil {
		return view, nil
	}
	if brief && len(e.Data) > BriefBytes {
		e, view.LeftOut = briefly(e)
	}
	var err error
	view.Event, err = e.EncodeStructured()
	return view, err
}

// Shorten leaves out the data of the event.
func (r *RecordView) Shorten(e *Event) error {
	shown := *e
	shown.Data = nil
	r.LeftOut = []LeftOut{{Size: len(e.Data)}}
	var err error
	r.Event, err = shown.EncodeStructured()
	return err
}

// Decode returns the event of the record; nil if the record is no CloudEvent.
func (r *RecordView) Decode() (*Event, error) {
	if len(r.Event) == 0 {
		return nil, nil //nolint:nilnil // no event is none
	}
	return Decode(map[string][]string{"Content-Type": {ContentTypeStructured}}, r.Event)
}

// briefly returns an event without its large content values, and a list of those.
func briefly(e *Event) (*Event, []LeftOut) {
	shown := *e
	none := func() (*Event, []LeftOut) {
		shown.Data = nil
		return &shown, []LeftOut{{Size: len(e.Data)}}
	}
	data, err := ParseData(e)
	if err != nil || data == nil {
		return none()
	}
	var out []LeftOut
	for _, c := range Contents(data) {
		value, err := c.JSON()
		if err != nil || len(value) <= BriefBytes {
			continue
		}
		empty := jsontext.Value("null")
		if value.Kind() == '"' {
			empty = jsontext.Value(`""`)
		}
		if c.Set(empty) != nil {
			return none()
		}
		out = append(out, LeftOut{Path: c.Path, Size: len(value)})
		if refs := RefsOf(data); refs != nil { // a value that is left out needs no key
			*refs = slices.DeleteFunc(slices.Clone(*refs), func(r Ref) bool { return r.Path == c.Path })
		}
	}
	shown.Data, err = MarshalData(data)
	if err != nil || len(shown.Data) > maxBriefEvent {
		return none()
	}
	return &shown, out
}
