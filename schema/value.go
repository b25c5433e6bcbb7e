package schema

import (
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// StateSetData sets a value of the application's own state, such as a plan or a list of things to do.
type StateSetData struct {
	// Key of the value. Required.
	Key string `json:"key" check:"required,max=256,text"`
	// Value is any JSON, null included. Required, unless refs name it.
	Value jsontext.Value `json:"value,omitzero" content:"large" check:"required"`
	Refs  []Ref          `json:"refs,omitzero"`
	Extra jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*StateSetData) EventName() string { return StateSet }

// StateDeletedData deletes a value of the application's own state. Deleting a missing key is no error.
type StateDeletedData struct {
	// Key of the value. Required.
	Key   string         `json:"key" check:"required,max=256,text"`
	Extra jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*StateDeletedData) EventName() string { return StateDeleted }

// InitialValue is a value of the application's own initial state.
type InitialValue struct {
	// Key of the value. Required.
	Key string `json:"key" check:"required,max=256,text"`
	// Value is any JSON, null included. Required, unless refs name it.
	Value jsontext.Value `json:"value,omitzero" content:"large" check:"required"`
	Extra jsontext.Value `json:",embed"`
}

// StateValue is a value of the application's own state.
type StateValue struct {
	Key   string         `json:"key"`
	Value jsontext.Value `json:"value,omitzero" content:"large"`
	Refs  []Ref          `json:"refs,omitzero"`
	// EventID, Epoch and Time of the event that set it, and the turn in which it was set; 0 outside any turn.
	EventID string `json:"event_id"`
	Epoch   Epoch  `json:"epoch,omitzero"`
	Turn    int32  `json:"turn,omitzero"`
	Time    string `json:"time,omitzero"`
}

// Value returns the value with a key, or nil.
func (s *State) Value(key string) *StateValue {
	if i, found := s.findValue(key); found {
		return &s.Values[i]
	}
	return nil
}

func (s *State) findValue(key string) (i int, found bool) {
	return slices.BinarySearchFunc(s.Values, key, func(v StateValue, key string) int {
		switch {
		case v.Key < key:
			return -1
		case v.Key > key:
			return 1
		}
		return 0
	})
}

func (s *State) setValue(e *Event, d *StateSetData) {
	v := StateValue{Key: d.Key, Value: d.Value, Refs: d.Refs, EventID: e.ID, Epoch: s.Head.Epoch, Turn: e.Turn, Time: e.Time}
	if i, found := s.findValue(d.Key); found {
		*amend(s, valuesOf, i) = v
	} else {
		insert(s, valuesOf, i, v)
	}
}

func (s *State) deleteValue(key string) {
	if i, found := s.findValue(key); found {
		remove(s, valuesOf, i)
	}
}
