package transcript

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/form"
	"github.com/waymarkio/waymark/schema"
)

// Options say how to read a file.
type Options struct {
	// Format of the file; zero means [Auto].
	Format Format
	// RunID is the id of the file's one run. Zero: from the conversation or the file's name.
	RunID string
	// Agent is the agent's name. Zero: the format's name.
	Agent string
	// MaxLine bounds a line, in bytes; a longer one is a problem of the report. Zero means [DefaultMaxLine].
	MaxLine int
	// Name replaces the file's name in the ids of its runs, which are derived from the file if the conversation has no
	// id; zero means the file's own name. It distinguishes files with the same name.
	Name string
	// Stop is called before each read and each message, and ends the read with its error; nil never does.
	Stop func() error
	// OnRead is called with the number of bytes read, for a progress bar; nil means no callback.
	OnRead func(n int)
}

// Validate returns an error that names the wrong field and value.
func (o Options) Validate() error {
	if _, err := ParseFormat(string(o.Format)); err != nil {
		return err
	}
	if o.RunID != "" {
		if err := schema.CheckName("run id", o.RunID); err != nil {
			return err
		}
	}
	if o.Agent != "" {
		if err := schema.CheckName("agent", o.Agent); err != nil {
			return err
		}
	}
	if o.MaxLine < 0 {
		return fmt.Errorf("MaxLine %d is negative", o.MaxLine)
	}
	return nil
}

func (o Options) maxLine() int {
	if o.MaxLine == 0 {
		return DefaultMaxLine
	}
	return o.MaxLine
}

func (o Options) agent(f Format) string {
	if o.Agent != "" {
		return o.Agent
	}
	return string(f)
}

// runID is the run's id: the requested one, otherwise a name made safe.
func (o Options) runID(name string, rep *Report) string {
	if o.RunID != "" {
		return o.RunID
	}
	return o.safe(name, rep)
}

// name is the name of a file in the ids of its runs.
func (o Options) name(path string) string {
	if o.Name != "" {
		return o.Name
	}
	return fileBase(path)
}

// safe returns a name if it is a run id, else a run id made from it: the same name always gives the same id.
func (o Options) safe(name string, rep *Report) string {
	id := SafeID(name)
	if id != name {
		rep.note("run id %q is not valid and became %s", clip(name), id)
	}
	return id
}

// clip bounds a text that comes from a file.
func clip(s string) string { return schema.Cut(s, 120) }

