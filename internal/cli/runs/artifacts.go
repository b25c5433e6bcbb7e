package runs

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/encrypted"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// ArtifactsCmd is waymark artifacts.
type ArtifactsCmd struct {
	Run_  string `arg:"" name:"run" help:"Run id."`
	Fetch string `placeholder:"DIR" help:"Write the artifacts whose content is stored to files of this directory, which is created if it is not there."`
}

// Help is the text below the flags.
func (ArtifactsCmd) Help() string {
	return `WHERE says where the content is: in the run's events, in the fleet's object store, or behind a link, which Waymark does not follow.

With --fetch each content is checked against the digest of its artifact before it is written; one that differs is not written, and the exit code ` +
		`is 6. A text is written as it is; a text that is the base64 of what the digest names is written decoded; any other value as JSON. ` +
		`Files are named after their artifacts: separators, control characters and names that Windows reserves are replaced, and a name that is ` +
		`taken gets a number. A file that exists is never overwritten: the exit code is 5, unless it has the same content.

Examples:
  waymark artifacts fix-login
  waymark artifacts fix-login --fetch out
  waymark artifacts fix-login --json`
}

// Places of an artifact's content, as JSON has them.
const (
	placeEvent     = "event"
	placeStore     = "object_store"
	placeLink      = "link"
	placeEncrypted = "encrypted"
	placeNowhere   = "nowhere"
)

// artifact is an artifact in a list.
type artifact struct {
	ArtifactID string `json:"artifact_id"`
	Name       string `json:"name,omitzero"`
	MediaType  string `json:"media_type,omitzero"`
	// Size in bytes: what the executor said, else that of the content as it is stored.
	Size   int64  `json:"size,omitzero"`
	Digest string `json:"digest,omitzero"`
	Turn   int32  `json:"turn,omitzero"`
	Time   string `json:"time,omitzero"`
	// Where the content is: event, object_store, link, encrypted or nowhere.
	Where string `json:"where"`
	URI   string `json:"uri,omitzero"`
	// KeyID names the key of an encrypted content.
	KeyID string `json:"key_id,omitzero"`
	// File that the content is in; empty without --fetch, and for one that was not written.
	File string `json:"file,omitzero"`
	// Checked: the content has the digest. One without a digest is as it was stored.
	Checked bool `json:"checked,omitzero"`
	// Problem is why the content was not written.
	Problem string `json:"problem,omitzero"`
	// content in the event, or dataref of the content in the object store.
	content jsontext.Value
	dataref string
	err     error
}

// artifactList is what artifacts prints as JSON.
type artifactList struct {
	Run       string      `json:"run"`
	Artifacts []*artifact `json:"artifacts"`
}

// artifactOf says where the content of an artifact is.
func artifactOf(s *schema.StateArtifact) *artifact {
	a := &artifact{
		ArtifactID: s.ArtifactID, Name: s.Name, MediaType: s.MediaType, Size: s.Size, Digest: s.Digest, Turn: s.Turn, Time: s.Time, URI: s.URI, Where: placeNowhere,
	}
	stored := schema.Ref{}
	if i := slices.IndexFunc(s.Refs, func(r schema.Ref) bool { return r.Path == "/content" }); i >= 0 {
		stored = s.Refs[i]
	}
	_, _, notOurs := schema.ParseDataRef(s.URI)
	switch {
	case stored.KeyID != "":
		a.Where, a.KeyID = placeEncrypted, stored.KeyID
	case len(s.Content) > 0:
		a.Where, a.content = placeEvent, s.Content
		a.Size = cmp.Or(a.Size, int64(len(contents(s.Content)[0])))
	case stored.DataRef != "":
		a.Where, a.dataref = placeStore, stored.DataRef
		a.Size = cmp.Or(a.Size, stored.Size)
	case notOurs == nil:
		a.Where, a.dataref = placeStore, s.URI
	case s.URI != "":
		a.Where = placeLink
	}
	return a
}

// contents are the bytes that a value may stand for, the first of them where no digest decides: a text itself or what it is the base64 of,
// and the JSON of any value.
func contents(v jsontext.Value) [][]byte {
	var text string
	if v.Kind() != '"' || json.Unmarshal(v, &text) != nil {
		return [][]byte{v}
	}
	list := [][]byte{[]byte(text)}
	if decoded, err := base64.StdEncoding.DecodeString(text); err == nil {
		list = append(list, decoded)
	}
	return append(list, v)
}

var (
	errDigest = errors.New("its content has another digest")
	errForm   = errors.New("its digest is not sha256- and 64 hex digits")
)

// checkedContent is the content with the digest; without a digest it is as it was stored.
func (f *artifact) checkedContent(v jsontext.Value) ([]byte, error) {
	list := contents(v)
	if f.Digest == "" {
		return list[0], nil
	}
	digits, _ := strings.CutPrefix(f.Digest, "sha256-")
	want, err := hex.DecodeString(digits)
	if err != nil || len(want) != sha256.Size || digits == f.Digest {
		return nil, errForm
	}
	for _, content := range list {
		if sum := sha256.Sum256(content); bytes.Equal(sum[:], want) {
			f.Checked = true
			return content, nil
		}
	}
	return nil, errDigest
}

