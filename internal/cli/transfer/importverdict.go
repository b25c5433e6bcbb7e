package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/schema"
)

// notImported is a run that was not imported. For an unreadable file it has only the file's name.
type notImported struct {
	err error
	run importedRun
}

// finish prints the summary and returns the result of the whole import.
func (im *importer) finish(ctx context.Context, err error) error {
	for _, closed := range im.found.closed {
		im.failed("", closed)
	}
	printErr := error(nil)
	switch {
	case im.app.Quiet:
	case im.app.JSON:
		printErr = im.printNotes(im.found.notes)
	default:
		printErr = im.print()
	}
	if printErr != nil {
		return printErr
	}
	if err != nil {
		f := failure.Explain(ctx, err)
		if err := im.printOthers(ctx, f); err != nil {
			return err
		}
		hint := "run the same command again: it continues where it stopped"
		if first := f.Advice(im.app.Prompt); first != "" {
			hint = first + "; then " + hint
		}
		return &failure.Error{Code: f.Code, What: f.What, Hint: hint, Err: err}
	}
	return im.verdict(ctx)
}

// verdict is nil if everything was imported. Otherwise each failure has a line on standard error, and the most
// important one decides.
func (im *importer) verdict(ctx context.Context) error {
	var worst *failure.Error
	told := make([]*failure.Error, len(im.failures))
	for i, not := range im.failures {
		f := im.explained(ctx, not)
		told[i] = f
		// A run that was left unchanged is the least important.
		if worst == nil || worst.Code == failure.Conflict && f.Code != failure.Conflict {
			worst = f
		}
	}
	total := im.total()
	switch {
	case worst != nil:
		not := im.fates[fateDiffers] + im.fates[fateInUse] + im.fates[fateCancelled] + im.fates[fateFailed]
		if not == 1 {
			if total > 1 {
				worst = &failure.Error{Code: worst.Code, Hint: worst.Hint, Own: worst.Own, Err: worst, What: fmt.Sprintf("1 of %d was not imported: %s", total, worst.What)}
			}
			return worst
		}
		if err := im.printFailures(told, not); err != nil {
			return err
		}
		return &failure.Error{
			Code: worst.Code, Err: worst, Hint: "follow the next step of each line above, and import the files again",
			What: fmt.Sprintf("%d of %d were not imported", not, total),
		}
	case im.problems > 0:
		rest := "; the rest was"
		if total == 0 {
			rest = ", and there is no run to import"
		}
		return failure.New(failure.Damaged, im.mended(), "%s in the input %s not imported%s", output.Plural(im.problems, "place"), output.InNumber(im.problems, "was", "were"), rest)
	}
	return nil
}

// mended is the next step for unreadable lines. In a session, the lines after such a line are already in the run, so
// the corrected session differs from it. In other formats such a line is a run of its own.
func (im *importer) mended() string {
	hint := "correct the lines named above, and import the file again"
	for _, f := range im.seen {
		if f.Format == transcript.ClaudeCode && f.Runs > 0 && len(f.Problems) > 0 {
			return hint + "; if other lines follow them: " + im.underAnotherID(notImported{run: importedRun{File: f.File, Format: f.Format}})
		}
	}
	return hint
}

// printOthers prints the failures before the one that ended the import.
func (im *importer) printOthers(ctx context.Context, end *failure.Error) error {
	im.failures = slices.DeleteFunc(im.failures, func(not notImported) bool { return failure.Explain(ctx, not.err).Code == end.Code })
	told := make([]*failure.Error, len(im.failures))
	for i, not := range im.failures {
		told[i] = im.explained(ctx, not)
	}
	return im.printFailures(told, len(told))
}

// explained explains a failure, with a next step that names the file.
func (im *importer) explained(ctx context.Context, not notImported) *failure.Error {
	f := failure.Explain(ctx, not.err)
	switch {
	case errors.Is(not.err, transcript.ErrUnknownFormat) && not.run.File != "":
		f.Hint = "name the format, openai-chat, claude-code or swe-agent: " + im.app.Prompt.Command("import --format openai-chat "+schema.ShellWord(not.run.File))
		f.Own = false // the command has its flags
	case errors.Is(not.err, transcript.ErrDiverged), errors.Is(not.err, transcript.ErrInUse), errors.Is(not.err, transcript.ErrCancelled):
		f.Hint += "; or import it under another id: " + im.underAnotherID(not)
		f.Own = false // the command has its flags
	case f.Own && not.run.Run != "":
		about := im.app.Prompt
		about.Run = not.run.Run
		f.Hint, f.Own = about.Fill(f.Hint), false
	}
	return f
}

// printFailures prints a line for each failure: the file, the reason and the next step.
func (im *importer) printFailures(told []*failure.Error, total int) error {
	for i, f := range told {
		line := "not imported: "
		if file := im.failures[i].run.File; file != "" && !strings.Contains(f.What, file) {
			line += file + ": "
		}
		line += f.What
		if hint := f.Advice(im.app.Prompt); hint != "" {
			line += "; " + hint
		}
		if _, err := fmt.Fprintln(im.app.Stderr, failure.WithoutSeeds(output.Printable(line))); err != nil {
			return err
		}
	}
	if more := total - len(told); more > 0 {
		if _, err := fmt.Fprintf(im.app.Stderr, "and %s\n", output.Plural(more, "more failure")); err != nil {
			return err
		}
	}
	return nil
}

// underAnotherID is the command to import a run under an id of the user's choice. --run-id needs one file with one
// conversation; a Claude Code session, with its sub-agents, is one.
func (im *importer) underAnotherID(not notImported) string {
	i := slices.IndexFunc(im.seen, func(f importedFile) bool { return f.File == not.run.File })
	alone := not.run.Format == transcript.ClaudeCode || i >= 0 && im.seen[i].Runs == 1
	words := "import --run-id ANOTHER"
	if format := im.options.Format; format != transcript.Auto {
		words += " --format " + schema.ShellWord(string(format))
	}
	if im.options.Agent != "" {
		words += " --agent " + schema.ShellWord(im.options.Agent)
	}
	if alone {
		return im.app.Prompt.Command(words + " " + schema.ShellWord(not.run.File))
	}
	what := "the conversation"
	if not.run.Line > 0 {
		what = fmt.Sprintf("line %d of %s", not.run.Line, not.run.File)
	}
	return "copy " + what + " into a file of its own, then " + im.app.Prompt.Command(words+" FILE")
}
