package conform

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

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
	// Event is its name, ID its id, Epoch and Sequence its place; what it does not have is left out.
	Event    string          `json:"event,omitzero"`
	ID       string          `json:"id,omitzero"`
	Epoch    schema.Epoch    `json:"epoch,omitzero"`
	Sequence schema.Sequence `json:"sequence,omitzero"`
	Turn     int32           `json:"turn,omitzero"`
	// Stream is its place in the log, Line that in a recording.
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

// Place says where it was found, in one line.
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

// Report is what a checker found.
type Report struct {
	// Passed: no rule of level must was broken, and every expected scenario was seen.
	Passed bool `json:"passed"`
	// Runs and Events that were judged. Control events are among them.
	Runs   int   `json:"runs"`
	Events int64 `json:"events"`
	Must   int   `json:"must"`
	Should int   `json:"should"`
	// Findings in the order in which they were made.
	Findings []Finding `json:"findings"`
	// Judged counts the rules that what was seen could tell of; NotJudged are the others, with what was missing.
	Judged    int         `json:"judged"`
	NotJudged []NotJudged `json:"not_judged,omitzero"`
	// Scenarios that were asked about.
	Scenarios []Outcome `json:"scenarios,omitzero"`
	// Forgotten counts runs that were let go to bound memory; those of them that go on are not judged any more.
	Forgotten int `json:"forgotten,omitzero"`
}

// NotJudged is a rule of which what was seen tells nothing.
type NotJudged struct {
	Rule string `json:"rule"`
	Why  string `json:"why"`
}

// at begins a finding of an event.
func at(m *Message, run string, e *schema.Event) Finding {
	f := Finding{Run: run, Stream: m.Record.Stream, File: m.File, Line: m.Line}
	if m.File != "" {
		f.Stream = 0 // it is made up
	}
	if e != nil {
		f.ID, f.Epoch, f.Sequence, f.Turn = e.ID, e.Epoch, e.Sequence, e.Turn
		if f.Event = e.Name(); f.Event == "" {
			f.Event = e.Type
		}
	}
	return f
}

// short cuts text from outside.
func short(s string) string {
	if len(s) <= maxText {
		return s
	}
	cut := maxText
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// clock is the text of a time.
func clock(t time.Time) string { return schema.FormatTime(t) }
