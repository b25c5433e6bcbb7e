package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
		printErr = im.printNotes(im.filesNotes())
	default:
		printErr = im.print()
	}
	if printErr != nil {
		return printErr
	}
	if err != nil {
		f := explain(ctx, err)
		hint := "run the same command again: it goes on where it stopped"
		if first := f.advice(im.app.prompt); first != "" {
			hint = first + "; then " + hint
		}
		return &failure{code: f.code, what: f.what, hint: hint, err: err}
	}
	return im.verdict(ctx)
}

// verdict is nil when everything is there. Of several failures the one that matters most decides.
func (im *importer) verdict(ctx context.Context) error {
	var worst *failure
	for _, not := range im.failures {
		f := explain(ctx, not.err)
		if errors.Is(not.err, transcript.ErrUnknownFormat) && not.run.File != "" {
			f.hint = "name the format, openai-chat, claude-code or swe-agent: " + im.app.prompt.command("import --format openai-chat "+schema.ShellWord(not.run.File))
			f.own = false // the command has its flags
		}
		if errors.Is(not.err, transcript.ErrDiverged) || errors.Is(not.err, transcript.ErrInUse) {
			f.hint += "; or import it under another id: " + im.underAnotherID(not)
			f.own = false // the command has its flags
		}
		// A run that was left as it is is the mildest.
		if worst == nil || worst.code == exitConflict && f.code != exitConflict {
			worst = f
		}
	}
	total := im.total()
	switch {
	case worst != nil:
		not := im.fates[fateDiffers] + im.fates[fateInUse] + im.fates[fateFailed]
		if not == 1 && total == 1 {
			return worst
		}
		return &failure{
			code: worst.code, hint: worst.hint, own: worst.own, err: worst,
			what: fmt.Sprintf("%d of %d %s not imported; the first: %s", not, total, inNumber(not, "was", "were"), worst.what),
		}
	case im.problems > 0:
		return fail(exitDamaged, "mend the lines that are named above, and import the file again", "%s in the input %s not imported; everything else was",
			plural(im.problems, "place"), inNumber(im.problems, "was", "were"))
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