// SafeID returns name if it is a valid run id. Otherwise it keeps the valid characters and adds eight hex digits of the
// hash, so that different names stay different.
func SafeID(name string) string {
	if schema.ValidName(name) {
		return name
	}
	var b strings.Builder
	for _, r := range name {
		ok := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-'
		switch {
		case b.Len() >= schema.MaxName-9:
		case ok && (b.Len() > 0 || r != '_' && r != '-'):
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	sum := sha256.Sum256([]byte(name))
	base := strings.TrimRight(b.String(), "-")
	if base == "" {
		base = "run"
	}
	return base + "-" + hex.EncodeToString(sum[:4])
}

// fileBase is a file's name without its last extension. Both kinds of slash separate directories, so that a path from
// another system gives the same name.
func fileBase(path string) string {
	base := filepath.Base(path)
	if i := strings.LastIndexAny(base, `/\`); i >= 0 {
		base = base[i+1:]
	}
	return strings.TrimSuffix(base, filepath.Ext(base))
}

// File is an opened transcript. [File.Runs] reads it.
type File struct {
	path  string
	opts  Options
	rep   *Report
	lines bool
	err   error
}

// Open recognises the file's format and prepares to read it. It returns [ErrUnknownFormat], [ErrSeveralRuns], or an
// error of opts or of the file.
func Open(path string, opts Options) (*File, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	f := &File{path: path, opts: opts, rep: &Report{File: path, Format: opts.Format, stop: opts.Stop}}
	found, lines, err := detect(path, opts)
	if err != nil && (opts.Format == "" || opts.Format == Auto || !errors.Is(err, ErrUnknownFormat)) {
		return nil, fmt.Errorf("open transcript %s: %w", path, err)
	}
	f.lines = lines
	if opts.Format != "" && opts.Format != Auto && found != "" && found != opts.Format {
		f.rep.note("%s looks like %s, but is read as %s, the given format", path, found, opts.Format)
	}
	if f.rep.Format == "" || f.rep.Format == Auto {
		f.rep.Format = found
	}
	if opts.RunID != "" && f.rep.Format == OpenAIChat {
		n, err := f.countRuns(2)
		if err != nil {
			return nil, fmt.Errorf("open transcript %s: %w", path, err)
		}
		if n > 1 {
			return nil, fmt.Errorf("open transcript %s with run id %s: %w", path, opts.RunID, ErrSeveralRuns)
		}
	}
	return f, nil
}

// Report returns the report, which is complete once [File.Runs] is exhausted.
func (f *File) Report() *Report { return f.rep }

// Err returns the error that ended the read early, such as a disk error; problems of single lines are in the report.
func (f *File) Err() error { return f.err }

// Runs yields the file's runs, with one in memory at a time; a session's main thread comes before its sub-agents. Use
// it once.
func (f *File) Runs() iter.Seq[*Run] {
	return func(each func(*Run) bool) {
		yield := func(run *Run) bool {
			f.rep.mend(run)
			return each(run)
		}
		var err error
		switch {
		case f.rep.Format == ClaudeCode:
			err = claudeRuns(f.path, f.rep, f.opts, yield)
		case f.lines:
			err = f.lineRuns(yield)
		default:
			err = f.documentRuns(yield)
		}
		if err == nil {
			err = f.rep.stopped() // stopped between two reads
		}
		f.rep.close()
		switch {
		case err != nil:
			f.err = fmt.Errorf("read transcript %s: %w", f.path, err)
		case f.rep.Runs > 0:
		case f.rep.Format == ClaudeCode: // the session may have only started
			f.rep.note("%s has no message yet: nothing to import", f.path)
		case len(f.rep.Problems) == 0:
			f.rep.problem(0, "", errEmpty)
		}
	}
}

// incompleteType is the type of the error of a run whose transcript has lines that could not be read.
const incompleteType = "incomplete_transcript"

// mend ends a run as failed if lines of its file could not be read, because its completion is unknown. Only a session
// can be read in part: a conversation or a trajectory is read as a whole or refused. The text names no file, so that it
// does not depend on the file's location.
func (r *Report) mend(run *Run) {
	if run.Format != ClaudeCode {
		return
	}
	refused := r.refused[run.File]
	if refused.lines == 0 {
		return
	}
	text := "a line of the transcript could not be read: " + refused.first
	if refused.lines > 1 {
		text = fmt.Sprintf("%d lines of the transcript could not be read, the first is %s", refused.lines, refused.first)
	}
	if run.End.Status != schema.StatusCompleted {
		run.End.Summary += "; " + text
		return
	}
	run.End.Status, run.End.Summary = schema.StatusFailed, text
	run.End.Error = &schema.Error{Type: incompleteType, Message: text}
}

var errEmpty = errors.New("the file holds no run")

// lineRuns reads one conversation per line.
func (f *File) lineRuns(yield func(*Run) bool) error {
	file, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	lines := newLineReader(&input{file, &f.opts}, f.opts.maxLine())
	ids := make(map[string]int)
	for {
		b, err := lines.next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, errLongLine):
			f.rep.problem(lines.line, "", err)
			continue
		case err != nil:
			return err
		}
		f.rep.Lines++
		if isBlank(b) {
			f.rep.skip("blank")
			continue
		}
		b, err = f.rep.text(b, lines.line)
		if err != nil {
			p, cause := jsonProblem(err)
			f.rep.problem(lines.line, p, cause)
			continue
		}
		if !f.one(b, lines.line, -1, ids, yield) {
			return nil
		}
	}
}

// documentRuns reads one JSON document: a run, or an array of runs or of one run's messages.
func (f *File) documentRuns(yield func(*Run) bool) error {
	file, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	r := bufio.NewReaderSize(&input{file, &f.opts}, 256<<10)
	bom, err := skipBOM(r)
	if err != nil {
		return err
	}
	ids := make(map[string]int)
	// Lenient here, strict on each value: one bad element must not hide the others.
	d := jsontext.NewDecoder(r, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	fail := func(err error) error {
		if errors.Is(err, io.EOF) {
			return nil
		}
		var syntactic *jsontext.SyntacticError
		if !errors.As(err, &syntactic) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		p, cause := jsonProblem(err)
		f.rep.problem(lineAt(f.path, int64(bom)+errorOffset(err, d.InputOffset())), p, cause)
		return nil
	}
	end := func() {
		if _, err := d.ReadValue(); !errors.Is(err, io.EOF) {
			f.rep.problem(lineAt(f.path, int64(bom)+errorOffset(err, d.InputOffset())), "", errors.New("data follows the document"))
		}
	}
	list := d.PeekKind() == '[' && f.rep.Format == OpenAIChat && !f.messageList()
	if !list {
		v, err := d.ReadValue()
		if err != nil {
			return fail(err)
		}
		f.document(v, int64(bom)+d.InputOffset()-int64(len(v)), -1, ids, yield)
		end()
		return nil
	}
	if _, err := d.ReadToken(); err != nil {
		return fail(err)
	}
	for i := 0; d.PeekKind() != ']'; i++ {
		v, err := d.ReadValue()
		if err != nil {
			return fail(err)
		}
		if !f.document(v, int64(bom)+d.InputOffset()-int64(len(v)), i, ids, yield) {
			return nil
		}
	}
	if _, err := d.ReadToken(); err != nil {
		return fail(err)
	}
	end()
	return nil
}

// document reads one value of a document that begins at a byte offset.
func (f *File) document(v jsontext.Value, offset int64, index int, ids map[string]int, yield func(*Run) bool) bool {
	line := 1
	if index >= 0 {
		line = lineAt(f.path, offset)
	}
	v, err := f.rep.text(v, line)
	if err != nil {
		p, cause := jsonProblem(err)
		f.rep.problem(lineAt(f.path, offset+errorOffset(err, 0)), indexed(index, p), cause)
		return true
	}
	return f.one(v, line, index, ids, yield)
}

// errorOffset is where the JSON reader stopped; for other errors the given offset.
func errorOffset(err error, otherwise int64) int64 {
	if syntactic, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		return syntactic.ByteOffset
	}
	return otherwise
}

func indexed(index int, path string) string {
	if index < 0 {
		return path
	}
	return fmt.Sprintf("/%d%s", index, path)
}

// one reads a checked value as a run and yields it.
func (f *File) one(v jsontext.Value, line, index int, ids map[string]int, yield func(*Run) bool) bool {
	run := &Run{ID: f.idOf(v, line, index, ids), Agent: f.opts.agent(f.rep.Format), File: f.path, Line: line}
	parse := openAIRun
	if f.rep.Format == SWEAgent {
		parse = sweRun
	}
	run, err := parse(v, run, f.rep)
	if f.rep.stopped() != nil {
		return false
	}
	if err != nil {
		p := pathOf(err)
		if in, ok := errors.AsType[*pathError](err); ok {
			err = in.err
		}
		f.rep.problem(line, indexed(index, p), err)
		return true
	}
	f.rep.count(run)
	return yield(run)
}

// idOf is the conversation's own id, otherwise the file's name; further runs of a file add line or index.
func (f *File) idOf(v jsontext.Value, line, index int, ids map[string]int) string {
	if f.opts.RunID != "" {
		return f.opts.RunID
	}
	name := ""
	if o, ok := form.ParseObject(v); ok && f.rep.Format == OpenAIChat {
		name, _ = o.Str("id")
	}
	if name == "" {
		name = f.opts.name(f.path)
		switch {
		case index >= 0:
			name = fmt.Sprintf("%s-%d", name, index)
		case f.lines:
			name = fmt.Sprintf("%s-%d", name, line)
		}
	}
	id := f.opts.safe(name, f.rep)
	if before, again := ids[id]; again {
		place := max(line, index)
		unique := SafeID(fmt.Sprintf("%s-%d", id, place))
		f.rep.note("run id %s of line %d was used in line %d and became %s", id, line, before, unique)
		id = unique
	}
	ids[id] = line
	return id
}

// countRuns counts the runs of a file up to a limit.
func (f *File) countRuns(limit int) (int, error) {
	n := 0
	probe := &File{path: f.path, lines: f.lines, rep: &Report{File: f.path, Format: f.rep.Format, stop: f.opts.Stop}}
	probe.opts = f.opts
	probe.opts.OnRead, probe.opts.RunID = nil, ""
	for range probe.Runs() {
		if n++; n >= limit {
			break
		}
	}
	return n, probe.Err()
}
