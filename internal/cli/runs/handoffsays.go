package runs

import (
	"fmt"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/schema"
)

// printSaid prints the content of hand-offs, each below its id: done and remaining work, decisions, patterns, issues
// and files.
func printSaid(a *base.App, list []schema.StateHandoff) error {
	for i := range list {
		d := list[i].Offered
		if d == nil {
			continue
		}
		lines := saidLines(d)
		if d.TooLong() {
			lines = append(lines, [2]string{"too long", tooLongText(d)})
		}
		if len(lines) == 0 {
			continue
		}
		if _, err := fmt.Fprintf(a.Stdout, "\n%s\n", output.Printable("hand-off "+list[i].HandoffID)); err != nil {
			return err
		}
		for _, l := range lines {
			if _, err := fmt.Fprintln(a.Stdout, output.Hanging(a.Stdout, fmt.Sprintf("  %-9s  ", l[0]), l[1])); err != nil {
				return err
			}
		}
	}
	return nil
}

// saidLines are the parts of a hand-off, each with its label.
func saidLines(d *schema.HandoffOfferedData) (lines [][2]string) {
	add := func(label string, texts ...string) {
		for _, text := range texts {
			lines = append(lines, [2]string{label, text})
		}
	}
	if shown, ok := encryption.ReadableContent(d).(*schema.HandoffOfferedData); ok {
		d = shown
	}
	for i := range d.Completed {
		c := &d.Completed[i]
		tests := ""
		if t := c.Tests; t != nil {
			tests = fmt.Sprintf("tests: %d passed, %d skipped, %d failed", t.Passed, t.Skipped, t.Failed)
		}
		add("completed", output.Words(c.File, c.Status, tests, c.Notes))
	}
	for i := range d.Remaining {
		r := &d.Remaining[i]
		pattern := ""
		if r.ReferencePattern != "" {
			pattern = "as in " + r.ReferencePattern
		}
		add("remaining", output.Words(r.File, r.Description, pattern, r.Priority))
	}
	if c := d.Context; c != nil {
		add("decision", c.Decisions...)
		add("pattern", c.Patterns...)
		add("issue", c.Issues...)
		add("modified", schema.DistinctPaths(c.FilesModified)...)
	}
	return lines
}

// tooLongText gives the length of a long hand-off.
func tooLongText(d *schema.HandoffOfferedData) string {
	return fmt.Sprintf("%d characters, more than %d", max(d.SizeChars, d.Size()), schema.HandoffSizeWarning)
}

// sizeWarning warns that a hand-off of the run is too long.
func sizeWarning(h *schema.Head) string {
	if !h.SizeWarning {
		return ""
	}
	return fmt.Sprintf("a hand-off has more than %d characters", schema.HandoffSizeWarning)
}
