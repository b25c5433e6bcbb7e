package transfer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// ImportCmd is waymark import.
type ImportCmd struct {
	File     []string `arg:"" optional:"" help:"Files, directories (recursively), or patterns such as runs/*.jsonl."`
	Format   string   `default:"auto" enum:"auto,openai-chat,claude-code,swe-agent" placeholder:"FORMAT" help:"auto, openai-chat, claude-code or swe-agent (default: auto)."`
	RunID    string   `name:"run-id" placeholder:"ID" help:"Run id, for a file with one run (default: from conversation or file name)."`
	Agent    string   `placeholder:"NAME" help:"Agent of the runs (default: the format's name)."`
	Executor string   `default:"waymark-import" placeholder:"NAME" help:"Executor of the runs (default: waymark-import)."`
	Speed    float64  `default:"0" placeholder:"N" help:"Keep the source's pauses, divided by N; 0: none (default: 0)."`
	Jobs     int      `default:"4" placeholder:"N" help:"Runs imported concurrently, each in memory (default: 4)."`

	DryRun   bool `help:"Only report what would be done."`
	TakeOver bool `help:"Also continue cancelled runs, and those of another executor, which is fenced."`
}

// Help is the text below the flags.
func (ImportCmd) Help() string {
	return `A repeated import adds only new messages, and reopens an ended run for them. If run and transcript differ, nothing is written ` +
		`(exit code 5). Runs of other executors, and cancelled ones, are left alone. A directory may have .json, .jsonl, .ndjson and .traj ` +
		`files; links are not followed.

Examples:
  waymark import sessions/*.jsonl
  waymark import --dry-run sessions`
}

// Results of importing a run.
const (
	fateImported  = "imported"
	fateContinued = "continued" // it had not ended
	fateAppended  = "appended"  // it had ended, and was reopened
	fateThere     = "already there"
	fateDiffers   = "differs"
	fateInUse     = "in use"
	fateCancelled = "cancelled" // a person cancelled it
	fateFailed    = "failed"
)

// fates are the results for transcripts, in the order of the summary.
var fates = []string{fateImported, fateContinued, fateAppended, fateThere, fateDiffers, fateInUse, fateCancelled, fateFailed}

// ofDryRun is the result that an import would have.
func ofDryRun(fate string) string {
	switch fate {
	case fateImported, fateContinued, fateAppended:
		return "would be " + fate
	default:
		return fate
	}
}

// importedRun is import's report of one run.
type importedRun struct {
	Kind   string            `json:"kind"` // run
	Run    string            `json:"run"`
	File   string            `json:"file"`
	Line   int               `json:"line,omitzero"`
	Format transcript.Format `json:"format"`
	Parent string            `json:"parent,omitzero"`
	Fate   string            `json:"fate"`
	// Status of the run after the import.
	Status schema.Status `json:"status"`
	Turns  int           `json:"turns"`
	Events int           `json:"events"`
	// Before is the number of events that already existed.
	Before int          `json:"events_before,omitzero"`
	Epoch  schema.Epoch `json:"epoch,omitzero"`
	Error  string       `json:"error,omitzero"`
	Notes  []string     `json:"notes,omitzero"`
}

// importedFile is import's report of one file.
type importedFile struct {
	Kind        string            `json:"kind"` // file
	File        string            `json:"file"`
	Format      transcript.Format `json:"format"`
	Lines       int               `json:"lines,omitzero"`
	Runs        int               `json:"runs"`
	Messages    int               `json:"messages"`
	Turns       int               `json:"turns"`
	Calls       int               `json:"tool_calls"`
	Unanswered  int               `json:"unanswered_calls,omitzero"`
	Compactions int               `json:"compactions,omitzero"`
	// Skipped counts the lines that are not messages, by type, and Dropped the members that are not kept, by name.
	Skipped map[string]int `json:"skipped,omitzero"`
	Dropped map[string]int `json:"dropped,omitzero"`
	// Replaced counts characters that are not valid in text.
	Replaced int      `json:"replaced,omitzero"`
	Problems []string `json:"problems,omitzero"`
	// MoreProblems counts the problems that are not listed.
	MoreProblems int      `json:"more_problems,omitzero"`
	Notes        []string `json:"notes,omitzero"`
}

