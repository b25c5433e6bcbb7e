package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/archive"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
)

// archive writes the runs to an archive.
func (c ExportCmd) archive(ctx context.Context, a *base.App, cl *base.Client, fleet *publisher.Reader) error {
	var m *archive.Manifest
	js, err := jetstream.New(cl.NATS)
	if err != nil {
		return err
	}
	keys, err := kvstore.KeysOf(js, cl.Fleet)(ctx)
	if err != nil {
		return err
	}
	err = writeFile(c.Archive, func(w io.Writer) (err error) {
		m, err = archive.Write(ctx, w, fleet, archive.Export{Fleet: cl.Fleet, Keys: keys, Runs: c.Run_, Bases: c.Bases, Made: a.Now()})
		if errors.Is(err, archive.ErrIncomplete) {
			// A transcript keeps the existing part of a run; an archive must be complete.
			return &failure.Error{Code: failure.Damaged, What: err.Error(), Hint: "find the missing events with: " + cl.Prompt.Command("verify --all"), Err: archive.ErrIncomplete}
		}
		return err
	})
	if err != nil || a.Quiet {
		return err
	}
	for _, r := range m.Runs {
		if r.Base == nil || slices.ContainsFunc(m.Runs, func(o archive.Run) bool { return o.Run == r.Base.Run }) {
			continue
		}
		if _, err := fmt.Fprintf(a.Stderr, "note: run %s is based on run %s, which is not in the archive: it can only be imported where that run exists; --with-bases adds it\n", r.Run, r.Base.Run); err != nil {
			return err
		}
	}
	if a.JSON {
		return output.Document(a.Stdout, m.Runs)
	}
	rows := make([][]string, len(m.Runs))
	for i, r := range m.Runs {
		rows[i] = []string{r.Run, string(r.Status), output.Number(r.Records), output.Number(r.Blobs), r.Digest[:min(16, len(r.Digest))]}
	}
	return output.Table(a.Stdout, []output.Column{
		{Title: "run"},
		{Title: "status"},
		{Title: "messages", Right: true, Drop: 2},
		{Title: "blobs", Right: true},
		{Title: "digest", Drop: 1},
	}, rows)
}

// archive imports the runs of an archive.
func (c ImportCmd) archive(ctx context.Context, a *base.App) error {
	info, err := os.Stat(c.Archive)
	if err == nil && !info.Mode().IsRegular() {
		return failure.NotRegular(c.Archive)
	}
	file, err := os.Open(c.Archive)
	if errors.Is(err, fs.ErrNotExist) {
		return &failure.Error{Code: failure.NotFound, What: err.Error(), Hint: "check the path", Err: err}
	}
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	from, err := archive.Open(file, archive.Limits{Bytes: int64(c.MaxSize)})
	if err != nil {
		return fmt.Errorf("archive %s: %w", c.Archive, err)
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	return cl.WithReader(ctx, func(fleet *publisher.Reader) error {
		js, err := jetstream.New(cl.NATS)
		if err != nil {
			return err
		}
		done, err := archive.Import(ctx, js, from, archive.Target{Fleet: cl.Fleet, Source: fleet, Live: c.Live, Continue: c.Continue})
		if err != nil && len(done) == 0 {
			return err
		}
		var failures []error
		rows := make([][]string, len(done))
		for i, r := range done {
			if a.JSON {
				failures = append(failures, output.Line(a.Stdout, r))
			}
			since := ""
			if r.Since > 0 {
				since = output.Plural(r.Since, "message") + " since"
			}
			rows[i] = []string{r.Run, r.Fate, string(r.Status), output.Number(r.Records), r.Digest[:min(16, len(r.Digest))], since}
		}
		if !a.JSON {
			failures = append(failures, output.Table(a.Stdout, []output.Column{
				{Title: "run"},
				{Title: "fate"},
				{Title: "status"},
				{Title: "messages", Right: true, Drop: 2},
				{Title: "digest", Drop: 1},
				{Title: ""},
			}, rows))
		}
		for _, r := range done {
			failures = append(failures, c.confirm(ctx, fleet, r))
		}
		return errors.Join(append(failures, err)...)
	})
}

// confirm reads an imported run from the daemon: its digest must be that of the archive.
func (c ImportCmd) confirm(ctx context.Context, fleet *publisher.Reader, r archive.Imported) error {
	if r.Since > 0 || c.Live {
		return nil // it has continued, or may have
	}
	head, err := fleet.Head(ctx, r.Run)
	if err != nil {
		return fmt.Errorf("run %s was imported, but reading it again failed: %w", r.Run, err)
	}
	if head.Digest != r.Digest {
		return failure.New(failure.Damaged, "find the damage with: waymark verify "+r.Run, "run %s recovers with digest %.16s…, but was imported with %.16s…", r.Run, head.Digest, r.Digest)
	}
	return nil
}
