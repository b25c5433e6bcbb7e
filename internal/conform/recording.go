package conform

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// ErrRecording is returned for a file that is not a recording: its lines are neither CloudEvents in JSON (waymark
// export --format cloudevents) nor messages (waymark conform --record). Record again.
var ErrRecording = errors.New("not a recording")

// maxLine bounds a line of a recording.
const maxLine = 16 << 20

// recorded is a message in the form of a line of a recording.
type recorded struct {
	Subject string              `json:"subject"`
	At      string              `json:"at,omitzero"`
	Stream  uint64              `json:"stream_sequence,omitzero"`
	Headers map[string][]string `json:"headers,omitzero"`
	// Body, or BodyBase64 if it is not text.
	Body       string `json:"body,omitzero"`
	BodyBase64 []byte `json:"body_base64,omitzero"`
	// Published: it was seen when it was published, and is not from the log.
	Published bool `json:"published,omitzero"`
}

// Recorder writes messages as lines of a recording.
type Recorder struct{ w io.Writer }

// NewRecorder returns a recorder.
func NewRecorder(w io.Writer) *Recorder { return &Recorder{w: w} }

// Log records a message of the log.
func (r *Recorder) Log(m *Message) error { return r.write(m, false) }

// Published records a message seen while it was published: an event with its headers, or a heartbeat.
func (r *Recorder) Published(m *Message) error { return r.write(m, true) }

func (r *Recorder) write(m *Message, published bool) error {
	l := recorded{Subject: m.Subject, Stream: uint64(m.Record.Stream), Headers: m.Record.Header, Published: published}
	if !m.At.IsZero() {
		l.At = schema.FormatTime(m.At)
	}
	if utf8.Valid(m.Record.Body) {
		l.Body = string(m.Record.Body)
	} else {
		l.BodyBase64 = m.Record.Body
	}
	b, err := json.Marshal(&l, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("recording: %w", err)
	}
	_, err = r.w.Write(append(b, '\n'))
	return err
}

// ReadRecording checks the lines of a recording, in order. file is its name in findings.
func (c *Checker) ReadRecording(file string, in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	number := 0
	for lines.Scan() {
		number++
		text := bytes.TrimSpace(lines.Bytes())
		if len(text) == 0 {
			continue
		}
		if err := c.line(file, number, bytes.Clone(text)); err != nil {
			return fmt.Errorf("%s:%d: %w", file, number, err)
		}
	}
	if err := lines.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			return fmt.Errorf("%s:%d: %w: a line has more than %d bytes", file, number+1, ErrRecording, maxLine)
		}
		return fmt.Errorf("reading %s: %w", file, err)
	}
	return nil
}

func (c *Checker) line(file string, number int, text []byte) error {
	if text[0] != '{' {
		return fmt.Errorf("%w: a line is one JSON object", ErrRecording)
	}
	var whole jsontext.Value
	if err := json.Unmarshal(text, &whole); err != nil {
		return fmt.Errorf("%w: %w", ErrRecording, err)
	}
	m := Message{File: file, Line: number}
	var l recorded
	// A CloudEvent has no headers and no body.
	if message := json.Unmarshal(text, &l) == nil && (l.Headers != nil || l.Body != "" || l.BodyBase64 != nil); !message {
		m.Record = schema.NewRecord(c.next(), nil, text)
		c.Add(schema.NoKeys, m) // a recording does not have the server's time of storage
		return nil
	}
	body := l.BodyBase64
	if body == nil {
		body = []byte(l.Body)
	}
	m.Subject = l.Subject
	if at, err := time.Parse(time.RFC3339Nano, l.At); err == nil {
		m.At = at
	}
	switch {
	case strings.HasPrefix(l.Subject, "waymark.heartbeats."):
		m.Record = schema.Record{Body: body}
		c.Heartbeat(m)
	case l.Published:
		m.Record = schema.Record{Header: l.Headers, Body: body}
		c.Wire(m)
	default:
		m.Record = schema.NewRecord(c.next(), l.Headers, body)
		c.Add(schema.NoKeys, m) // a recording does not have the server's time of storage
	}
	return nil
}

// next is the log position of a recorded message, because recordings may omit it, and there may be several.
func (c *Checker) next() schema.StreamSequence {
	c.recorded++
	return c.recorded
}
