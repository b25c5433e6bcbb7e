package runs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/story"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// ArtifactsCmd is waymark artifacts.
type ArtifactsCmd struct {
	Run_  string `arg:"" name:"run" help:"Run id."`
	Fetch string `placeholder:"DIR" help:"Write stored artifacts to this directory."`
}

// Help is the text below the flags.
func (ArtifactsCmd) Help() string {
	return `WHERE is the run's events, the fleet's object store, or a link, which Waymark does not follow.

--fetch writes content whose digest is right (else exit code 6): text as it is, base64 decoded if the digest matches, other values ` +
		`as JSON. An existing file with other content is not overwritten (exit code 5).

Example:
  waymark artifacts fix-login --fetch out`
}

// artifactList is the JSON output of artifacts.
type artifactList struct {
	Run       string            `json:"run"`
	Artifacts []*story.Artifact `json:"artifacts"`
}

// Run lists the artifacts of a run, oldest first, and fetches them on request. For a run with missing events it lists
// the known ones, and fails.
func (c ArtifactsCmd) Run(ctx context.Context, a *base.App, cl *base.Client) error {
	list := artifactList{Run: c.Run_, Artifacts: []*story.Artifact{}}
	var missing error
	err := cl.WithReader(ctx, func(fleet *publisher.Reader) (err error) {
		var state *schema.State
		if state, missing, err = base.StateOf(ctx, fleet, c.Run_); err != nil {
			return err
		}
		for i := range state.Artifacts {
			list.Artifacts = append(list.Artifacts, story.ArtifactOf(&state.Artifacts[i]))
		}
		if c.Fetch == "" {
			return nil
		}
		return c.fetch(ctx, fleet, list.Artifacts)
	})
	if err != nil {
		return err
	}
	if a.JSON {
		err = output.Document(a.Stdout, &list)
	} else {
		err = c.print(a, &list)
	}
	return errors.Join(err, c.failed(&list), missing)
}

// fetch writes the contents to files in the directory. An error is reported with its artifact, and the others are still
// fetched.
func (c ArtifactsCmd) fetch(ctx context.Context, fleet *publisher.Reader, list []*story.Artifact) error {
	if err := os.MkdirAll(c.Fetch, 0o700); err != nil {
		return &failure.Error{Code: failure.General, What: "directory for artifacts: " + err.Error(), Hint: "name a writable directory", Err: err}
	}
	// Executors choose the names: no name may open a file outside of the directory.
	dir, err := os.OpenRoot(c.Fetch)
	if err != nil {
		return &failure.Error{Code: failure.General, What: "directory for artifacts: " + err.Error(), Hint: "name a writable directory", Err: err}
	}
	defer func() { _ = dir.Close() }() // it was only read
	var names fileNames
	for _, f := range list {
		if len(f.Content) == 0 && f.DataRef == "" {
			continue
		}
		name := names.of(cmp.Or(f.Name, f.ArtifactID))
		if f.Err = c.fetchOne(ctx, fleet, dir, name, f); f.Err == nil {
			f.File = filepath.Join(c.Fetch, name)
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		f.Problem = f.Err.Error()
	}
	return nil
}

func (c ArtifactsCmd) fetchOne(ctx context.Context, fleet *publisher.Reader, dir *os.Root, name string, f *story.Artifact) error {
	value, err := fleet.Field(ctx, f.Refs, "/content", f.Content)
	if err == nil && len(value) == 0 {
		value, err = fleet.Blob(ctx, f.DataRef)
	}
	if err != nil {
		return err
	}
	content, err := f.CheckedContent(value)
	if err != nil {
		return err
	}
	file, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		if same, err2 := dir.ReadFile(name); err2 == nil && bytes.Equal(same, content) {
			return nil
		}
		return fmt.Errorf("%s: %w", filepath.Join(c.Fetch, name), fs.ErrExist)
	}
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, dir.Remove(name)) // leave no partial file
	}
	return nil
}

// damaged reports whether the stored content is missing or differs from the record.
func damaged(f *story.Artifact) bool {
	return errors.Is(f.Err, story.ErrDigest) || errors.Is(f.Err, story.ErrDigestForm) || errors.Is(f.Err, publisher.ErrBlob)
}

// failed is the error for artifacts that were not written. Damage has precedence, an existing file comes last.
func (c ArtifactsCmd) failed(list *artifactList) error {
	n, exist, broken := 0, 0, 0
	for _, f := range list.Artifacts {
		switch {
		case f.Err == nil:
			continue
		case damaged(f):
			broken++
		case errors.Is(f.Err, fs.ErrExist):
			exist++
		}
		n++
	}
	const each = "the list has the problem of each; the others were written"
	what := fmt.Sprintf("%s of run %s not written", output.Plural(n, "artifact"), c.Run_)
	switch {
	case n == 0:
		return nil
	case broken > 0:
		return failure.New(failure.Damaged, each, "%s", what)
	case exist == n:
		return failure.New(failure.Conflict, "name another directory, or remove these files", "%s: files with other content exist", what)
	}
	return failure.New(failure.General, each, "%s", what)
}

// fetchedText is the result of a fetch, for people.
func fetchedText(f *story.Artifact) string {
	switch {
	case f.Problem != "":
		return "not written: " + f.Problem
	case f.File != "" && !f.Checked:
		return f.File + ", no digest"
	case f.File != "":
		return f.File
	case f.Where == story.PlaceLink:
		return "not fetched: only a link"
	}
	return "not fetched"
}

// digestDigits is the number of hex digits of a digest in a table; JSON has all of them.
const digestDigits = 12

func (c ArtifactsCmd) print(a *base.App, list *artifactList) error {
	if len(list.Artifacts) == 0 && !a.Quiet {
		_, err := fmt.Fprintln(a.Stderr, "no artifacts")
		return err
	}
	columns, rows := withoutEmpty(c.columns(), artifactRows(list.Artifacts, c.Fetch != ""))
	return output.Table(a.Stdout, columns, rows)
}

func (c ArtifactsCmd) columns() []output.Column {
	columns := []output.Column{
		{Title: "artifact", Shrinks: true},
		{Title: "id", Drop: 4},
		{Title: "type", Drop: 2, Shrinks: true},
		{Title: "size", Right: true},
		{Title: "digest", Drop: 1},
		{Title: "turn", Right: true, Drop: 3},
		{Title: "where", Shrinks: true},
	}
	if c.Fetch != "" {
		columns = append(columns, output.Column{Title: "file", Shrinks: true, Wraps: true})
	}
	return columns
}

func artifactRows(list []*story.Artifact, fetched bool) [][]string {
	rows := make([][]string, len(list))
	for i, f := range list {
		digest, turn := f.Digest, ""
		if short := len("sha256-") + digestDigits; len(digest) > short {
			digest = digest[:short] + "…"
		}
		if f.Turn > 0 {
			turn = output.Number(f.Turn)
		}
		id := f.ArtifactID
		if f.Name == "" {
			id = "" // it replaces the name
		}
		rows[i] = []string{cmp.Or(f.Name, f.ArtifactID), id, f.MediaType, f.SizeText(), digest, turn, f.WhereText()}
		if fetched {
			rows[i] = append(rows[i], fetchedText(f))
		}
	}
	return rows
}
