package conform

import (
	"fmt"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// Finding is a breach of a rule by one event.
type Finding struct {
	Rule  string `json:"rule"`
	Level Level  `json:"level"`
	// Text of the rule, Section of the page about it, and Next step.
	Text    string `json:"text"`
	Section string `json:"section"`
	Next    string `json:"next"`

	Run string `json:"run,omitzero"`
	// Event is its name, ID its id, Epoch and Sequence its position; absent values are omitted.
	Event    string          `json:"event,omitzero"`
	ID       string          `json:"id,omitzero"`
	Epoch    schema.Epoch    `json:"epoch,omitzero"`
	Sequence schema.Sequence `json:"sequence,omitzero"`
	Turn     int32           `json:"turn,omitzero"`
	// Stream is its position in the log, Line that in a recording.
	Stream schema.StreamSequence `json:"stream_sequence,omitzero"`
	File   string                `json:"file,omitzero"`
	Line   int                   `json:"line,omitzero"`
	// Field is the attribute (ce-epoch) or the member of the data (/result) in question.
	Field    string `json:"field,omitzero"`
	Expected string `json:"expected"`
	Found    string `json:"found"`
	// More counts further breaches of this rule in this run that are not listed.
	More int `json:"more,omitzero"`
}

// Place returns the position of the finding, in one line.
func (f *Finding) Place() string {
	var b strings.Builder
	if f.File != "" {
		fmt.Fprintf(&b, "%s:%d ", f.File, f.Line)
	}
	if f.Run != "" {
		fmt.Fprintf(&b, "run %s ", f.Run)
	}
	if f.File == "" && f.Stream != 0 {
		fmt.Fprintf(&b, "at %d ", f.Stream)
	}
	switch {
	case f.Sequence != 0:
		fmt.Fprintf(&b, "%d.%d ", f.Epoch, uint64(f.Sequence))
	case f.Epoch != 0:
		fmt.Fprintf(&b, "epoch %d ", f.Epoch)
	}
	if f.Event != "" {
		fmt.Fprintf(&b, "%s ", f.Event)
	}
	if f.Field != "" {
		fmt.Fprintf(&b, "%s ", f.Field)
	}
	return strings.TrimSpace(b.String())
}

// Report is the result of a checker.
type Report struct {
	// Passed: no rule of level must was broken, and every expected scenario was seen.
	Passed bool `json:"passed"`
	// Runs and Events that were checked, including control events.
	Runs   int   `json:"runs"`
	Events int64 `json:"events"`
	Must   int   `json:"must"`
	Should int   `json:"should"`
	// Findings in the order in which they were found.
	Findings []Finding `json:"findings"`
	// Judged counts the rules that the seen messages could test; NotJudged are the others, with the missing input.
	Judged    int         `json:"judged"`
	NotJudged []NotJudged `json:"not_judged,omitzero"`
	// Scenarios that were requested.
	Scenarios []Outcome `json:"scenarios,omitzero"`
	// Forgotten counts runs that were dropped to bound memory; their later events are not checked.
	Forgotten int `json:"forgotten,omitzero"`
}

// NotJudged is a rule that the seen messages could not test.
type NotJudged struct {
	Rule string `json:"rule"`
	Why  string `json:"why"`
}

// at starts a finding about an event.
func at(m *Message, run string, e *schema.Event) Finding {
	f := Finding{Run: run, Stream: m.Record.Stream, File: m.File, Line: m.Line}
	if m.File != "" {
		f.Stream = 0 // it is generated
	}
	if e != nil {
		f.ID, f.Epoch, f.Sequence, f.Turn = e.ID, e.Epoch, e.Sequence, e.Turn
		if f.Event = e.Name(); f.Event == "" {
			f.Event = e.Type
		}
	}
	return f
}
