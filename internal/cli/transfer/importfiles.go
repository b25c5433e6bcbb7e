package transfer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// found are the transcripts to import.
type found struct {
	files []string
	// names are replacement names of files whose own name is not unique.
	names map[string]string
	size  int64
	notes []string
	// closed are the directories that could not be read.
	closed []error
}

// maxNamed bounds the files named in a note.
const maxNamed = 20

// transcriptEndings are the endings of the files in a directory that are checked.
var transcriptEndings = []string{".json", ".jsonl", ".ndjson", ".traj"}

// findTranscripts resolves patterns, which not every shell does, and directories.
func findTranscripts(ctx context.Context, a *base.App, args []string, options transcript.Options) (*found, error) {
	f := new(found)
	seen := make(map[string]bool)
	add := func(file string, info fs.FileInfo) {
		if path := absolute(file); !seen[path] {
			seen[path] = true
			f.files, f.size = append(f.files, file), f.size+info.Size()
		}
	}
	for _, arg := range args {
		matches := []string{arg}
		if _, err := os.Stat(arg); errors.Is(err, fs.ErrNotExist) && strings.ContainsAny(arg, "*?[") {
			if matches, err = filepath.Glob(arg); err != nil || len(matches) == 0 {
				return nil, failure.New(failure.NotFound, "check the pattern", "no file matches %s", arg)
			}
		}
		for _, file := range matches {
			info, err := os.Stat(file)
			switch {
			case err != nil:
				return nil, &failure.Error{Code: failure.NotFound, What: err.Error(), Hint: "check the path", Err: err}
			case info.IsDir():
				if err := directory(ctx, a, f, file, options, add); err != nil {
					return nil, err
				}
			case !info.Mode().IsRegular():
				return nil, failure.NotRegular(file)
			default:
				add(file, info)
			}
		}
	}
	f.tellApart()
	return f, nil
}

// directory adds the transcripts below a directory.
func directory(ctx context.Context, a *base.App, f *found, dir string, options transcript.Options, add func(string, fs.FileInfo)) error {
	var candidates []string
	others, closed := 0, len(f.closed)
	var session string // a session outside of the directory with its sub-agents inside
	sidechains := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && path == dir:
			return err
		case err != nil:
			f.closed = append(f.closed, err)
			return fs.SkipDir
		case d.IsDir():
		case d.Type().IsRegular() && transcript.IsSubagent(path):
			of := transcript.SessionOf(path)
			if rel, err := filepath.Rel(absolute(dir), of); err != nil || strings.HasPrefix(rel, "..") {
				session = of
				sidechains++
			}
		case d.Type().IsRegular() && slices.Contains(transcriptEndings, strings.ToLower(filepath.Ext(path))):
			candidates = append(candidates, path)
		default:
			others++
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("looking for transcripts in %s: %w", dir, err)
	}
	bar := a.Progress("looking for transcripts", int64(len(candidates)), false)
	defer bar.Close()
	transcripts := 0
	var unknown []string
	for _, path := range candidates {
		format, err := transcript.Detect(path, options)
		bar.Add(1)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		// The import reports why a file cannot be read.
		case err == nil && (options.Format == transcript.Auto || options.Format == format), err != nil && !errors.Is(err, transcript.ErrUnknownFormat):
			info, err := os.Stat(path)
			if err != nil {
				return fmt.Errorf("looking for transcripts in %s: %w", dir, err)
			}
			add(path, info)
			transcripts++
		default:
			name, err := filepath.Rel(dir, path)
			if err != nil {
				return fmt.Errorf("looking for transcripts in %s: %w", dir, err)
			}
			unknown = append(unknown, name)
		}
	}
	if sidechains > 0 {
		left := fmt.Sprintf("%s of a session %s in %s, but the session is not", output.Plural(sidechains, "sub-agent"), output.InNumber(sidechains, "is", "are"), dir)
		hint := "import the session, which includes them: " + a.Prompt.Command("import "+schema.ShellWord(session))
		if transcripts == 0 && len(f.closed) == closed {
			return failure.New(failure.NotFound, hint, "%s", left)
		}
		f.notes = append(f.notes, left+"; "+hint)
	}
	if transcripts == 0 && len(f.closed) == closed {
		what := "no file is in " + dir
		if n := others + len(unknown); n > 0 {
			what = fmt.Sprintf("no transcript is in %s, but %s", dir, output.Plural(n, "other file"))
		}
		return failure.New(failure.NotFound, "name another directory, or the files themselves", "%s", what)
	}
	if n := len(unknown); n > 0 {
		shown := strings.Join(unknown[:min(n, maxNamed)], ", ")
		if n > maxNamed {
			shown += fmt.Sprintf(" and %d more", n-maxNamed)
		}
		f.notes = append(f.notes, fmt.Sprintf("omitted from %s, because their format is not recognised; import one by its name to see why: %s", dir, shown))
	}
	if others > 0 {
		f.notes = append(f.notes, fmt.Sprintf("%s %s omitted from %s: not transcripts", output.Plural(others, "other file"), output.InNumber(others, "was", "were"), dir))
	}
	return nil
}

