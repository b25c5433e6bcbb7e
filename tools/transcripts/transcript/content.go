package transcript

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// message is a message of a file, before its calls and results have found each other.
type message struct {
	schema.Message
	calls   []call
	results []result
	// told is what the file says of the answer: its message and calls are those above.
	told publisher.Answer
}

// call and result are at a part of the message.
type call struct {
	publisher.ToolCall
	part int
}

type result struct {
	publisher.ToolResult
	// id of the call in the file; empty for none.
	id   string
	part int
}

func (m *message) text(s string) { m.Parts = append(m.Parts, schema.Text(s)) }

// call adds a call. No tool runs: the policy pure needs no begin before the result.
func (m *message) call(id, name string, arguments jsontext.Value) {
	m.calls = append(m.calls, call{publisher.ToolCall{ID: id, Name: name, Arguments: []byte(arguments), Replay: schema.ReplayPure}, len(m.Parts)})
	m.Parts = append(m.Parts, schema.Part{})
}

func (m *message) result(id string, content jsontext.Value, isError *bool) {
	m.results = append(m.results, result{publisher.ToolResult{Result: []byte(content), IsError: isError, Time: m.told.Time}, id, len(m.Parts)})
	m.Parts = append(m.Parts, schema.Part{})
}

// block is an element of a message's content.
type block struct {
	Type     string  `json:"type"`
	Text     *string `json:"text"`
	Thinking *string `json:"thinking"`
	// Of a call.
	ID    string         `json:"id"`
	Name  string         `json:"name"`
	Input jsontext.Value `json:"input"`
	// Of a result.
	ToolUseID string         `json:"tool_use_id"`
	Content   jsontext.Value `json:"content"`
	IsError   *bool          `json:"is_error"`
}

// content appends the parts of a content: a string, or a list of blocks.
func (m *message) content(v jsontext.Value) error {
	switch v.Kind() {
	case 0, 'n':
		return nil
	case '[':
	default:
		m.text(textOf(v))
		return nil
	}
	var list []jsontext.Value
	if err := json.Unmarshal(v, &list); err != nil {
		return err
	}
	for _, v := range list {
		var b block
		if v.Kind() == '{' {
			if err := json.Unmarshal(v, &b); err != nil {
				return err
			}
		}
		switch {
		case b.Type == "text" && b.Text != nil:
			m.text(*b.Text)
		case b.Type == "thinking" && b.Thinking != nil:
			m.Parts = append(m.Parts, schema.Reasoning(*b.Thinking))
		case b.Type == "tool_use" && m.Role == schema.RoleAssistant:
			m.call(b.ID, b.Name, b.Input)
		case b.Type == "tool_result" && m.Role != schema.RoleAssistant:
			m.result(b.ToolUseID, b.Content, b.IsError)
		default:
			m.text(textOf(v))
		}
	}
	return nil
}

// textOf is the text of a JSON string, or the JSON of another value.
func textOf(v []byte) string {
	var s string
	if jsontext.Value(v).Kind() == '"' && json.Unmarshal(v, &s) == nil {
		return s
	}
	return string(v)
}

// quoted is a JSON string.
func quoted(s string) jsontext.Value {
	b, err := jsontext.AppendQuote(nil, s)
	if err != nil {
		// s comes from a JSON string, so it is valid UTF-8.
		panic(err)
	}
	return b
}

// member is a member of an object; nil if there is none, or v is no object.
func member(v jsontext.Value, name string) jsontext.Value {
	if v.Kind() != '{' {
		return nil
	}
	var members map[string]jsontext.Value
	if json.Unmarshal(v, &members) != nil {
		return nil
	}
	return members[name]
}

// valuesOf are the JSON values of a file: its lines, or its document.
func valuesOf(b []byte) ([]jsontext.Value, error) {
	b = bytes.TrimPrefix(b, []byte("\ufeff"))
	var values []jsontext.Value
	for d := jsontext.NewDecoder(bytes.NewReader(b)); ; {
		v, err := d.ReadValue()
		if errors.Is(err, io.EOF) {
			return values, nil
		}
		if err != nil {
			line := 1
			if at, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
				line += bytes.Count(b[:at.ByteOffset], []byte("\n"))
			}
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		values = append(values, v.Clone())
	}
}

// identifier reports whether a call may have this id or name.
func identifier(s string) bool {
	return schema.Validate(&schema.ToolCalledData{ToolCallID: s, Name: s}) == nil
}

// safe returns a name if it is a valid run id, else an id made of its valid characters and a hash, so that different
// names stay different.
func safe(name string) string {
	if schema.ValidName(name) {
		return name
	}
	kept := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, name)
	sum := sha256.Sum256([]byte(name))
	kept = strings.Trim(kept[:min(len(kept), schema.MaxName-len("run--")-8)], "-")
	return "run-" + strings.TrimSuffix(kept+"-", "--") + hex.EncodeToString(sum[:4])
}
