package transcript

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/form"
	"github.com/waymarkio/waymark/schema"
)

// Format names a transcript format.
type Format string

// Formats.
const (
	// Auto recognises the format by the file's content.
	Auto Format = "auto"
	// OpenAIChat is a chat-completions conversation: an object with messages, one per line, or one JSON document, or an
	// array of them.
	OpenAIChat Format = "openai-chat"
	// ClaudeCode is a session of JSON lines, with its folder of sub-agents.
	ClaudeCode Format = "claude-code"
	// SWEAgent is a trajectory file with history, trajectory and info.
	SWEAgent Format = "swe-agent"
)

// Formats lists the formats that can be read and written, without [Auto].
func Formats() []Format { return []Format{OpenAIChat, ClaudeCode, SWEAgent} }

// ParseFormat reads a format's name; the empty name is [Auto].
func ParseFormat(s string) (Format, error) {
	if s == "" || s == string(Auto) {
		return Auto, nil
	}
	if slices.Contains(Formats(), Format(s)) {
		return Format(s), nil
	}
	return "", fmt.Errorf("format %.60q: %w", s, ErrUnknownFormat)
}

// Run is one agent run as described by a transcript.
type Run struct {
	// ID is a valid run id, from --run-id, the conversation or the file.
	ID string
	// Agent is a valid agent name.
	Agent  string
	Format Format
	// Parent of a sub-agent's run; nil for a main thread.
	Parent *schema.Parent
	// ThreadID is the source's id of the conversation, if it has one.
	ThreadID string
	Model    string
	// StartedAt is the first time in the source; zero if there is none.
	StartedAt time.Time
	// Source keeps the source's data about the run as a whole, as in [schema.RunStartedData].
	Source jsontext.Value
	Steps  []Step
	End    End
	// File and Line (from 1) the run was read from.
	File string
	Line int

	// source are the source's steps; Steps are made from them.
	source []Step
}

// End describes how the run ended.
type End struct {
	// Status is completed, failed or cancelled.
	Status  schema.Status
	Summary string
	Output  jsontext.Value
	Error   *schema.Error
	Usage   *schema.Usage
	Source  jsontext.Value
	At      time.Time
}

// Step is a message outside any turn, a compaction or a turn: exactly one field is set.
type Step struct {
	Message    *Message
	Compaction *Compaction
	Turn       *Turn
}

// Message is a message and its time.
type Message struct {
	schema.Message
	At time.Time
}

// Compaction is the point at which the model continued with a summary.
type Compaction struct {
	schema.ContextCompactedData
	At time.Time
}

// Turn is one model call and the tool calls that it requested.
type Turn struct {
	Number int32
	// New messages to the model, before its answer.
	New    []Message
	Answer Answer
	// Items after the answer, in file order: results, and the messages that contain results.
	Items []Item
	// At is the time of the model request; zero if unknown.
	At time.Time

	// source is the source's turn. In a turn of [Run.source] it is the only data.
	source []sourceItem
}

// Answer is a model's answer: one message, and its calls in order.
type Answer struct {
	Message schema.Message
	Calls   []*Call
	// FinishReasons from the source; nil if there are none.
	FinishReasons []string
	ResponseID    string
	Model         string
	// Usage of the model call; nil if the source has none.
	Usage *schema.Usage
	At    time.Time
}

// Item is a message or a result: exactly one field is set.
type Item struct {
	Message *Message
	// Result is the call with this result.
	Result *Call
}

// Call is a tool call with its result.
type Call struct {
	Key  schema.CallKey
	Name string
	// Arguments from the source: a string unchanged, or any other JSON value; nil if absent.
	Arguments jsontext.Value
	Source    jsontext.Value
	// Answered: the source has a result, whose content may be absent (nil).
	Answered     bool
	Result       jsontext.Value
	IsError      *bool
	ResultSource jsontext.Value
	At, ResultAt time.Time

	// rawID is the source's id, by which results find their call; nil if the source has none.
	rawID *string
	// legacy calls are found by name.
	legacy bool
}

// Calls yields the run's calls in order.
func (r *Run) Calls(yield func(*Call) bool) {
	for _, s := range r.Steps {
		if s.Turn == nil {
			continue
		}
		for _, c := range s.Turn.Answer.Calls {
			if !yield(c) {
				return
			}
		}
	}
}

// Turns counts the run's turns.
func (r *Run) Turns() int {
	n := 0
	for _, s := range r.Steps {
		if s.Turn != nil {
			n++
		}
	}
	return n
}

// maxProblems bounds the problems in a report; further ones are counted.
const maxProblems = 1000

