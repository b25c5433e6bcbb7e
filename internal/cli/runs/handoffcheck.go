package runs

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/schema"
)

// maxHandoffFile bounds a hand-off that is read from a file: an event cannot be larger.
const maxHandoffFile = 512 << 10

type handoffCheckCmd struct {
	File string `arg:"" placeholder:"FILE" help:"Hand-off as JSON; - is standard input."`
}

// Help is the text below the flags.
func (handoffCheckCmd) Help() string {
	return `The file has the data of handoff.offered (docs/events.md). More than 4,000 characters cause a warning. It needs no server.

Example:
  my-agent --summary | waymark handoff check -`
}

// handoffChecked is the JSON output of handoff check.
type handoffChecked struct {
	schema.HandoffCheck
	Completed int `json:"completed"`
	Remaining int `json:"remaining"`
	// Files are the modified files, each once.
	Files int `json:"files_modified"`
}

// Run checks a hand-off.
func (c handoffCheckCmd) Run(_ context.Context, a *base.App) error {
	document, err := c.read(a)
	if err != nil {
		return err
	}
	d, err := schema.ParseHandoff(document)
	if wrong, ok := errors.AsType[*schema.DataError](err); ok {
		at := wrong.Path
		if at == "" {
			at = "/"
		}
		return failure.New(failure.Usage, "the fields of a hand-off are in docs/events.md and schema/jsonschema/handoff.offered.json", "%s at %s: %s", fileNamed(c.File), at, wrong.Problem)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", fileNamed(c.File), err)
	}
	check, err := schema.CheckHandoff(d)
	if err != nil {
		return fmt.Errorf("%s: %w", fileNamed(c.File), err)
	}
	checked := handoffChecked{HandoffCheck: check, Completed: len(d.Completed), Remaining: len(d.Remaining)}
	if d.Context != nil {
		checked.Files = len(schema.DistinctPaths(d.Context.FilesModified))
	}
	if a.JSON {
		return output.Document(a.Stdout, checked)
	}
	if err := output.Fields(a.Stdout, "valid", fileNamed(c.File), "characters", output.Number(check.SizeChars), "completed", output.Number(int64(checked.Completed)),
		"remaining", output.Number(int64(checked.Remaining)), "modified files", output.Number(int64(checked.Files))); err != nil {
		return err
	}
	if check.Warning != "" && !a.Quiet {
		_, err = fmt.Fprintln(a.Stderr, output.Hanging(a.Stdout, "", "warning: "+check.Warning))
	}
	return err
}

// read reads the document.
func (c handoffCheckCmd) read(a *base.App) ([]byte, error) {
	return readFile(a, c.File, "name a file with a hand-off as JSON, or - for standard input",
		maxHandoffFile, "remove content that is in the run's log, such as messages and results")
}
