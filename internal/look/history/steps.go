package history

import (
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Step is one tool call of a run, from its record.
type Step struct {
	// Number counts the run's calls from 1, in the order in which they were recorded.
	Number int `json:"step"`
	schema.CallKey
	Name string `json:"name"`
	// Arguments, or ArgumentsHash if they are in the blob store.
	Arguments     jsontext.Value `json:"arguments,omitzero"`
	ArgumentsHash string         `json:"arguments_sha256,omitzero"`
	Outcome       schema.Outcome `json:"outcome"`
	Result        jsontext.Value `json:"result,omitzero"`
	ResultHash    string         `json:"result_sha256,omitzero"`
	IsError       bool           `json:"is_error,omitzero"`
	// Error is type and message of a call that failed.
	Error string `json:"error,omitzero"`
}

// Steps are the tool calls of a run.
func Steps(s *schema.State) []Step {
	steps := make([]Step, len(s.Calls))
	for i := range s.Calls {
		c := &s.Calls[i]
		steps[i] = Step{
			Number: i + 1, CallKey: c.CallKey, Name: c.Name, Outcome: c.Outcome, IsError: c.IsError != nil && *c.IsError,
		}
		if len(c.Arguments) > 0 {
			steps[i].Arguments = c.Arguments
		}
		if len(c.Result) > 0 {
			steps[i].Result = c.Result
		}
		if c.Error != nil {
			steps[i].Error = c.Error.Type + ": " + c.Error.Message
		}
		for _, ref := range c.Refs {
			_, hash, err := schema.ParseDataRef(ref.DataRef)
			if err != nil {
				hash = ref.DataRef // it is compared unchanged
			}
			switch ref.Path {
			case "/arguments":
				steps[i].ArgumentsHash = hash
			case "/result":
				steps[i].ResultHash = hash
			}
		}
	}
	return steps
}

// Fields in which two steps can differ.
const (
	FieldName      = "name"
	FieldArguments = "arguments"
	FieldResult    = "result"
	// FieldMissing: one of the two has no such step.
	FieldMissing = "missing"
)

// Comparison says how far two sequences of calls are the same.
type Comparison struct {
	// Same steps from the first on.
	Same int `json:"same_steps"`
	// Steps of each.
	Left  int `json:"left_steps"`
	Right int `json:"right_steps"`
	// Divergence is the first difference; nil for none.
	Divergence *Divergence `json:"divergence,omitzero"`
}

// Divergence is the first step at which two runs differ.
type Divergence struct {
	Step int `json:"step"`
	// Field is name, arguments, result or missing.
	Field string `json:"field"`
	// Left and Right are the two steps; a missing one is nil.
	Left  *Step `json:"left,omitzero"`
	Right *Step `json:"right,omitzero"`
}

// String describes it in one line.
func (d *Divergence) String() string {
	switch {
	case d.Left == nil:
		return fmt.Sprintf("step %d: only the right one goes on, with %s", d.Step, d.Right.Name)
	case d.Right == nil:
		return fmt.Sprintf("step %d: only the left one goes on, with %s", d.Step, d.Left.Name)
	default:
		return fmt.Sprintf("step %d: %s differs", d.Step, d.Field)
	}
}

// Compare finds the first step in which two runs differ.
func Compare(left, right []Step) Comparison {
	c := Comparison{Left: len(left), Right: len(right)}
	for c.Same < min(len(left), len(right)) {
		a, b := &left[c.Same], &right[c.Same]
		if field := differs(a, b); field != "" {
			c.Divergence = &Divergence{Step: c.Same + 1, Field: field, Left: a, Right: b}
			return c
		}
		c.Same++
	}
	switch {
	case len(left) > c.Same:
		c.Divergence = &Divergence{Step: c.Same + 1, Field: FieldMissing, Left: &left[c.Same]}
	case len(right) > c.Same:
		c.Divergence = &Divergence{Step: c.Same + 1, Field: FieldMissing, Right: &right[c.Same]}
	}
	return c
}

// differs is the first field in which two steps differ, or "".
func differs(a, b *Step) string {
	switch {
	case a.Name != b.Name:
		return FieldName
	case a.ArgumentsHash != b.ArgumentsHash || !schema.SameJSON(a.Arguments, b.Arguments):
		return FieldArguments
	case a.Outcome != b.Outcome || a.ResultHash != b.ResultHash || a.IsError != b.IsError || a.Error != b.Error || !schema.SameJSON(a.Result, b.Result):
		return FieldResult
	}
	return ""
}