// Run imports the files. An unreadable file, or an existing run, does not stop the import of the others; a failing
// server does.
func (c ImportCmd) Run(ctx context.Context, a *base.App) error {
	if len(c.File) == 0 {
		return failure.New(failure.Usage, "name transcripts", "there is nothing to import")
	}
	if c.Jobs < 1 || c.Jobs > 256 {
		return failure.New(failure.Usage, "use 1 to 256", "--jobs %d is out of range", c.Jobs)
	}
	replay := transcript.ReplayOptions{Speed: c.Speed, TakeOver: c.TakeOver}
	if err := replay.Validate(); err != nil {
		return &failure.Error{Code: failure.Usage, What: "--" + err.Error(), Hint: "see: waymark import --help", Err: err}
	}
	options := transcript.Options{Format: transcript.Format(c.Format), RunID: c.RunID, Agent: c.Agent, Stop: ctx.Err}
	if err := errors.Join(options.Validate(), schema.CheckName("executor", c.Executor)); err != nil {
		return err
	}
	found, err := findTranscripts(ctx, a, c.File, options)
	if err != nil {
		return err
	}
	if c.RunID != "" && len(found.files) > 1 {
		return failure.New(failure.Usage, "import one file at a time, or omit --run-id", "--run-id names one run, but there are %d files", len(found.files))
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	im := &importer{
		app: a, options: options, replay: replay, jobs: c.Jobs, dryRun: c.DryRun, found: found,
		bar: a.Progress("importing", found.size, true), written: make(map[string]schema.Epoch), fates: make(map[string]int),
	}
	err = cl.WithExecutor(ctx, c.Executor, func(fleet *publisher.Fleet) error {
		if err := im.files(ctx, fleet); err != nil {
			return err
		}
		im.awaitListed(ctx, fleet)
		return nil
	})
	im.bar.Close()
	return im.finish(ctx, err)
}

// importer reads files one after the other, and replays their runs concurrently.
type importer struct {
	app     *base.App
	options transcript.Options
	replay  transcript.ReplayOptions
	jobs    int
	dryRun  bool
	found   *found
	bar     *output.Progress

	// mu guards the fields below.
	mu    sync.Mutex
	fates map[string]int
	// busy has the runs in progress or waiting, each with the end of the last import in its queue.
	busy map[string]chan struct{}
	// shown are the runs of the table, at most maxShown; the others are only counted.
	shown []importedRun
	seen  []importedFile
	// written are the runs to which events were published, with their epochs.
	written  map[string]schema.Epoch
	unlisted string
	events   int
	problems int
	notes    []string
	failures []notImported
}

// maxShown bounds the rows of import's table.
const maxShown = 40

// maxFailures bounds the failures with a line of their own.
const maxFailures = 1000

// files imports files. It returns an error that ends the whole import, such as a lost server.
func (im *importer) files(ctx context.Context, fleet *publisher.Fleet) error {
	im.busy = make(map[string]chan struct{})
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(im.jobs)
	for _, file := range im.found.files {
		if within.Err() != nil {
			break
		}
		if err := im.file(within, group, fleet, file); err != nil {
			return errors.Join(group.Wait(), err)
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return context.Cause(ctx) // this error is the only report of files that were not begun
}

// enqueue registers the import of a run, which several files may contain. behind is closed when the earlier imports of
// the run are done; call over when this one is done.
func (im *importer) enqueue(run string) (behind <-chan struct{}, over func()) {
	im.mu.Lock()
	defer im.mu.Unlock()
	before, mine := im.busy[run], make(chan struct{})
	if before == nil {
		before = make(chan struct{})
		close(before)
	}
	im.busy[run] = mine
	return before, func() {
		im.mu.Lock()
		defer im.mu.Unlock()
		close(mine)
		if im.busy[run] == mine {
			delete(im.busy, run)
		}
	}
}

// file reads one file and passes its runs to group. Its report comes after its runs.
func (im *importer) file(ctx context.Context, group *errgroup.Group, fleet *publisher.Fleet, path string) error {
	var read atomic.Int64
	options := im.options
	options.Name = im.name(ctx, fleet, path)
	options.OnRead = func(n int) { read.Add(int64(n)) }
	opened, err := transcript.Open(path, options)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil //nolint:nilerr // the interruption is reported once for all files
	case err != nil:
		im.failed(path, err)
		return nil
	}
	// left counts the unfinished runs, plus the reading of the file.
	var left atomic.Int64
	left.Add(1)
	done := func() error {
		if left.Add(-1) > 0 || ctx.Err() != nil {
			return nil //nolint:nilerr // the interruption is reported once for all files
		}
		if err := opened.Err(); err != nil {
			im.failed(path, err)
			return nil
		}
		return im.report(opened.Report())
	}
	for run := range opened.Runs() {
		if ctx.Err() != nil {
			break
		}
		// The bytes read for this run are its share of the bar.
		share := float64(read.Swap(0))
		left.Add(1)
		behind, over := im.enqueue(run.ID)
		group.Go(func() error {
			defer over()
			<-behind
			return errors.Join(im.run(ctx, fleet, run, share), done())
		})
	}
	return done()
}

// name is the name to use for a file that shares its name with another one; empty for the file's own. A file that was
// imported before the other one existed keeps its own.
func (im *importer) name(ctx context.Context, fleet *publisher.Fleet, path string) string {
	name := im.found.names[path]
	if name == "" {
		return ""
	}
	opened, err := transcript.Open(path, im.options)
	if err != nil {
		return name // the import reports the error
	}
	for run := range opened.Runs() {
		if _, err := fleet.Head(ctx, run.ID); err != nil {
			break
		}
		if _, err := transcript.Compare(ctx, fleet, run, im.replay); err != nil && !errors.Is(err, transcript.ErrInUse) && !errors.Is(err, transcript.ErrCancelled) {
			break
		}
		im.mu.Lock()
		defer im.mu.Unlock()
		im.notes = append(im.notes, fmt.Sprintf("run %s keeps its id: %s was imported before another file with its name existed", run.ID, path))
		return ""
	}
	return name
}

// Run replays one run.
func (im *importer) run(ctx context.Context, fleet *publisher.Fleet, run *transcript.Run, share float64) error {
	options := im.replay
	moved := 0.0
	options.OnBoundary = func(b transcript.Boundary) {
		to := share * float64(b.Step) / float64(b.Steps)
		im.bar.Add(to - moved)
		moved = to
	}
	do := transcript.Replay
	if im.dryRun {
		do = transcript.Compare
	}
	outcome, err := do(ctx, fleet, run, options)
	im.bar.Add(share - moved)
	done := importedRun{
		Kind: "run", Run: run.ID, File: run.File, Line: run.Line, Format: run.Format, Turns: run.Turns(), Events: outcome.Steps,
		Before: outcome.Done, Epoch: outcome.Epoch, Status: run.End.Status,
	}
	if run.Parent != nil {
		done.Parent = run.Parent.Run
	}
	done.Fate = fateOf(outcome, err)
	if err != nil {
		done.Error = err.Error()
	} else if outcome.Done < outcome.Steps {
		done.Notes = outcome.Notes
	} else if outcome.More != "" {
		done.Notes = []string{fmt.Sprintf("run %s has all of %s, and more: %s", run.ID, run.File, outcome.More)}
	}
	if im.dryRun {
		done.Fate = ofDryRun(done.Fate)
	}
	if noteErr := im.note(done, err); noteErr != nil {
		return noteErr
	}
	if err != nil && endsImport(ctx, err) {
		return err
	}
	return nil
}

// fateOf returns the result of a replay.
func fateOf(outcome transcript.Outcome, err error) string {
	switch {
	case errors.Is(err, transcript.ErrDiverged):
		return fateDiffers
	case errors.Is(err, transcript.ErrInUse):
		return fateInUse
	case errors.Is(err, transcript.ErrCancelled):
		return fateCancelled
	case err != nil:
		return fateFailed
	case outcome.Reopened:
		return fateAppended
	case outcome.Resumed:
		return fateContinued
	case outcome.Done == outcome.Steps:
		return fateThere
	default:
		return fateImported
	}
}

// endsImport reports whether the next run would fail in the same way.
func endsImport(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return true
	}
	return slices.Contains([]failure.Code{failure.Unavailable, failure.Full, failure.Refused}, failure.Explain(ctx, err).Code)
}

// note records the result of a run.
func (im *importer) note(done importedRun, err error) error {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.fates[done.Fate]++
	if err == nil {
		im.events += done.Events - done.Before
		if done.Epoch > 0 {
			im.written[done.Run] = done.Epoch
		}
	}
	im.notes = append(im.notes, done.Notes...)
	if err != nil && len(im.failures) < maxFailures {
		im.failures = append(im.failures, notImported{err, done})
	}
	if im.app.JSON {
		return output.Line(im.app.Stdout, done)
	}
	if len(im.shown) < maxShown {
		im.shown = append(im.shown, done)
	}
	return nil
}

// failed records an unreadable file; the others are still imported.
func (im *importer) failed(file string, err error) {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.fates[fateFailed]++
	if len(im.failures) < maxFailures {
		im.failures = append(im.failures, notImported{err, importedRun{File: file}})
	}
}

// report records what was read from a file.
func (im *importer) report(r *transcript.Report) error {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.problems += len(r.Problems) + r.MoreProblems
	file := importedFile{
		Kind: "file", File: r.File, Format: r.Format, Lines: r.Lines, Runs: r.Runs, Messages: r.Messages, Turns: r.Turns,
		Calls: r.Calls, Unanswered: r.Unanswered, Compactions: r.Compactions, Skipped: r.Skipped, Dropped: r.Dropped, Replaced: r.Replaced,
		MoreProblems: r.MoreProblems, Notes: r.Notes,
	}
	for _, p := range r.Problems {
		file.Problems = append(file.Problems, p.Error())
		if _, err := fmt.Fprintf(im.app.Stderr, "not imported: %s\n", output.Printable(p.Error())); err != nil {
			return err
		}
	}
	im.seen = append(im.seen, file)
	if im.app.JSON {
		return output.Line(im.app.Stdout, file)
	}
	return nil
}

func (im *importer) print() error {
	rows := make([][]string, len(im.shown))
	for i, r := range im.shown {
		rows[i] = []string{r.Run, string(r.Format), r.Fate, string(r.Status), output.Number(r.Turns), output.Number(r.Events), output.Number(r.Before), r.Parent}
	}
	if err := output.Table(im.app.Stdout, []output.Column{
		{Title: "run"},
		{Title: "format", Drop: 2},
		{Title: "fate"},
		{Title: "ends", Drop: 4},
		{Title: "turns", Right: true},
		{Title: "events", Right: true},
		{Title: "before", Right: true, Drop: 3},
		{Title: "parent", Drop: 1},
	}, rows); err != nil {
		return err
	}
	var sum importedFile
	skipped := map[string]int{}
	for _, f := range im.seen {
		sum.Lines, sum.Runs, sum.Messages = sum.Lines+f.Lines, sum.Runs+f.Runs, sum.Messages+f.Messages
		sum.Turns, sum.Calls, sum.Unanswered = sum.Turns+f.Turns, sum.Calls+f.Calls, sum.Unanswered+f.Unanswered
		sum.Compactions += f.Compactions
		for kind, n := range f.Skipped {
			skipped[kind] += n
		}
		sum.Notes = append(sum.Notes, f.Notes...)
	}
	counts := ""
	for _, fate := range fates {
		for _, fate := range slices.Compact([]string{fate, ofDryRun(fate)}) {
			if n := im.fates[fate]; n > 0 {
				counts = output.Words(counts, fmt.Sprintf("%d %s", n, fate))
			}
		}
	}
	sum.Notes = slices.Concat(im.found.notes, im.notes, sum.Notes)
	if im.unlisted != "" {
		sum.Notes = append(sum.Notes, im.unlisted)
	}
	if len(rows) > 0 {
		if _, err := fmt.Fprintln(im.app.Stdout); err != nil {
			return err
		}
	}
	if err := output.Fields(im.app.Stdout,
		"files", output.Number(len(im.seen)), "runs", counts, "events", output.Number(im.events), "messages", output.Number(sum.Messages), "turns", output.Number(sum.Turns),
		"tool calls", callsText(sum.Calls, sum.Unanswered), "compactions", output.Number(sum.Compactions),
		"lines", output.Number(sum.Lines), "refused", output.Number(im.problems),
	); err != nil {
		return err
	}
	if err := im.printSkipped(skipped); err != nil {
		return err
	}
	return im.printNotes(sum.Notes)
}

// total counts the runs and the unreadable files.
func (im *importer) total() (n int) {
	for _, of := range im.fates {
		n += of
	}
	return n
}

func (im *importer) printNotes(notes []string) error {
	for i, n := range notes {
		if i == maxShown {
			_, err := fmt.Fprintf(im.app.Stderr, "and %s\n", output.Plural(len(notes)-i, "more note"))
			return err
		}
		if _, err := fmt.Fprintf(im.app.Stderr, "note: %s\n", output.Printable(n)); err != nil {
			return err
		}
	}
	return nil
}

// printSkipped lists the lines that are not messages, by type: an export does not restore these lines.
func (im *importer) printSkipped(kinds map[string]int) error {
	if len(kinds) == 0 {
		return nil
	}
	total := 0
	rows := make([][]string, 0, len(kinds))
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		total += kinds[kind]
		rows = append(rows, []string{output.Number(kinds[kind]), kind})
	}
	if _, err := fmt.Fprintf(im.app.Stdout, "\n%s:\n", output.Plural(total, "line")+output.InNumber(total, " is not a message and was", " are not messages and were")+" not stored"); err != nil {
		return err
	}
	return output.Table(im.app.Stdout, []output.Column{{Title: "lines", Right: true}, {Title: "type", Shrinks: true}}, rows)
}

func callsText(calls, unanswered int) string {
	if unanswered == 0 {
		return output.Number(calls)
	}
	return fmt.Sprintf("%d, %d of them without a result", calls, unanswered)
}
