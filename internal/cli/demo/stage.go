package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/cli/prompt"
	"github.com/waymarkio/waymark/internal/journal"
	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/schema"
)

// Bounds of a scene, and how often the history is looked at.
const (
	sceneLimit = 45 * time.Second
	lookEvery  = 5 * time.Millisecond
)

// stage directs the demonstration from outside: it sees only the journal and the scratch folder, not the runs
// themselves.
type stage struct {
	app    *base.App
	fleet  *processTree
	dir    string
	runs   []plannedRun
	begun  time.Time
	reader *journal.Reader

	history []journal.Entry
	server  *process
	// executors are the running processes by the name of their lane; attempts counts the started ones.
	executors map[string]*process
	attempts  map[string]int

	kills      []killing
	inDoubt    []*doubt
	recoveries []time.Duration
}

// killing is one killed process, and its active runs.
type killing struct {
	at   time.Time
	what string
	runs []string
}

// doubt is a call that was begun and had no recorded result when its executor was killed.
type doubt struct {
	run, name, replay string
	call              journal.Call
	// from is the length of the history at the kill: the outcome comes after it.
	from int
	fate string
}

func newStage(a *base.App, fleet *processTree, dir string, runs []plannedRun) *stage {
	return &stage{
		app: a, fleet: fleet, dir: dir, runs: runs, begun: a.Now(), reader: journal.NewReader(journalIn(dir)),
		executors: make(map[string]*process), attempts: make(map[string]int),
	}
}

// say prints one line of progress: the actor, and the event.
func (s *stage) say(who, format string, args ...any) {
	if s.app.Quiet {
		return
	}
	const indent = "                  " // below the words of the line before
	var b strings.Builder
	fmt.Fprintf(&b, "%5.1fs  %-9s", s.app.Now().Sub(s.begun).Seconds(), who)
	words := text.WrapSoft(output.Printable(fmt.Sprintf(format, args...)), output.WidthOf(s.app.Stdout)-len(indent))
	for i, line := range strings.Split(words, "\n") {
		if i > 0 {
			b.WriteString(strings.Repeat(" ", len(indent)-1))
		}
		b.WriteString(" " + strings.TrimRight(line, " ") + "\n")
	}
	// A reader that is gone ends the demonstration at the table, if not before.
	_, _ = io.WriteString(s.app.Stdout, b.String())
}

// introduction describes the demonstration.
const introduction = `Agents work through transcripts; some run real tools in a scratch folder. Each step that the server
acknowledged, and each execution of a tool, is written to a file outside Waymark. Then processes are
killed with SIGKILL from outside and new ones take over. The table at the end compares.

`

// play is the whole demonstration, scene by scene.
func (s *stage) play(ctx context.Context) error {
	if !s.app.Quiet {
		if _, err := io.WriteString(s.app.Stdout, introduction); err != nil {
			return err
		}
	}
	for _, scene := range []func(context.Context) error{
		s.startServer, s.killInMidCall, s.killAfterTheEffect, s.killBeforeTheEffect, s.killServer, s.killBoth, s.finish,
	} {
		limit, cancel := context.WithTimeoutCause(ctx, sceneLimit, errors.New("a scene took too long"))
		err := scene(limit)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) startServer(ctx context.Context) error {
	begun := s.app.Now()
	p, err := s.fleet.start("server", "serve", "--embedded", "--http", "off", "--quota", "256MiB", "--log-format", "json")
	if err != nil {
		return err
	}
	s.server = p
	if err := p.ready(ctx); err != nil {
		return err
	}
	s.say("server", "ready after %s (process %d)", clockTime(s.app.Now().Sub(begun)), p.pid())
	return nil
}

// start starts an executor for runs; it gets only the ids of resumed runs.
func (s *stage) start(lane string, resume bool, lanes int, runs ...string) error {
	s.attempts[lane]++
	name := fmt.Sprintf("%s-%d", lane, s.attempts[lane])
	args := []string{"demo-executor", "--name", name, "--dir", s.dir, fmt.Sprintf("--lanes=%d", lanes)}
	if resume {
		args = append(args, "--resume")
	}
	p, err := s.fleet.start(name, append(append(args, "--"), runs...)...)
	if err != nil {
		return err
	}
	s.executors[lane] = p
	if resume {
		s.say(lane, "a new process %d resumes, knowing only: %s", p.pid(), shortened(runs))
	} else {
		s.say(lane, "executor process %d begins %s", p.pid(), shortened(runs))
	}
	return nil
}

// await reads the history until the condition holds.
func (s *stage) await(ctx context.Context, what string, seen func() bool) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		if err := s.look(); err != nil {
			return err
		}
		if seen() {
			return nil
		}
		for _, p := range s.executors {
			if p.ended() && p.err != nil {
				return p.failed("ended by itself")
			}
		}
		if s.server.ended() {
			return s.server.failed("ended by itself")
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
		}
	}
}