// Run lists the artifacts of a run, oldest first, and fetches them when asked to. Of a run that misses events it lists what is there, and
// fails.
func (c ArtifactsCmd) Run(ctx context.Context, a *base.App) error {
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
	list := artifactList{Run: c.Run_, Artifacts: []*artifact{}}
	var missing error
	err = cl.WithReader(ctx, func(fleet *publisher.Reader) error {
		var state *schema.State
		if state, missing, err = base.StateOf(ctx, fleet, c.Run_); err != nil {
			return err
		}
		for i := range state.Artifacts {
			list.Artifacts = append(list.Artifacts, artifactOf(&state.Artifacts[i]))
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

// fetch writes the contents to files of the directory. What is wrong with one of them is told with it, and the others are fetched.
func (c ArtifactsCmd) fetch(ctx context.Context, fleet *publisher.Reader, list []*artifact) error {
	if err := os.MkdirAll(c.Fetch, 0o700); err != nil {
		return &failure.Error{Code: failure.General, What: "directory for artifacts: " + err.Error(), Hint: "name a directory that can be written", Err: err}
	}
	// Names are the executors' words: whatever they are, no file outside of the directory is opened.
	dir, err := os.OpenRoot(c.Fetch)
	if err != nil {
		return &failure.Error{Code: failure.General, What: "directory for artifacts: " + err.Error(), Hint: "name a directory that can be written", Err: err}
	}
	defer func() { _ = dir.Close() }() // it was only read
	var names fileNames
	for _, f := range list {
		if f.content == nil && f.dataref == "" {
			continue
		}
		name := names.of(cmp.Or(f.Name, f.ArtifactID))
		if f.err = c.fetchOne(ctx, fleet, dir, name, f); f.err == nil {
			f.File = filepath.Join(c.Fetch, name)
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		f.Problem = f.err.Error()
	}
	return nil
}

func (c ArtifactsCmd) fetchOne(ctx context.Context, fleet *publisher.Reader, dir *os.Root, name string, f *artifact) error {
	value := f.content
	if f.dataref != "" {
		blob, err := fleet.Blob(ctx, f.dataref)
		if err != nil {
			return err
		}
		value = blob
	}
	content, err := f.checkedContent(value)
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
		return errors.Join(err, dir.Remove(name)) // no part of a file stays
	}
	return nil
}

// failed is the failure of what was not written: damage counts for more than a file that exists.
func (c ArtifactsCmd) failed(list *artifactList) error {
	n, exists := 0, 0
	for _, f := range list.Artifacts {
		if f.err != nil {
			n++
		}
		if errors.Is(f.err, fs.ErrExist) {
			exists++
		}
	}
	what := fmt.Sprintf("%s of run %s not written", output.Plural(n, "artifact"), c.Run_)
	switch n {
	case 0:
		return nil
	case exists:
		return failure.New(failure.Conflict, "name another directory, or remove these files", "%s: files of other content exist", what)
	}
	return failure.New(failure.Damaged, "each of them says what is wrong with it; the others were written", "%s", what)
}

// wherePeople is where the content is, for people.
func (f *artifact) wherePeople() string {
	switch f.Where {
	case placeEvent:
		return "in the run"
	case placeStore:
		return "object store"
	case placeLink:
		return "link: " + f.URI
	case placeEncrypted:
		return encrypted.Text(f.KeyID)
	}
	return "only its name is recorded"
}

func (f *artifact) sizeText() string {
	if f.Size == 0 {
		return ""
	}
	return output.Bytes(f.Size)
}

// fetchedPeople is what came of a fetch, for people.
func (f *artifact) fetchedPeople() string {
	switch {
	case f.Problem != "":
		return "not written: " + f.Problem
	case f.File != "" && !f.Checked:
		return f.File + ", no digest"
	case f.File != "":
		return f.File
	case f.Where == placeLink:
		return "not fetched: only a link"
	}
	return "not fetched"
}

// digestDigits is the number of hex digits of a digest in a table; JSON has all.
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

func artifactRows(list []*artifact, fetched bool) [][]string {
	rows := make([][]string, len(list))
	for i, f := range list {
		digest, turn := f.Digest, ""
		if short := len("sha256-") + digestDigits; len(digest) > short {
			digest = digest[:short] + "…"
		}
		if f.Turn > 0 {
			turn = output.Number(f.Turn)
		}
		rows[i] = []string{cmp.Or(f.Name, f.ArtifactID), f.MediaType, f.sizeText(), digest, turn, f.wherePeople()}
		if fetched {
			rows[i] = append(rows[i], f.fetchedPeople())
		}
	}
	return rows
}
