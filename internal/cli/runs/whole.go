package runs

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/schema"
)

// printWhole prints the conversation in full: each call with its arguments and its outcome. A result that is in no
// message comes after the message with the call, and a call that is in no message comes at the end.
func printWhole(a *base.App, s *schema.State) error {
	width := output.WidthOf(a.Stdout)
	messages, named := s.JoinedCalls()
	asked, answered := make(map[*schema.Call]bool), make(map[*schema.Call]bool)
	for i := range messages {
		for j, c := range named[i] {
			if c != nil {
				asked[c], answered[c] = true, answered[c] || messages[i].Parts[j].Type == schema.PartToolCallResponse
			}
		}
	}
	var b strings.Builder
	for i, m := range messages {
		m.Message = encryption.ReadableValue(m.Message, m.Refs)
		head := fmt.Sprintf("message %d, %s", i+1, m.Role)
		if m.Turn > 0 {
			head = fmt.Sprintf("message %d, turn %d, %s", i+1, m.Turn, m.Role)
		}
		b.WriteString(output.Printable(head) + "\n")
		m.Parts = slices.Clone(m.Parts)
		for j, c := range named[i] {
			if c != nil {
				hideCall(&m.Parts[j], c)
			}
		}
		for j := range m.Parts {
			b.WriteString(partWhole(&m.Parts[j], width))
		}
		for _, c := range named[i] {
			if c != nil && !answered[c] {
				answered[c] = true // a message may name a call twice
				b.WriteString(outcomeWhole(c, width))
			}
		}
	}
	for i := range s.Calls {
		if c := &s.Calls[i]; !asked[c] {
			b.WriteString(output.Printable(fmt.Sprintf("call %s of turn %d, %s", c.ToolCallID, c.Turn, c.Name)) + "\n")
			b.WriteString(valueWhole(c.Arguments, c.Refs, "/arguments"))
			b.WriteString(outcomeWhole(c, width))
		}
	}
	if _, err := fmt.Fprint(a.Stdout, b.String()); err != nil {
		return err
	}
	return printValues(a, s.Values)
}

// hideCall puts the key of a call's encrypted arguments, result or error into the part that would show them.
func hideCall(p *schema.Part, c *schema.Call) {
	text := func(key string) jsontext.Value {
		b, err := json.Marshal(encryption.Placeholder(key))
		if err != nil {
			return nil // the key's name is not UTF-8
		}
		return b
	}
	switch key := encryption.KeyOf(c.Refs, "/arguments"); {
	case p.Type == schema.PartToolCall && key != "" && bytes.Equal(p.Arguments, c.Arguments):
		p.Arguments = text(key)
	case p.Type == schema.PartToolCallResponse && c.Error != nil:
		if key := encryption.KeyOf(c.Refs, "/error/message"); key != "" {
			p.Response = text(key)
		}
	case p.Type == schema.PartToolCallResponse:
		if key := encryption.KeyOf(c.Refs, "/result"); key != "" && bytes.Equal(p.Response, c.Result) {
			p.Response = text(key)
		}
	}
}

// outcomeWhole is the outcome of a call as a block.
func outcomeWhole(c *schema.Call, width int) string {
	if c.Outcome == schema.OutcomeOpen {
		return output.Printable("  no outcome of "+c.ToolCallID) + "\n"
	}
	text := output.Printable("  "+string(c.Outcome)+" "+c.ToolCallID) + "\n"
	if c.Error != nil {
		text += output.Wrapped(c.Error.Type+": "+encryption.ReadableField(c.Error.Message, c.Refs, "/error/message"), width)
	}
	return text + valueWhole(c.Result, c.Refs, "/result")
}

// valueWhole is a JSON value of a call, as a block.
func valueWhole(v jsontext.Value, refs []schema.Ref, path string) string {
	if encryption.KeyOf(refs, path) != "" {
		return "  " + encryption.ReadableField("", refs, path) + "\n"
	}
	return output.Indented(v)
}

// partWhole is a part of a message as a block.
func partWhole(p *schema.Part, width int) string {
	label := ""
	switch p.Type {
	case schema.PartText:
	case schema.PartToolCall:
		label = "  calls " + p.Name + ", " + p.ID
	case schema.PartToolCallResponse:
		label = "  result of " + p.ID
		if p.IsError {
			label += ", an error"
		}
	default:
		label = "  " + output.Words(p.Type, p.Modality, p.MimeType, p.URI, p.FileID)
	}
	var b strings.Builder
	if label != "" {
		b.WriteString(output.Printable(label) + "\n")
	}
	if p.Content != nil {
		b.WriteString(output.Wrapped(*p.Content, width))
	}
	b.WriteString(output.Indented(p.Arguments))
	b.WriteString(output.Indented(p.Response))
	return b.String()
}
