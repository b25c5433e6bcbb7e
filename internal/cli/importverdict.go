package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/schema"
)

// notImported is a run that was not imported. Of a file that could not be read it has only the file's name.
type notImported struct {
	err error
	run importedRun
}

// finish prints the summary and says how the import as a whole ended.
func (im *importer) finish(ctx context.Context, err error) error {
	for _, closed := range im.found.closed {
		im.failed("", closed)
	}
	printErr := error(nil)
	switch {
	case im.app.cli.Quiet:
	case im.app.cli.JSON:
		printErr = im.printNotes(im.found.notes)
	default:
		printErr = im.print()
	}
	if printErr != nil {
		return printErr
	}
	if err != nil {
		f := explain(ctx, err)
		if err := im.printOthers(ctx, f); err != nil {
			return err
		}
		hint := "run the same command again: it goes on where it stopped"
		if first := f.advice(im.app.prompt); first != "" {
			hint = first + "; then " + hint
		}
		return &failure{code: f.code, what: f.what, hint: hint, err: err}
	}
	return im.verdict(ctx)
}

// verdict is nil when everything is there. Of several failures each has its line on standard error, and the one that matters most decides.
func (im *importer) verdict(ctx context.Context) error {
	var worst *failure
	told := make([]*failure, len(im.failures))
	for i, not := range im.failures {
		f := im.explained(ctx, not)
		told[i] = f
		// A run that was left as it is is the mildest.
		if worst == nil || worst.code == exitConflict && f.code != exitConflict {
			worst = f
		}
	}
	total := im.total()
	switch {
	case worst != nil:
		not := im.fates[fateDiffers] + im.fates[fateInUse] + im.fates[fateCancelled] + im.fates[fateFailed]
		if not == 1 {
			if total > 1 {
				worst = &failure{code: worst.code, hint: worst.hint, own: worst.own, err: worst, what: fmt.Sprintf("1 of %d was not imported: %s", total, worst.what)}
			}
			return worst
		}
		if err := im.printFailures(told, not); err != nil {
			return err
		}
		return &failure{
			code: worst.code, err: worst, hint: "follow the next step of each line above, and import the files again",
			what: fmt.Sprintf("%d of %d were not imported", not, total),
		}
	case im.problems > 0:
		rest := "; everything else was"
		if total == 0 {
			rest = ", and there is no run to import"
		}
		return fail(exitDamaged, im.mended(), "%s in the input %s not imported%s", plural(im.problems, "place"), inNumber(im.problems, "was", "were"), rest)
	}
	return nil
}

// mended is the next step for lines that could not be read. In a session the lines behind one of them are in the run already, so that the
// mended session differs from it. In other formats such a line is a run of its own.
func (im *importer) mended() string {
	hint := "mend the lines that are named above, and import the file again"
	for _, f := range im.seen {
		if f.Format == transcript.ClaudeCode && f.Runs > 0 && len(f.Problems) > 0 {
			return hint + "; if other lines follow them: " + im.underAnotherID(notImported{run: importedRun{File: f.File, Format: f.Format}})
		}
	}
	return hint
}

// printOthers writes the failures that came before the one that ended the import.
func (im *importer) printOthers(ctx context.Context, end *failure) error {
	im.failures = slices.DeleteFunc(im.failures, func(not notImported) bool { return explain(ctx, not.err).code == end.code })
	told := make([]*failure, len(im.failures))
	for i, not := range im.failures {
		told[i] = im.explained(ctx, not)
	}
	return im.printFailures(told, len(told))
}

// explained words a failure, with a next step that names the file.
func (im *importer) explained(ctx context.Context, not notImported) *failure {
	f := explain(ctx, not.err)
	switch {
	case errors.Is(not.err, transcript.ErrUnknownFormat) && not.run.File != "":
		f.hint = "name the format, openai-chat, claude-code or swe-agent: " + im.app.prompt.command("import --format openai-chat "+schema.ShellWord(not.run.File))
		f.own = false // the command has its flags
	case errors.Is(not.err, transcript.ErrDiverged), errors.Is(not.err, transcript.ErrInUse), errors.Is(not.err, transcript.ErrCancelled):
		f.hint += "; or import it under another id: " + im.underAnotherID(not)
		f.own = false // the command has its flags
	case f.own && not.run.Run != "":
		about := im.app.prompt
		about.run = not.run.Run
		f.hint, f.own = about.fill(f.hint), false
	}
	return f
}

// printFailures writes a line for each failure: the file, the reason and the next step.
func (im *importer) printFailures(told []*failure, total int) error {
	for i, f := range told {
		line := "not imported: "
		if file := im.failures[i].run.File; file != "" && !strings.Contains(f.what, file) {
			line += file + ": "
		}
		line += f.what
		if hint := f.advice(im.app.prompt); hint != "" {
			line += "; " + hint
		}
		if _, err := fmt.Fprintln(im.app.stderr, withoutSeeds(printable(line))); err != nil {
			return err
		}
	}
	if more := total - len(told); more > 0 {
		if _, err := fmt.Fprintf(im.app.stderr, "and %s\n", plural(more, "more failure")); err != nil {
			return err
		}
	}
	return nil
}

// underAnotherID is how a run is imported under an id of the user's choice. --run-id is taken for one file, and for one conversation
// in it; a session of Claude Code is one, with its sub-agents.
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
		return im.app.prompt.command(words + " " + schema.ShellWord(not.run.File))
	}
	what := "the conversation"
	if not.run.Line > 0 {
		what = fmt.Sprintf("line %d of %s", not.run.Line, not.run.File)
	}
	return "copy " + what + " into a file of its own, then " + im.app.prompt.command(words+" FILE")
}
