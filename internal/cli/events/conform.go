package events

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/conform"
	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/internal/keyring"
	"github.com/waymarkio/waymark/internal/permissions"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// ConformCmd is waymark conform.
type ConformCmd struct {
	Files    []string      `arg:"" name:"file" optional:"" help:"Recordings to check, - for standard input (default: watch the fleet)."`
	Run_     string        `name:"run" placeholder:"RUN" help:"Check one run, from its first event on."`
	All      bool          `help:"Begin with the oldest event in the log."`
	NoFollow bool          `help:"Stop at the end of the log."`
	For      time.Duration `placeholder:"TIME" help:"Stop after this time, such as 2m; 0: on Ctrl-C, or when all of --expect were seen."`
	Expect   []string      `placeholder:"SCENARIO" help:"Scenarios that must be seen, or all."`
	Strict   bool          `help:"Fail on rules of level should, too."`
	Record   string        `placeholder:"FILE" help:"Record the events in a new file."`
	Rules    bool          `help:"List the rules and exit."`
	Scenes   bool          `name:"scenarios" help:"List the scenarios and exit."`
}

// Help is the text below the flags.
func (ConformCmd) Help() string {
	return `Each broken rule is reported with the event, the field, the expected and the actual value, and what to do (docs/conformance.md). ` +
		`An observer's permissions are enough; heartbeats and NATS headers are checked only if the login may subscribe to published ` +
		`messages. The exit code is 9 if a rule of level must is broken or an expected scenario was not seen.

Examples:
  waymark conform                                      new events, until Ctrl-C
  waymark conform --expect start,resume-hold --for 5m  run two scenarios meanwhile
  waymark conform --run fix-login --no-follow           one run up to now
  waymark export fix-login --format cloudevents -o run.jsonl; waymark conform run.jsonl --json`
}

// Run checks recordings, or watches the fleet.
func (c ConformCmd) Run(ctx context.Context, a *base.App) error {
	switch {
	case c.Rules:
		return c.list(a)
	case c.Scenes:
		return c.scenes(a)
	case len(c.Files) > 0 && (c.Run_ != "" || c.All || c.NoFollow || c.For != 0 || c.Record != ""):
		return failure.New(failure.Usage, "to watch the fleet, omit the files", "--run, --all, --no-follow, --for and --record need a watched fleet, not files")
	case c.NoFollow && !c.All && c.Run_ == "":
		return failure.New(failure.Usage, "add --all, or name a run with --run", "--no-follow would check nothing: it begins at the end of the log")
	case c.For < 0:
		return failure.New(failure.Usage, "use a time such as 2m", "--for %s is below 0", c.For)
	}
	if len(c.Expect) == 1 && c.Expect[0] == "all" {
		c.Expect = nil
		for _, s := range conform.Scenarios() {
			c.Expect = append(c.Expect, s.ID)
		}
	}
	config := conform.Config{Expect: c.Expect}
	if len(c.Files) == 0 {
		config.Fleet = a.Fleet
	}
	checker, err := conform.New(config)
	if err != nil {
		return failure.New(failure.Usage, "list them with: waymark conform --scenarios", "%s", err)
	}
	if len(c.Files) == 0 {
		err = c.watch(ctx, a, checker)
	} else {
		err = c.read(a, checker)
	}
	if err != nil {
		return err
	}
	return c.conclude(a, checker)
}

// read checks recordings.
func (c ConformCmd) read(a *base.App, checker *conform.Checker) error {
	for _, name := range c.Files {
		if err := readRecording(a, checker, name); err != nil {
			if errors.Is(err, conform.ErrRecording) {
				return failure.New(failure.Damaged, "write one with: waymark export RUN --format cloudevents, or: waymark conform --record FILE", "%s", err)
			}
			return err
		}
	}
	shown := 0
	return c.show(a, checker, &shown)
}