func absolute(path string) string {
	if full, err := filepath.Abs(path); err == nil {
		return full
	}
	return filepath.Clean(path)
}

// tellApart adds the names of the directories above to files with the same name, as many as necessary, and endings to
// those of one directory. The names depend only on the set of files, not on their order: the same import gives the same
// ids.
func (f *found) tellApart() {
	parts := make([][]string, len(f.files))
	depth := make([]int, len(f.files))
	ending := make([]bool, len(f.files))
	name := func(i int) string {
		p := parts[i]
		name := strings.Join(p[max(0, len(p)-1-depth[i]):], "-")
		if ending[i] {
			name += strings.ReplaceAll(filepath.Ext(f.files[i]), ".", "-")
		}
		return name
	}
	for i, file := range f.files {
		full := filepath.ToSlash(absolute(file))
		parts[i] = strings.Split(strings.Trim(strings.TrimSuffix(full, filepath.Ext(full)), "/"), "/")
	}
	for again := true; again; {
		again = false
		same := make(map[string][]int)
		for i := range f.files {
			if !transcript.IsSubagent(f.files[i]) {
				same[name(i)] = append(same[name(i)], i)
			}
		}
		for _, files := range same {
			for _, i := range files {
				ambiguous := slices.ContainsFunc(files, func(j int) bool { return j != i && slices.Equal(parts[i], parts[j]) })
				switch {
				case len(files) < 2:
				case ambiguous && !ending[i]:
					ending[i], again = true, true
				case depth[i] < len(parts[i])-1:
					depth[i], again = depth[i]+1, true
				}
			}
		}
	}
	f.names = make(map[string]string)
	for i, file := range f.files {
		if depth[i] > 0 || ending[i] {
			f.names[file] = name(i)
		}
	}
	if n := len(f.names); n > 0 {
		f.notes = append(f.notes, fmt.Sprintf("%s %s a name with another file: the ids of their runs contain the directory's name, unless they were imported before", output.Plural(n, "file"), output.InNumber(n, "shares", "share")))
	}
}

const (
	// listedWithin bounds how long an import waits for the list of runs after its last progress.
	listedWithin = 10 * time.Second
	listedEvery  = 100 * time.Millisecond
)

// awaitListed waits until the list of runs, which comes from checkpoints, has all written runs. They are written in any
// case.
func (im *importer) awaitListed(ctx context.Context, fleet *publisher.Fleet) {
	last := time.Now()
	for len(im.written) > 0 {
		before := len(im.written)
		if err := im.lookForListed(ctx, fleet); err != nil {
			if ctx.Err() == nil {
				im.unlisted = fmt.Sprintf("could not check whether all runs are listed: %s", err)
			}
			return
		}
		now := time.Now()
		if len(im.written) < before {
			last = now
		}
		if len(im.written) == 0 {
			break
		}
		if now.Sub(last) > listedWithin {
			im.unlisted = fmt.Sprintf("%s %s not in the list of runs yet: the daemon is behind, and lists them once it has folded them",
				output.Plural(len(im.written), "run"), output.InNumber(len(im.written), "is", "are"))
			return
		}
		if pause.For(ctx, listedEvery) != nil {
			return
		}
	}
}

// lookForListed removes listed runs from the written ones. The latest ends come first.
func (im *importer) lookForListed(ctx context.Context, fleet *publisher.Fleet) error {
	request := schema.ListRequest{Status: []schema.Status{schema.StatusCompleted, schema.StatusFailed, schema.StatusCancelled}, Limit: schema.MaxList}
	for {
		page, err := fleet.List(ctx, request)
		if err != nil {
			return err
		}
		before := len(im.written)
		for i := range page.Runs {
			if r := &page.Runs[i]; im.written[r.Run] > 0 && r.Epoch >= im.written[r.Run] {
				delete(im.written, r.Run)
			}
		}
		if len(im.written) == 0 || len(im.written) == before || page.Next == "" {
			return nil
		}
		request.After = page.Next
	}
}
