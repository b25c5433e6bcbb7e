package worker

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/adapter/session"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

const (
	// Protocol is the version of the lines.
	Protocol = 1
	// MaxLine bounds a line in bytes, as publisher.Config.MaxBlob bounds a field.
	MaxLine = 64 << 20
	// shownLine is how much of a line an error shows.
	shownLine = 120
	// stopped is the type of the error by which a program leaves a request without an outcome.
	stopped = "stopped"
)

// Hello is the first line of a program: the agent that it is.
type Hello struct {
	Protocol int    `json:"protocol"`
	Agent    string `json:"agent"`
	// OwnLoop: the program decides what is done next, and gets whole runs instead of requests for answers.
	OwnLoop bool `json:"own_loop,omitzero"`
	// The rest is that of publisher.Loop, for a program without a loop of its own.
	System         string           `json:"system,omitzero"`
	Tools          []Tool           `json:"tools,omitzero"`
	Complete       string           `json:"complete,omitzero"`
	Chat           bool             `json:"chat,omitzero"`
	MaxTurns       int32            `json:"max_turns,omitzero"`
	MaxTokens      int64            `json:"max_tokens,omitzero"`
	MaxTimeMS      int64            `json:"max_time_ms,omitzero"`
	ModelTimeoutMS int64            `json:"model_timeout_ms,omitzero"`
	Drift          schema.DriftRule `json:"drift,omitzero"`
	// Build of the program; see publisher.Config.Build.
	Build string `json:"build,omitzero"`
}

// Tool is a tool of a program.
type Tool struct {
	Name        string         `json:"name"`
	Description string         `json:"description,omitzero"`
	Parameters  jsontext.Value `json:"parameters,omitzero"`
	Replay      schema.Replay  `json:"replay,omitzero"`
	// Ask is the question to a person before each call; empty for none.
	Ask           string `json:"ask,omitzero"`
	SideEffect    string `json:"side_effect,omitzero"`
	VerifySubject string `json:"verify_subject,omitzero"`
	Version       string `json:"version,omitzero"`
	TimeoutMS     int64  `json:"timeout_ms,omitzero"`
	Concurrent    bool   `json:"concurrent,omitzero"`
}

// text is the hello as JSON: each start of the program must say the same.
func (h *Hello) text() string {
	text, _ := json.Marshal(h, json.Deterministic(true)) // it was read from JSON
	return string(text)
}

// request is a line to the program that it must answer.
type request struct {
	ID        int64            `json:"id"`
	Do        string           `json:"do"`
	Run       string           `json:"run"`
	Turn      int32            `json:"turn,omitzero"`
	Epoch     schema.Epoch     `json:"epoch,omitzero"`
	Messages  []schema.Message `json:"messages,omitempty"`
	Limit     string           `json:"limit,omitzero"`
	Name      string           `json:"name,omitzero"`
	Arguments jsontext.Value   `json:"arguments,omitzero"`
	Key       string           `json:"key,omitzero"`
	Attempt   int              `json:"attempt,omitzero"`
	// Begin: the tool may begin only after an exchange of begin and go.
	Begin bool   `json:"begin,omitzero"`
	Task  string `json:"task,omitzero"`
}

// told is a line to the program about one of its requests, or about one of ours.
type told struct {
	ID       any            `json:"id,omitzero"`
	Go       bool           `json:"go,omitzero"`
	WithinMS int64          `json:"within_ms,omitzero"`
	Key      string         `json:"key,omitzero"`
	Epoch    schema.Epoch   `json:"epoch,omitzero"`
	Attempt  int            `json:"attempt,omitzero"`
	Result   jsontext.Value `json:"result,omitzero"`
	IsError  *bool          `json:"is_error,omitzero"`
	Recorded bool           `json:"recorded,omitzero"`
	// Error of a call that failed, with its Type, or of a request that was refused.
	Error string `json:"error,omitzero"`
	Type  string `json:"type,omitzero"`
	// Stop: leave the run, without an outcome: it waits, or another executor has it. Held has the commands for a person.
	Stop    string         `json:"stop,omitzero"`
	Held    string         `json:"held,omitzero"`
	Payload jsontext.Value `json:"payload,omitzero"`
	Value   jsontext.Value `json:"value,omitzero"`
	Signals []signal       `json:"signals,omitzero"`
}

// signal is a signal as a program gets it.
type signal struct {
	ID      string         `json:"id"`
	Name    string         `json:"name"`
	From    string         `json:"from,omitzero"`
	Payload jsontext.Value `json:"payload,omitzero"`
}

// call is a call that a model requests.
type call struct {
	ID        string         `json:"id,omitzero"`
	Name      string         `json:"name"`
	Arguments jsontext.Value `json:"arguments,omitzero"`
}