// look reads the entries since the last call.
func (s *stage) look() error {
	entries, err := s.reader.Next()
	s.history = append(s.history, entries...)
	for _, e := range entries {
		if e.Op == journal.Resumed {
			s.recoveries = append(s.recoveries, time.Duration(e.At-e.Start))
		}
	}
	return err
}

// underWay returns the calls of a lane that began and have no recorded result yet.
func (s *stage) underWay(lane string) []journal.Entry {
	var open []journal.Entry
	for _, e := range s.history {
		if s.lane(e.Run) != lane {
			continue
		}
		same := func(o journal.Entry) bool { return o.Run == e.Run && o.Call == e.Call }
		switch {
		case e.Op == journal.Begin:
			open = append(slices.DeleteFunc(open, same), e)
		case e.Op == journal.Ack && e.Kind == journal.KindReturned, e.Op == journal.Settled && e.Note != journal.Rerun:
			open = slices.DeleteFunc(open, same)
		}
	}
	return open
}

func (s *stage) lane(run string) string {
	for _, r := range s.runs {
		if r.script.ID == run {
			return r.executor
		}
	}
	return ""
}

// unfinished returns the runs of a lane that have not ended.
func (s *stage) unfinished(lane string) []string {
	var ids []string
	for _, r := range s.runs {
		id := r.script.ID
		if r.executor == lane && !slices.ContainsFunc(s.history, func(e journal.Entry) bool { return e.Op == journal.Done && e.Run == id }) {
			ids = append(ids, id)
		}
	}
	return ids
}

// inHand returns the runs of a lane that have begun and not ended.
func (s *stage) inHand(lane string) []string {
	return slices.DeleteFunc(s.unfinished(lane), func(id string) bool {
		return !slices.ContainsFunc(s.history, func(e journal.Entry) bool { return e.Op == journal.Ack && e.Run == id })
	})
}

func (s *stage) acknowledged(lane string) int {
	n := 0
	for _, e := range s.history {
		if e.Op == journal.Ack && s.lane(e.Run) == lane {
			n++
		}
	}
	return n
}

// kill kills an executor and notes its active runs.
func (s *stage) kill(lane string) error {
	p := s.executors[lane]
	if err := p.kill(); err != nil {
		return err
	}
	delete(s.executors, lane)
	if err := s.look(); err != nil { // its last words
		return err
	}
	s.kills = append(s.kills, killing{at: s.app.Now(), what: "executor", runs: s.inHand(lane)})
	open := s.underWay(lane)
	names := make([]string, len(open))
	for i, e := range open {
		names[i] = e.Run + " in " + e.Name
		s.inDoubt = append(s.inDoubt, &doubt{run: e.Run, name: e.Name, replay: e.Replay, call: e.Call, from: len(s.history)})
	}
	s.say(lane, "KILLED (SIGKILL, process %d) in mid tool call: %s", p.pid(), shortened(names))
	return nil
}

// killInMidCall kills an executor with several active runs.
func (s *stage) killInMidCall(ctx context.Context) error {
	if err := s.start("counter", false, 5, s.unfinished("counter")...); err != nil {
		return err
	}
	err := s.await(ctx, "a tool call under way", func() bool { return s.acknowledged("counter") > 40 && len(s.underWay("counter")) > 1 })
	if err != nil {
		return err
	}
	if err := s.kill("counter"); err != nil {
		return err
	}
	return s.start("counter", true, 5, s.unfinished("counter")...)
}

// killAfterTheEffect kills the workshop when the mail is out, but its result is not recorded.
func (s *stage) killAfterTheEffect(ctx context.Context) error {
	if err := s.start("workshop", false, 1, s.unfinished("workshop")...); err != nil {
		return err
	}
	err := s.await(ctx, "the mail", func() bool { return s.toolUnderWay("send_mail") && s.outside(outboxFile) != "" })
	if err != nil {
		return err
	}
	return s.holdAndSettle(ctx, "send_mail", outboxFile)
}

// killBeforeTheEffect kills the workshop when the payment has begun and nothing was paid.
func (s *stage) killBeforeTheEffect(ctx context.Context) error {
	if err := s.await(ctx, "the payment", func() bool { return s.toolUnderWay("pay") }); err != nil {
		return err
	}
	return s.holdAndSettle(ctx, "pay", ledgerFile)
}

func (s *stage) toolUnderWay(name string) bool {
	return slices.ContainsFunc(s.underWay("workshop"), func(e journal.Entry) bool { return e.Name == name })
}

