package transcript

import (
	"bytes"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/form"
	"github.com/waymarkio/waymark/schema"
)

// sweStep is a step of a trajectory. Most of what it says is in the history, too, and is not kept twice.
type sweStep struct {
	// Of is the message of the step, from 1, where the run's end has it: the transcript grew.
	Of int `json:"of,omitzero"`
	// Value of a step that is no object.
	Value jsontext.Value `json:"value,omitzero"`
	// Copy names the members whose value a member of the history entry has, or the result of its call.
	Copy map[string]string `json:"copy,omitzero"`
	// History has the members that are lists of history entries: a number is how many entries are those of the history at
	// the same places, a list of one is an entry that is another.
	History map[string][]jsontext.Value `json:"history,omitzero"`
	// Members as they were.
	Members map[string]jsontext.Value `json:"members,omitzero"`
}

// Members of a history entry, of a step, and of a copy that is a call's result.
const (
	fieldThought     = "thought"
	fieldObservation = "observation"
	fieldResponse    = "response"
	copyResult       = "result"
)

// sweAnswer is an assistant's entry of the history.
type sweAnswer struct {
	*decoded
	turn  *Turn
	entry jsontext.Value
	// members of the entry, once they are asked for.
	members *form.Object
}

func (a *sweAnswer) get(name string) jsontext.Value {
	if a.members == nil {
		a.members, _ = form.ParseObject(a.entry)
	}
	v, _ := a.members.Get(name)
	return v
}

// took reports whether a step is of this answer: it has the same action, or the same words where either has none.
func (a *sweAnswer) took(step *form.Object) bool {
	if step == nil {
		return false
	}
	mine, theirs := a.get(form.FieldAction), member(step, form.FieldAction)
	if mine == nil || theirs == nil {
		mine, theirs = a.get("content"), member(step, fieldResponse)
	}
	return mine != nil && bytes.Equal(mine, theirs)
}

func member(o *form.Object, name string) jsontext.Value {
	v, _ := o.Get(name)
	return v
}

// keepSteps puts the steps of the trajectory to the answers that they are of. One that is of none stays with the answer
// before it, so that all keep their order. Without any answer the steps are returned.
func keepSteps(steps []jsontext.Value, said []*sweAnswer, history []jsontext.Value) []sweStep {
	objects := make([]*form.Object, len(steps))
	for i, v := range steps {
		objects[i], _ = form.ParseObject(v)
	}
	entries := make([]jsontext.Value, len(history))
	for i, v := range history {
		entries[i] = form.Compact(v)
	}
	var rest []sweStep
	next := 0
	for i, step := range objects {
		of := max(next-1, 0)
		switch {
		case next == len(said):
		case said[next].took(step):
			of, next = next, next+1
		case i+1 < len(steps) && said[next].took(objects[i+1]):
		default:
			for j := next + 1; j < len(said); j++ {
				if said[j].took(step) {
					of, next = j, j+1
					break
				}
			}
		}
		if len(said) == 0 {
			rest = append(rest, keepStep(steps[i], step, nil, entries))
			continue
		}
		said[of].d.Steps = append(said[of].d.Steps, keepStep(steps[i], step, said[of], entries))
	}
	for _, a := range said {
		if a.d.Steps != nil {
			a.Source = a.d.source(SWEAgent)
		}
	}
	return rest
}

// keepStep keeps one step with the answer a, which may be nil.
func keepStep(v jsontext.Value, step *form.Object, a *sweAnswer, entries []jsontext.Value) sweStep {
	var s sweStep
	if step == nil {
		s.Value = form.Compact(v)
		return s
	}
	for i, name := range step.Names {
		v := form.Compact(step.Values[i])
		if from := a.copied(name, v); from != "" {
			if s.Copy == nil {
				s.Copy = make(map[string]string)
			}
			s.Copy[name] = from
			continue
		}
		if list, ok := entriesOf(v, entries); ok {
			if s.History == nil {
				s.History = make(map[string][]jsontext.Value)
			}
			s.History[name] = list
			continue
		}
		if s.Members == nil {
			s.Members = make(map[string]jsontext.Value)
		}
		s.Members[name] = v
	}
	return s
}