func readRecording(a *base.App, checker *conform.Checker, name string) error {
	if name == "-" {
		return checker.ReadRecording("standard input", a.Stdin)
	}
	file, err := os.Open(filepath.Clean(name))
	if errors.Is(err, os.ErrNotExist) {
		hint := "name a file written by " + a.Prompt.Command("conform --record FILE") + " or " + a.Prompt.Command("export RUN --format cloudevents")
		if schema.ValidName(name) {
			hint += "; to check a run of the fleet: " + a.Prompt.Command("conform --run "+name+" --no-follow")
		}
		return failure.New(failure.NotFound, hint, "file %s does not exist", name)
	}
	if err != nil {
		return fmt.Errorf("reading a recording: %w", err)
	}
	return errors.Join(checker.ReadRecording(name, file), file.Close())
}

// conformWatch checks a fleet while it works.
type conformWatch struct {
	ConformCmd
	a        *base.App
	cl       *base.Client
	checker  *conform.Checker
	keys     *keyring.Ring
	settings schema.FleetSettings
	recorder *conform.Recorder
	shown    int
}

func (c ConformCmd) watch(ctx context.Context, a *base.App, checker *conform.Checker) (err error) {
	w := &conformWatch{ConformCmd: c, a: a, checker: checker}
	if c.Record != "" {
		file, err2 := os.OpenFile(c.Record, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if errors.Is(err2, os.ErrExist) {
			return failure.New(failure.Conflict, "name a new file", "%s exists", c.Record)
		}
		if err2 != nil {
			return fmt.Errorf("recording: %w", err2)
		}
		out := bufio.NewWriter(file)
		w.recorder = conform.NewRecorder(out)
		defer func() { err = errors.Join(err, out.Flush(), file.Close()) }()
	}
	w.cl, err = a.Connect(ctx, nats.MaxReconnects(-1), nats.ReconnectWait(time.Second),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			// An observer may not subscribe to published messages: then check the log alone.
			if e, ok := permissions.From(err); ok && (e.Publish || !slices.Contains(w.subjects(), e.Subject)) {
				a.Refuse(e)
			}
		}))
	if err != nil {
		return err
	}
	js, settings, err := w.cl.Settings(ctx)
	if err != nil {
		return err
	}
	w.settings = settings
	if w.keys, err = kvstore.NewKeyring(js, w.cl.Fleet); err != nil {
		return err
	}
	if c.For > 0 {
		bounded, cancel := context.WithTimeout(ctx, c.For)
		defer cancel()
		err = w.follow(bounded)
		if bounded.Err() != nil && ctx.Err() == nil {
			return w.rest(err)
		}
	} else {
		err = w.follow(ctx)
	}
	if ctx.Err() != nil {
		return w.rest(err)
	}
	if errors.Is(err, errSeen) {
		return nil
	}
	return err
}

// rest treats the end of the time as success: the report follows.
func (*conformWatch) rest(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errSeen) {
		return nil
	}
	return err
}

// errSeen ends the watch: all expected scenarios were seen.
var errSeen = errors.New("all expected scenarios were seen")

// subjects are the subjects of published messages, watched in addition to the log.
func (w *conformWatch) subjects() []string {
	run := "*"
	if w.Run_ != "" {
		run = w.Run_
	}
	return []string{schema.HeartbeatSubject(w.a.Fleet, "*"), "waymark.events." + w.a.Fleet + ".*." + run}
}

// follow checks events as they arrive.
func (w *conformWatch) follow(ctx context.Context) error {
	published := make(chan *nats.Msg, eventsPending)
	for _, subject := range w.subjects() {
		sub, err := w.cl.NATS.ChanSubscribe(subject, published)
		if err != nil {
			return fmt.Errorf("subscribing to %s: %w", subject, err)
		}
		defer func() { _ = sub.Unsubscribe() }() // the connection is closed next
	}
	if err := w.cl.NATS.Flush(); err != nil {
		return fmt.Errorf("subscribing to published messages: %w", err)
	}
	if !w.NoFollow { // true from here on: the server knows the subscriptions
		w.say("watching fleet %s: end with Ctrl-C\n", w.cl.Fleet)
	}
	follow := Cmd{Run_: w.Run_, All: w.All || w.Run_ != "", NoFollow: w.NoFollow, everyShard: true}
	return follow.follow(ctx, w.cl, func(m eventlog.Arrived) error {
		if err := w.hear(published); err != nil {
			return err
		}
		return w.judge(ctx, m)
	}, func() error { return w.hear(published) })
}