// outside is the evidence of an effect outside Waymark.
func (s *stage) outside(file string) string {
	b, err := os.ReadFile(filepath.Join(scratchIn(s.dir), file))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// holdAndSettle kills the workshop in the middle of a call and resumes it. Then it settles the held call as a person
// would: it looks for the effect, and runs the operator's command.
func (s *stage) holdAndSettle(ctx context.Context, tool, file string) error {
	if err := s.kill("workshop"); err != nil {
		return err
	}
	from := len(s.history)
	if err := s.start("workshop", true, 1, s.unfinished("workshop")...); err != nil {
		return err
	}
	var held journal.Entry
	err := s.await(ctx, "the held call", func() bool {
		i := slices.IndexFunc(s.history[from:], func(e journal.Entry) bool { return e.Op == journal.Held && e.Name == tool })
		if i >= 0 {
			held = s.history[from+i]
		}
		return i >= 0
	})
	if err != nil {
		return err
	}
	s.say("workshop", "%s is in doubt and may have side effects: HELD for a person, not run again", tool)
	how, result := string(schema.SettledRerun), ""
	if found := s.outside(file); found != "" {
		how, result = string(schema.SettledDecided), `"sent"`
		s.say("person", "looks: %s has %q. It happened.", file, found)
	} else {
		s.say("person", "looks: there is no %s. It did not happen.", file)
	}
	args := []string{"settle", held.Run, fmt.Sprint(held.Call.Turn), held.Call.ID, "--how", how}
	if result != "" {
		args = append(args, "--result", result)
	}
	// Recorded before the command runs: the executor may act on the answer before the command ends.
	person, err := journal.Open(journalIn(s.dir), s.app.Now)
	if err != nil {
		return err
	}
	entry := journal.Entry{Op: journal.Settled, Run: held.Run, Call: held.Call, Name: held.Name, Replay: held.Replay, Note: how}
	if err := errors.Join(person.Write(entry), person.Close()); err != nil {
		return err
	}
	return s.operator(ctx, append(args, "--by", "person")...)
}

// operator runs one of the operator's commands to its end.
func (s *stage) operator(ctx context.Context, args ...string) error {
	s.say("person", "$ %s", prompt.ShellCommand(args))
	p, err := s.fleet.start(args[0], args...)
	if err != nil {
		return err
	}
	select {
	case <-p.gone:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if p.err != nil {
		return p.failed("failed")
	}
	return nil
}

// killServer kills daemon and server while the executors keep running.
func (s *stage) killServer(ctx context.Context) error {
	if err := s.start("coder", false, 3, s.unfinished("coder")...); err != nil {
		return err
	}
	err := s.await(ctx, "work at the server", func() bool { return s.acknowledged("coder") > 12 && len(s.underWay("coder")) > 1 })
	if err != nil {
		return err
	}
	if err := s.downServer(); err != nil {
		return err
	}
	if err := pause.For(ctx, time.Second); err != nil {
		return err
	}
	if err := s.startServer(ctx); err != nil {
		return err
	}
	before := s.acknowledged("coder")
	begun := s.app.Now()
	if err := s.await(ctx, "the executors to go on", func() bool { return s.acknowledged("coder") > before+1 }); err != nil {
		return err
	}
	s.say("coder", "continues by itself, %s after the server was ready", clockTime(s.app.Now().Sub(begun)))
	return nil
}

func (s *stage) downServer() error {
	if err := s.server.kill(); err != nil {
		return err
	}
	s.kills = append(s.kills, killing{at: s.app.Now(), what: "server"})
	s.say("server", "KILLED (SIGKILL, process %d): NATS server and daemon are gone", s.server.pid())
	return nil
}

// killBoth kills an executor and the server at the same moment.
func (s *stage) killBoth(ctx context.Context) error {
	if err := s.await(ctx, "a tool call under way", func() bool { return len(s.underWay("coder")) > 1 }); err != nil {
		return err
	}
	if err := s.downServer(); err != nil {
		return err
	}
	if err := s.kill("coder"); err != nil {
		return err
	}
	if err := s.startServer(ctx); err != nil {
		return err
	}
	return s.start("coder", true, 3, s.unfinished("coder")...)
}

// finish waits until every run has ended.
func (s *stage) finish(ctx context.Context) error {
	all := func() bool {
		return !slices.ContainsFunc(s.runs, func(r plannedRun) bool { return len(s.unfinished(r.executor)) > 0 })
	}
	if err := s.await(ctx, "all runs to end", all); err != nil {
		return err
	}
	for _, p := range s.executors {
		select {
		case <-p.gone:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if p.err != nil {
			return p.failed("failed")
		}
	}
	s.say("", "%s ended. Now the proof.", output.Plural(len(s.runs), "run has", "runs have"))
	return nil
}

// shortened shortens a list to what fits a line.
func shortened(names []string) string {
	const shown = 3
	if len(names) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown-1], ", "), len(names)-shown+1)
	}
	return strings.Join(names, ", ")
}

// clockTime formats a duration for people.
func clockTime(d time.Duration) string {
	if d < 10*time.Millisecond {
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}
