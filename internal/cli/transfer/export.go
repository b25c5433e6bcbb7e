package transfer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/durable"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// formatCloudEvents is the export of the events themselves.
const formatCloudEvents = "cloudevents"

// ExportCmd is waymark export.
type ExportCmd struct {
	Run_   string `arg:"" name:"run" help:"Run id."`
	Format string `default:"auto" enum:"auto,openai-chat,claude-code,swe-agent,cloudevents" placeholder:"FORMAT" help:"openai-chat, claude-code, swe-agent, cloudevents (one event per line), or auto: as imported, else openai-chat (default: auto)."`
	Output string `short:"o" placeholder:"FILE" help:"Write to a new file instead of standard output."`
	Force  bool   `help:"Replace the file if it exists."`
}

// Help is the text below the flags.
func (ExportCmd) Help() string {
	return `Examples:
  waymark export fix-login -o fix-login.json
  waymark export fix-login --format cloudevents | jq .type`
}

// Run writes a run. A file appears only when it is complete.
func (c ExportCmd) Run(ctx context.Context, a *base.App) error {
	if err := c.replaceable(c.Output); err != nil {
		return err
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	return cl.WithReader(ctx, func(fleet *publisher.Reader) error {
		if c.Output == "" {
			if output.IsTerminal(a.Stdout) { // all formats are JSON
				return c.write(ctx, a, fleet, &output.EscapingWriter{To: a.Stdout})
			}
			return c.write(ctx, a, fleet, a.Stdout)
		}
		return writeFile(c.Output, func(w io.Writer) error { return c.write(ctx, a, fleet, w) })
	})
}

// replaceable refuses a file that cannot be written, before it contacts a server. The file is renamed into place, which
// would replace a pipe or a device instead of writing to it.
func (c ExportCmd) replaceable(file string) error {
	if file == "" {
		return nil
	}
	if _, err := os.Stat(filepath.Dir(file)); err != nil {
		return &failure.Error{Code: failure.NotFound, What: err.Error(), Hint: "create the directory first, or name another one", Err: err}
	}
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
		return failure.New(failure.Usage, "name a regular file, or use standard output", "%s is not a regular file", file)
	}
	if _, err := os.Lstat(file); err == nil && !c.Force {
		return failure.New(failure.Conflict, "add --force to replace it", "%s exists", file)
	}
	return nil
}

// write exports to w. For a run with missing events it writes the known ones, and fails.
func (c ExportCmd) write(ctx context.Context, a *base.App, fleet *publisher.Reader, out io.Writer) error {
	w := bufio.NewWriterSize(out, 64<<10)
	var missing error
	var err error
	if c.Format == formatCloudEvents {
		missing, err = c.events(ctx, a, fleet, w)
	} else {
		missing, err = c.transcript(ctx, fleet, w)
	}
	if err != nil {
		return err
	}
	return errors.Join(w.Flush(), missing)
}

func (c ExportCmd) transcript(ctx context.Context, fleet *publisher.Reader, w io.Writer) (missing, err error) {
	state, missing, err := base.StateOf(ctx, fleet, c.Run_)
	if err != nil {
		return nil, err
	}
	if err := fleet.Hydrate(ctx, state); err != nil {
		return nil, err
	}
	format := transcript.Format(c.Format)
	if format == transcript.Auto {
		format = transcript.OpenAIChat
		if state.Started != nil {
			if from := transcript.Format(state.Started.Labels["format"]); slices.Contains(transcript.Formats(), from) {
				format = from
			}
		}
	}
	return missing, transcript.Export(w, state, format)
}

// events streams events, so a run may have any size.
func (c ExportCmd) events(ctx context.Context, a *base.App, fleet *publisher.Reader, w io.Writer) (missing, err error) {
	head, err := fleet.Head(ctx, c.Run_)
	if err != nil && !errors.Is(err, publisher.ErrIncomplete) {
		return nil, err
	}
	bar := a.Progress("exporting", max(head.Counts.Events, 1), false)
	defer bar.Close()
	errStopped := errors.New("stopped")
	var records iter.Seq2[schema.Record, error] = func(yield func(schema.Record, error) bool) {
		err := fleet.Events(ctx, c.Run_, func(r schema.Record) error {
			bar.Add(1)
			if !yield(r, nil) {
				return errStopped
			}
			return nil
		})
		switch {
		case err == nil, errors.Is(err, errStopped):
		case errors.Is(err, publisher.ErrIncomplete):
			missing = err
		default:
			yield(schema.Record{}, err)
		}
	}
	_, left, err := transcript.ExportCloudEvents(w, records)
	if err == nil && left > 0 && !a.Quiet {
		_, err = fmt.Fprintf(a.Stderr, "omitted, not CloudEvents: %s of the log\n", output.Plural(left, "message"))
	}
	return missing, err
}

// writeFile renames a complete file into place. The known part of a run with missing events is kept, too.
func writeFile(path string, write func(io.Writer) error) error {
	var missing error
	err := durable.Replace(path, func(w io.Writer) error {
		err := write(w)
		if errors.Is(err, publisher.ErrIncomplete) {
			missing, err = err, nil
		}
		return err
	})
	return errors.Join(missing, err)
}