// said is a line of the program: its hello, an answer (its id is a number), or a request of its own (a string).
type said struct {
	Hello *Hello         `json:"hello,omitzero"`
	ID    jsontext.Value `json:"id,omitzero"`

	// Answers.
	Begin         bool            `json:"begin,omitzero"`
	Text          string          `json:"text,omitzero"`
	Message       *schema.Message `json:"message,omitzero"`
	Calls         []call          `json:"calls,omitzero"`
	Usage         *schema.Usage   `json:"usage,omitzero"`
	Model         string          `json:"model,omitzero"`
	ResponseID    string          `json:"response_id,omitzero"`
	FinishReasons []string        `json:"finish_reasons,omitzero"`
	Result        jsontext.Value  `json:"result,omitzero"`
	IsError       *bool           `json:"is_error,omitzero"`
	Outcome       string          `json:"outcome,omitzero"`
	Output        jsontext.Value  `json:"output,omitzero"`
	Summary       string          `json:"summary,omitzero"`
	Error         string          `json:"error,omitzero"`
	Type          string          `json:"type,omitzero"`
	Retryable     bool            `json:"retryable,omitzero"`
	Permanent     bool            `json:"permanent,omitzero"`
	RetryAt       time.Time       `json:"retry_at,omitzero"`

	// Requests of a program with its own loop.
	Do             string           `json:"do,omitzero"`
	Run            string           `json:"run,omitzero"`
	Messages       []schema.Message `json:"messages,omitempty"`
	Call           string           `json:"call,omitzero"`
	Name           string           `json:"name,omitzero"`
	Arguments      jsontext.Value   `json:"arguments,omitzero"`
	Replay         schema.Replay    `json:"replay,omitzero"`
	SideEffect     string           `json:"side_effect,omitzero"`
	Question       string           `json:"question,omitzero"`
	ResponseSchema jsontext.Value   `json:"response_schema,omitzero"`
	Key            string           `json:"key,omitzero"`
	Value          jsontext.Value   `json:"value,omitzero"`
	Wait           bool             `json:"wait,omitzero"`
	Signals        []string         `json:"signals,omitzero"`
}

// lines reads the lines of a program.
type lines struct {
	from *bufio.Reader
	n    int
}

// next reads a line. The error names the line and, where the JSON is not a protocol line, the member.
func (l *lines) next() (*said, error) {
	var line []byte
	for {
		part, err := l.from.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > MaxLine:
			return nil, fmt.Errorf("line %d of the program is longer than %d bytes", l.n+1, MaxLine)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && (len(line) == 0 || !errors.Is(err, io.EOF)):
			return nil, err //nolint:wrapcheck // the end of the pipe
		}
		l.n++
		if line = bytes.TrimSpace(line); len(line) > 0 {
			break
		}
	}
	m := new(said)
	if err := json.Unmarshal(session.Clean(line), m, json.RejectUnknownMembers(true)); err != nil {
		shown := line[:min(len(line), shownLine)]
		if jsontext.Value(line).IsValid() {
			wrong := schema.DataErrorOf("", err)
			return nil, fmt.Errorf("line %d of the program is not a protocol line: %s %s: %q", l.n, cmp.Or(wrong.Path, "it"), wrong.Problem, shown)
		}
		return nil, fmt.Errorf("line %d of the program's standard output is not JSON: %q; write logs to standard error", l.n, shown)
	}
	return m, nil
}

// number returns the id of a request of ours; 0 if the line is not about one.
func (m *said) number() int64 {
	if m.ID.Kind() != '0' {
		return 0
	}
	n, _ := strconv.ParseInt(string(m.ID), 10, 64) // another number is not a request of ours
	return n
}

// text returns the id of a request of the program; empty if the line is not about one.
func (m *said) text() string {
	var id string
	if m.ID.Kind() == '"' {
		_ = json.Unmarshal(m.ID, &id) // it is a string
	}
	return id
}

// failure is the error that the program reports; nil for none. It is publisher.ErrLost if the program has no outcome.
func (m *said) failure() error {
	if m.Error == "" && m.RetryAt.IsZero() {
		return nil
	}
	err := error(session.Failure{Type: cmp.Or(m.Type, "error"), Message: cmp.Or(m.Error, "the program asks for another try"), Retryable: m.Retryable})
	switch {
	case m.Type == stopped:
		return fmt.Errorf("%w: the program left it: %s", publisher.ErrLost, m.Error)
	case !m.RetryAt.IsZero():
		return publisher.RetryAt(err, m.RetryAt)
	case m.Permanent:
		return publisher.Permanent(err)
	case m.Retryable:
		return publisher.Retryable(err)
	}
	return err
}

// answer is the answer of a program's model.
func (m *said) answer() publisher.Answer {
	a := publisher.Answer{Usage: m.Usage, Model: m.Model, ResponseID: m.ResponseID, FinishReasons: m.FinishReasons}
	if m.Message != nil {
		a.Message = *m.Message
	}
	if m.Text != "" {
		a.Message.Parts = append(slices.Clone(a.Message.Parts), schema.Text(m.Text))
	}
	for _, c := range m.Calls {
		a.Calls = append(a.Calls, publisher.ToolCall{ID: c.ID, Name: c.Name, Arguments: []byte(c.Arguments)})
	}
	return a
}

// object is recorded arguments as an object, also if the model gave them as a string.
func object(arguments []byte) jsontext.Value {
	var text string
	if v := jsontext.Value(arguments); v.Kind() == '"' && json.Unmarshal(v, &text) == nil {
		if inner := jsontext.Value(text); inner.IsValid() {
			return inner
		}
	}
	return arguments
}