// hear checks received published messages.
func (w *conformWatch) hear(published <-chan *nats.Msg) error {
	for {
		select {
		case m := <-published:
			seen := conform.Message{Subject: m.Subject, At: time.Now(), Record: schema.Record{Header: m.Header, Body: m.Data}}
			if strings.HasPrefix(m.Subject, "waymark.heartbeats.") {
				w.checker.Heartbeat(seen)
			} else {
				w.checker.Wire(seen)
			}
			if w.recorder != nil {
				if err := w.recorder.Published(&seen); err != nil {
					return err
				}
			}
		default:
			return w.progress()
		}
	}
}

func (w *conformWatch) progress() error {
	if err := w.show(w.a, w.checker, &w.shown); err != nil {
		return err
	}
	if !w.NoFollow && w.checker.Done() {
		return errSeen
	}
	return nil
}

// judge checks a message of the log; before the first one of a run, its earlier events.
func (w *conformWatch) judge(ctx context.Context, m eventlog.Arrived) error {
	run := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	home := w.home(run, m.Subject)
	if home == "" && w.Run_ == "" && schema.ValidName(run) && !w.checker.Knows(run) {
		if err := w.history(ctx, run, m); err != nil {
			return err
		}
	}
	return w.take(ctx, m, home)
}

// home returns the subject in the run's shard if the message's subject is in another shard.
func (w *conformWatch) home(run, subject string) (home string) {
	if !schema.ValidName(run) {
		return "" // an invalid run id has no shard
	}
	right := schema.NamesOf(w.cl.Fleet, schema.ShardOf(run, w.settings.Shards)).EventSubject(run)
	if right == subject {
		return ""
	}
	return right
}

// take checks a message. home is empty, or the subject in the run's shard if the message is in another one.
func (w *conformWatch) take(ctx context.Context, m eventlog.Arrived, home string) error {
	seen := conform.Message{Subject: m.Subject, Home: home, Record: m.Record}
	keys, err := w.keys.Keys(ctx)
	if err != nil {
		return err
	}
	w.checker.Add(keys, seen)
	if w.recorder != nil {
		if err := w.recorder.Log(&seen); err != nil {
			return err
		}
	}
	return w.progress()
}

// history checks a run's events before a message.
func (w *conformWatch) history(ctx context.Context, run string, before eventlog.Arrived) error {
	reader := Cmd{Run_: run, All: true, NoFollow: true}
	errReached := errors.New("reached")
	err := reader.follow(ctx, w.cl, func(m eventlog.Arrived) error {
		if m.Subject == before.Subject && m.Record.Stream >= before.Record.Stream {
			return errReached
		}
		return w.take(ctx, m, "")
	}, nil)
	if errors.Is(err, errReached) || errors.Is(err, kvstore.ErrNotFound) {
		return nil
	}
	return err
}

func (w *conformWatch) say(format string, args ...any) {
	if !w.a.Quiet && !w.a.JSON {
		// There is nowhere to report that standard error is closed.
		_, _ = fmt.Fprintf(w.a.Stderr, format, args...)
	}
}

// Show prints the findings that were not shown yet.
func (ConformCmd) show(a *base.App, checker *conform.Checker, shown *int) error {
	findings := checker.Findings()
	if a.JSON {
		*shown = len(findings)
		return nil // the report has them
	}
	for ; *shown < len(findings); *shown++ {
		f := &findings[*shown]
		for _, l := range []struct{ head, text string }{
			{fmt.Sprintf("%s %s  ", f.Rule, f.Level), f.Place()},
			{"  ", f.Text},
			{"  expected  ", f.Expected},
			{"  found     ", f.Found},
			{"  next      ", fmt.Sprintf("%s (%s)", f.Next, f.Section)},
			{"", ""},
		} {
			if _, err := fmt.Fprintln(a.Stdout, output.Hanging(a.Stdout, l.head, l.text)); err != nil {
				return err
			}
		}
	}
	return nil
}

