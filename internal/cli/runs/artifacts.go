package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// ArtifactsCmd is waymark artifacts.
type ArtifactsCmd struct {
	Run_     string `arg:"" name:"run" help:"Run id."`
	Artifact string `arg:"" optional:"" help:"Write the content of this one, by its id, to standard output."`
}

// Help is the text below the flags.
func (ArtifactsCmd) Help() string {
	return `WHERE is the run's events, the fleet's object store, or a link, which Waymark does not follow. Content is written if its digest ` +
		`is right (else exit code 6): text as it is, base64 decoded if the digest matches, other values as JSON.

Example:
  waymark artifacts fix-login plan > plan.md`
}

// artifactList is the JSON output of artifacts.
type artifactList struct {
	Run       string            `json:"run"`
	Artifacts []*story.Artifact `json:"artifacts"`
}

// Run lists the artifacts of a run, oldest first, or writes the content of one. For a run with missing events it lists
// the known ones, and fails.
func (c ArtifactsCmd) Run(ctx context.Context, a *base.App, cl *base.Client) error {
	return cl.WithReader(ctx, func(fleet *publisher.Reader) error {
		state, missing, err := base.StateOf(ctx, fleet, c.Run_)
		if err != nil {
			return err
		}
		list := artifactList{Run: c.Run_, Artifacts: make([]*story.Artifact, len(state.Artifacts))}
		for i := range state.Artifacts {
			list.Artifacts[i] = story.ArtifactOf(&state.Artifacts[i])
		}
		switch {
		case c.Artifact != "":
			err = c.write(ctx, a, fleet, list.Artifacts)
		case a.JSON:
			err = output.Document(a.Stdout, &list)
		default:
			err = c.print(a, &list)
		}
		return errors.Join(err, missing)
	})
}

// write writes the content of the named artifact. The caller names the file: an executor's name opens none.
func (c ArtifactsCmd) write(ctx context.Context, a *base.App, fleet *publisher.Reader, list []*story.Artifact) error {
	i := slices.IndexFunc(list, func(f *story.Artifact) bool { return f.ArtifactID == c.Artifact })
	if i < 0 {
		return failure.New(failure.NotFound, "list them with: "+a.Prompt.Command("artifacts "+c.Run_), "run %s has no artifact %s", c.Run_, c.Artifact)
	}
	f := list[i]
	if len(f.Content) == 0 && f.DataRef == "" {
		return failure.New(failure.NotFound, "", "the content of artifact %s is not stored: %s", f.ArtifactID, f.WhereText())
	}
	if output.IsTerminal(a.Stdout) {
		return failure.New(failure.Usage, "write it to a file: "+schema.Command(a.Prompt.Command("artifacts"), " > FILE", c.Run_, c.Artifact),
			"the content of an artifact may change this terminal")
	}
	value, err := fleet.Field(ctx, f.Refs, "/content", f.Content)
	if err == nil && len(value) == 0 {
		value, err = fleet.Blob(ctx, f.DataRef)
	}
	if err != nil {
		return err
	}
	content, err := f.CheckedContent(value)
	if err != nil {
		return &failure.Error{Code: failure.Damaged, What: fmt.Sprintf("artifact %s of run %s: %s", f.ArtifactID, c.Run_, err), Err: err}
	}
	if _, err := output.Below(a.Stdout).Write(content); err != nil {
		return fmt.Errorf("writing the content: %w", err)
	}
	return nil
}

// digestDigits is the number of hex digits of a digest in a table; JSON has all of them.
const digestDigits = 12

func (c ArtifactsCmd) print(a *base.App, list *artifactList) error {
	if len(list.Artifacts) == 0 && !a.Quiet {
		_, err := fmt.Fprintln(a.Stderr, "no artifacts")
		return err
	}
	rows := make([][]string, len(list.Artifacts))
	for i, f := range list.Artifacts {
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
	}
	columns, rows := withoutEmpty([]output.Column{
		{Title: "artifact", Shrinks: true},
		{Title: "id", Drop: 4},
		{Title: "type", Drop: 2, Shrinks: true},
		{Title: "size", Right: true},
		{Title: "digest", Drop: 1},
		{Title: "turn", Right: true, Drop: 3},
		{Title: "where", Shrinks: true},
	}, rows)
	return output.Table(a.Stdout, columns, rows)
}
