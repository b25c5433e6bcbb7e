package runs

import (
	"fmt"
	"strings"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/encrypted"
	"github.com/waymarkio/waymark/schema"
)

// printWhole prints the conversation with nothing left out: each call with its arguments and its result, where the conversation has it.
func printWhole(a *base.App, s *schema.State) error {
	width := output.WidthOf(a.Stdout)
	var b strings.Builder
	for i, m := range s.Joined() {
		m.Message = encrypted.Value(m.Message, m.Refs)
		head := fmt.Sprintf("message %d, %s", i+1, m.Role)
		if m.Turn > 0 {
			head = fmt.Sprintf("message %d, turn %d, %s", i+1, m.Turn, m.Role)
		}
		b.WriteString(output.Printable(head) + "\n")
		for j := range m.Parts {
			b.WriteString(partWhole(&m.Parts[j], width))
		}
	}
	if _, err := fmt.Fprint(a.Stdout, b.String()); err != nil {
		return err
	}
	return printValues(a, s.Values)
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
	b.WriteString(output.Indented(p.Arguments, width))
	b.WriteString(output.Indented(p.Response, width))
	return b.String()
}