// Report describes which parts of a file were read. It is complete once all runs were read.
type Report struct {
	File   string
	Format Format
	// Lines of the file and of its sub-agents' files; 0 for a document.
	Lines int
	// Runs read, including sub-agents.
	Runs     int
	Messages int
	Turns    int
	Calls    int
	// Unanswered counts calls without a result.
	Unanswered  int
	Compactions int
	// Skipped counts the lines that are not messages, by type.
	Skipped map[string]int
	// Problems are the refused parts, by name. At most 1,000 are kept.
	Problems []*Problem
	// MoreProblems counts the problems that were not kept.
	MoreProblems int
	// Dropped counts members that are not kept, by name.
	Dropped map[string]int
	// Replaced counts invalid characters, lone surrogates and invalid UTF-8: each became U+FFFD.
	Replaced int
	// Notes describe decisions: ids made safe, members dropped, characters replaced.
	Notes []string

	// refused lines of each file.
	refused map[string]refusal
	// stop as in [Options].
	stop func() error

	droppedBytes int
	// replacedLine is the first line with a replaced character.
	replacedLine int
}

// stopped is the error that ends the read.
func (r *Report) stopped() error {
	if r.stop == nil {
		return nil
	}
	return r.stop()
}

// refusal counts the refused lines of a file, and has the first one.
type refusal struct {
	lines int
	first string
}

// maxNames bounds the distinct names in a report; further ones are counted as other.
const maxNames = 1000

// counted returns the name under which an item is counted.
func counted(m map[string]int, name string) string {
	if _, known := m[name]; !known && len(m) >= maxNames {
		return "other"
	}
	return name
}

// drop counts a member that is not kept.
func (r *Report) drop(name string, size int) {
	if r.Dropped == nil {
		r.Dropped = make(map[string]int)
	}
	r.Dropped[counted(r.Dropped, clip(name))]++
	r.droppedBytes += size
}

// within drops members beyond a total of maxRunSource bytes. It is for events whose source cannot go to the blob store.
func (r *Report) within(members map[string]jsontext.Value, prefix string) {
	total := 0
	for _, name := range form.SortedKeys(members) {
		n := len(name) + len(members[name])
		if total+n > maxRunSource {
			r.drop(prefix+name, len(members[name]))
			delete(members, name)
			continue
		}
		total += n
	}
}

// text returns the JSON of a line or document, with U+FFFD in place of invalid characters.
func (r *Report) text(b []byte, line int) ([]byte, error) {
	err := form.CheckJSON(b)
	if err == nil {
		return b, nil
	}
	mended, n := form.ReplaceInvalid(b)
	if n == 0 || form.CheckJSON(mended) != nil {
		return nil, err
	}
	if r.Replaced == 0 {
		r.replacedLine = line
	}
	r.Replaced += n
	return mended, nil
}

// close adds the notes about the file as a whole.
func (r *Report) close() {
	if r.Replaced > 0 {
		r.note("lone surrogates or invalid UTF-8 became U+FFFD: %d, the first in line %d", r.Replaced, r.replacedLine)
	}
	if len(r.Dropped) == 0 {
		return
	}
	var b strings.Builder
	for i, name := range form.SortedKeys(r.Dropped) {
		if i == maxNoted {
			fmt.Fprintf(&b, " and %d more", len(r.Dropped)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s (%d)", name, r.Dropped[name])
	}
	r.note("members are not kept, %d bytes together: %s", r.droppedBytes, b.String())
}

// maxNoted bounds the names in one note.
const maxNoted = 40

func (r *Report) problem(line int, path string, err error) {
	r.problemIn(r.File, line, path, err)
}

func (r *Report) problemIn(file string, line int, path string, err error) {
	if line > 0 {
		of := r.refused[file]
		if of.lines++; of.lines == 1 {
			of.first = fmt.Sprintf("line %d: %s", line, err)
		}
		if r.refused == nil {
			r.refused = make(map[string]refusal)
		}
		r.refused[file] = of
	}
	if len(r.Problems) >= maxProblems {
		r.MoreProblems++
		return
	}
	r.Problems = append(r.Problems, &Problem{File: file, Line: line, Path: path, Err: err})
}

func (r *Report) note(format string, args ...any) {
	if len(r.Notes) < maxProblems {
		r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
	}
}

func (r *Report) skip(kind string) { r.skipped(kind, 1) }

func (r *Report) skipped(kind string, n int) {
	if r.Skipped == nil {
		r.Skipped = make(map[string]int)
	}
	r.Skipped[counted(r.Skipped, kind)] += n
}

// noMessage notes a run made from an empty list.
func (r *Report) noMessage(run *Run) {
	r.note("run %s has no message: its transcript is an empty list", run.ID)
}

// count adds a finished run.
func (r *Report) count(run *Run) {
	r.Runs++
	for _, s := range run.source {
		switch {
		case s.Message != nil:
			r.Messages++
		case s.Compaction != nil:
			r.Compactions++
		case s.Turn != nil:
			r.Turns++
			r.Messages += len(s.Turn.New)
			for _, it := range s.Turn.source {
				if it.result == nil {
					r.Messages++
				}
			}
		}
	}
	for c := range run.Calls {
		r.Calls++
		if !c.Answered {
			r.Unanswered++
		}
	}
}