// conclude prints the report, and returns the command's failure.
func (c ConformCmd) conclude(a *base.App, checker *conform.Checker) error {
	report := checker.Report()
	if c.Strict && report.Should > 0 {
		report.Passed = false
	}
	if report.Events == 0 && report.Must+report.Should == 0 { // a report would list all rules as not checked
		switch {
		case c.Run_ != "":
			return failure.New(failure.NotFound, "list the runs with: "+a.Prompt.Command("runs ls"), "fleet %s has no event of run %s", a.Fleet, c.Run_)
		case len(c.Files) > 0:
			return failure.New(failure.NotFound, "write one with: waymark export RUN --format cloudevents, or: waymark conform --record FILE", "the recording has no event")
		}
		return failure.New(failure.NotFound, "run the executor meanwhile, or add --all", "no event was seen")
	}
	if a.JSON {
		if err := output.Document(a.Stdout, report); err != nil {
			return err
		}
	} else if err := c.summary(a.Stdout, report); err != nil {
		return err
	}
	if report.Passed {
		return nil
	}
	missing := 0
	for _, o := range report.Scenarios {
		if !o.Passed {
			missing++
		}
	}
	return failure.New(failure.Differs, "each rule is explained in "+conform.Page, "rules were broken %s (must %d, should %d), %s not seen",
		output.Plural(report.Must+report.Should, "time"), report.Must, report.Should, output.Plural(missing, "expected scenario"))
}

func (ConformCmd) summary(w io.Writer, r *conform.Report) error {
	for _, o := range r.Scenarios {
		state, detail := "passed", "in run "+o.Run
		if !o.Passed {
			state, detail = "not seen", "missing: "+o.Missing
			if o.Run != "" {
				detail += ", in run " + o.Run
			}
		}
		if _, err := fmt.Fprintln(w, output.Hanging(w, fmt.Sprintf("scenario %-18s %-8s  ", o.Scenario, state), detail)); err != nil {
			return err
		}
	}
	lines := []string{fmt.Sprintf("%s of %s checked by %d of %d rules: %s of level must, %d of level should",
		output.Plural(r.Events, "event"), output.Plural(r.Runs, "run"), r.Judged, len(conform.Rules()), output.Plural(r.Must, "breach", "breaches"), r.Should)}
	if r.Forgotten > 0 {
		lines = append(lines, fmt.Sprintf("not checked: later events of %s: too many runs at once, select one with --run", output.Plural(r.Forgotten, "run")))
	}
	for _, n := range r.NotJudged {
		lines = append(lines, fmt.Sprintf("not checked: %s, %s", n.Rule, n.Why))
	}
	for _, l := range lines {
		if _, err := fmt.Fprintln(w, output.Hanging(w, "", l)); err != nil {
			return err
		}
	}
	return nil
}

func (ConformCmd) list(a *base.App) error {
	if a.JSON {
		return output.Document(a.Stdout, conform.Rules())
	}
	for _, r := range conform.Rules() {
		if _, err := fmt.Fprintln(a.Stdout, output.Hanging(a.Stdout, fmt.Sprintf("%s %-6s  ", r.ID, r.Level), r.Text)); err != nil {
			return err
		}
	}
	return nil
}

func (ConformCmd) scenes(a *base.App) error {
	scenarios := conform.Scenarios()
	if a.JSON {
		type scene struct {
			conform.Scenario
			Steps []string `json:"steps"`
		}
		list := make([]scene, len(scenarios))
		for i := range scenarios {
			list[i] = scene{scenarios[i], scenarios[i].Steps()}
		}
		return output.Document(a.Stdout, list)
	}
	for i := range scenarios {
		s := &scenarios[i]
		text, seen := output.Hanging(a.Stdout, fmt.Sprintf("%-18s ", s.ID), s.Text), output.Hanging(a.Stdout, fmt.Sprintf("%-18s ", ""), "seen as: "+strings.Join(s.Steps(), ", "))
		if _, err := fmt.Fprintf(a.Stdout, "%s\n%s\n", text, seen); err != nil {
			return err
		}
	}
	return nil
}