// copied returns where a member of a step is already; empty when it is nowhere.
func (a *sweAnswer) copied(name string, v jsontext.Value) string {
	if a == nil || v.Kind() != '"' {
		return ""
	}
	for _, from := range []string{form.FieldAction, fieldThought, "content"} {
		if bytes.Equal(a.get(from), v) {
			return from
		}
	}
	if name != fieldObservation {
		return ""
	}
	for _, it := range a.turn.source {
		if it.result != nil && len(it.result.ResultSource) > 0 && bytes.Equal(it.result.Result, v) {
			return copyResult
		}
	}
	return ""
}

// entriesOf keeps a list of history entries, such as what the model was asked with. ok is false for a list that repeats
// no entry.
func entriesOf(v jsontext.Value, entries []jsontext.Value) (kept []jsontext.Value, ok bool) {
	list, _ := form.ParseArray(v)
	same := 0
	flush := func() {
		if same > 0 {
			kept = append(kept, jsontext.Value(strconv.Itoa(same)))
			same, ok = 0, true
		}
	}
	for i, e := range list {
		if i < len(entries) && bytes.Equal(form.Compact(e), entries[i]) {
			same++
			continue
		}
		flush()
		kept = append(kept, form.Array([]jsontext.Value{form.Compact(e)}))
	}
	flush()
	return kept, ok
}

// step writes a step of the trajectory again. of is its message, entry what was written of it in the history.
func (x *exporter) step(s *sweStep, of *schema.StateMessage, entry jsontext.Value, history []jsontext.Value) jsontext.Value {
	if s.Value != nil {
		return s.Value
	}
	var o form.Writer
	said, ok := form.ParseObject(entry)
	for _, name := range form.SortedKeys(s.Copy) {
		v := x.observed(of)
		if from := s.Copy[name]; from != copyResult && ok {
			v, _ = said.Get(from)
		}
		if v != nil {
			o.Set(name, v)
		}
	}
	for _, name := range form.SortedKeys(s.History) {
		var list []jsontext.Value
		for _, e := range s.History[name] {
			if one, ok := form.ParseArray(e); ok {
				list = append(list, one...)
				continue
			}
			n, _ := form.Integer(e)
			if from := len(list); n > 0 && int64(from)+n <= int64(len(history)) {
				list = append(list, history[from:from+int(n)]...)
			}
		}
		o.Set(name, form.Array(list))
	}
	o.Members(s.Members)
	return o.Value()
}

// observed is the result that only the trajectory had.
func (x *exporter) observed(of *schema.StateMessage) jsontext.Value {
	if of == nil {
		return nil
	}
	for i := range x.s.Calls {
		c := &x.s.Calls[i]
		if d, _ := detailOf(c.ResultSource, SWEAgent); c.Turn == of.Turn && d.From == fromTrajectory {
			return c.Result
		}
	}
	return nil
}

// withoutSteps is a message without the steps that its source keeps.
func withoutSteps(m *schema.Message) *schema.Message {
	d, _ := detailOf(m.Source, SWEAgent)
	if d.Steps == nil {
		return m
	}
	bare := *m
	d.Steps = nil
	bare.Source = d.source(SWEAgent)
	return &bare
}

// trajectory lists all steps of the run's trajectory, with their messages.
func (r *Run) trajectory() (steps []sweStep) {
	n := 0
	add := func(m *schema.Message) {
		n++
		d, _ := detailOf(m.Source, SWEAgent)
		for _, s := range d.Steps {
			s.Of = n
			steps = append(steps, s)
		}
	}
	for _, s := range r.Steps {
		if s.Message != nil {
			add(&s.Message.Message)
		}
		if s.Turn == nil {
			continue
		}
		for i := range s.Turn.New {
			add(&s.Turn.New[i].Message)
		}
		add(&s.Turn.Answer.Message)
		for _, it := range s.Turn.Items {
			if it.Message != nil {
				add(&it.Message.Message)
			}
		}
	}
	return steps
}
