package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

const (
	// silence is the time without a heartbeat after which the killed executor's runs are orphaned.
	silence = 2 * time.Second
	// successor is the executor that takes the runs over.
	successor = "bob"
	// outage is how long the server is away.
	outage = time.Second
)

// Files of the world that the tools change.
const (
	outboxFile = "outbox.txt"
	ledgerDir  = "ledger"
)

// stage directs the scene from outside of the executors.
type stage struct {
	app   *base.App
	tree  *processTree
	world string
	begun time.Time

	// server and executor are the processes that must not end by themselves.
	server, executor *process
	fleet            *publisher.Fleet

	mu      sync.Mutex
	notes   []note
	changed chan struct{}
}

func newStage(a *base.App, binary, dir string) (_ *stage, err error) {
	s := &stage{app: a, world: filepath.Join(dir, "world"), begun: a.Now(), executor: new(process), changed: make(chan struct{}, 1)}
	if err := os.MkdirAll(filepath.Join(s.world, ledgerDir), 0o700); err != nil {
		return nil, err
	}
	s.tree, err = newProcessTree(binary, dir, os.Environ(), s.hear)
	return s, err
}

// hear keeps the notes of executors.
func (s *stage) hear(line []byte) {
	var n note
	if json.Unmarshal(line, &n) != nil || n.Op == "" {
		n.Op = opReady // it is the daemon's line
	}
	s.mu.Lock()
	s.notes = append(s.notes, n)
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// history returns the notes so far.
func (s *stage) history() []note {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.notes)
}

// last returns the latest note about a run.
func (s *stage) last(run string) (last note) {
	for _, n := range s.history() {
		if n.Run == run {
			last = n
		}
	}
	return last
}

// each reports whether the latest note about each run is such a note.
func (s *stage) each(is func(last note) bool) bool {
	return !slices.ContainsFunc(agents, func(g agent) bool { return !is(s.last(g.name)) })
}

// say prints one line of progress: the actor, and the event.
func (s *stage) say(who, format string, args ...any) {
	if s.app.Quiet || s.app.JSON {
		return
	}
	head := fmt.Sprintf("%5.1fs  %-7s ", s.app.Now().Sub(s.begun).Seconds(), who)
	// A reader that is gone ends the demonstration at the table, if not before.
	_, _ = io.WriteString(s.app.Stdout, output.Hanging(s.app.Stdout, head, fmt.Sprintf(format, args...))+"\n")
}

// play is the scene, with its proof.
func (s *stage) play(ctx context.Context) (_ *proof, err error) {
	if err := s.startServer(ctx); err != nil {
		return nil, err
	}
	if s.fleet, err = connect(ctx, s.app, s.tree.state, "demo"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, base.CloseFleet(ctx, s.fleet)) }()
	for _, step := range []func(context.Context) error{s.begin, s.killExecutor, s.settle, s.killServer, s.finish} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return s.prove(ctx)
}

// startServer starts the daemon, and waits until it is ready.
func (s *stage) startServer(ctx context.Context) (err error) {
	before := len(s.history())
	s.server, err = s.tree.start("server", "serve", "--embedded", "--http", "off", "--quota", "64MiB", "--silence", silence.String(), "--log-format", "json")
	if err != nil {
		return err
	}
	ready := func() bool {
		return slices.ContainsFunc(s.history()[before:], func(n note) bool { return n.Op == opReady })
	}
	if err := s.await(ctx, "the server", ready); err != nil {
		return err
	}
	s.say("server", "process %d: a NATS server and Waymark's daemon", s.server.pid())
	return nil
}

func (s *stage) startExecutor(name string) (err error) {
	s.executor, err = s.tree.start(name, "demo-executor", "--name", name, "--world", s.world)
	return err
}

// begin submits a run for each agent, and starts their executor.
func (s *stage) begin(ctx context.Context) error {
	for _, g := range agents {
		spec := publisher.RunSpec{ID: g.name, Agent: g.name, Task: fmt.Sprintf("Look after %d parcels.", turns)}
		if _, err := s.fleet.Submit(ctx, spec); err != nil {
			return err
		}
	}
	if err := s.startExecutor("ada"); err != nil {
		return err
	}
	s.say("ada", "process %d: an executor of three agents, a run each", s.executor.pid())
	for _, g := range agents {
		s.say("", "run %s calls its tool %s, which is %s", g.name, g.tool, g.replay)
	}
	return nil
}

// await waits until the condition holds. It fails if a process ends by itself, or an executor gives a run up.
func (s *stage) await(ctx context.Context, what string, seen func() bool) error {
	for {
		for _, n := range s.history() {
			if n.Op == opLeft && n.Outcome != publisher.OutcomeCompleted && n.Outcome != publisher.OutcomeWaiting {
				return fmt.Errorf("run %s was %s: %s", n.Run, n.Outcome, n.Text)
			}
		}
		if seen() {
			return nil
		}
		select {
		case <-s.changed:
		case <-s.server.gone:
			return s.server.failed("ended by itself")
		case <-s.executor.gone:
			return s.executor.failed("ended by itself")
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
		}
	}
}

// killExecutor kills the executor in the middle of a call of each run, and starts another one.
func (s *stage) killExecutor(ctx context.Context) error {
	inCall := func(last note) bool { return last.Op == opEffect && last.Turn == slowTurn }
	if err := s.await(ctx, "a call of each run", func() bool { return s.each(inCall) }); err != nil {
		return err
	}
	if err := s.executor.kill(); err != nil {
		return err
	}
	s.say("ada", "KILLED (SIGKILL): three calls are under way, none has a result")
	if err := s.startExecutor(successor); err != nil {
		return err
	}
	s.say(successor, "process %d: another executor, which has no run", s.executor.pid())
	return nil
}

// settle is the person: the call that must not run again is held, and its effect shows that it happened.
func (s *stage) settle(ctx context.Context) error {
	held := agents[slices.IndexFunc(agents, func(g agent) bool { return g.replay == publisher.Hold })]
	err := s.await(ctx, "the held call", func() bool { return s.last(held.name).Outcome == publisher.OutcomeWaiting })
	if err != nil {
		return err
	}
	s.say(successor, "has taken the runs over. It calls look and book again; send may have sent its letter: HELD for a person")
	letters, err := s.outbox()
	if err != nil {
		return err
	}
	letter := result(slowTurn)
	if !slices.Contains(letters, letter) {
		return fmt.Errorf("%s has no letter %q", outboxFile, letter)
	}
	s.say("person", "looks into %s: %q is there", outboxFile, letter)
	turn, call, outcome := strconv.Itoa(slowTurn), fmt.Sprintf("%s-%d", held.tool, slowTurn), strconv.Quote(letter)
	args := []string{"settle", held.name, turn, call, "--how", string(schema.SettledDecided), "--result", outcome}
	s.say("person", "$ %s", schema.Command("waymark settle", schema.Flag("how", string(schema.SettledDecided))+schema.Flag("result", outcome), held.name, turn, call))
	p, err := s.tree.start("settle", args...)
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
	return s.await(ctx, "the run to go on", func() bool { return s.last(held.name).Turn > slowTurn })
}

// outbox returns the letters that were sent.
func (s *stage) outbox() ([]string, error) {
	b, err := os.ReadFile(filepath.Join(s.world, outboxFile))
	return strings.Split(strings.TrimSpace(string(b)), "\n"), err
}

// killServer kills server and daemon while the executor works, and starts them again.
func (s *stage) killServer(ctx context.Context) error {
	if err := s.server.kill(); err != nil {
		return err
	}
	s.say("server", "KILLED (SIGKILL): the NATS server and the daemon are gone")
	if err := pause.For(ctx, outage); err != nil {
		return err
	}
	return s.startServer(ctx)
}

// finish waits until every run has ended, and stops the executor.
func (s *stage) finish(ctx context.Context) error {
	ended := func(last note) bool { return last.Outcome == publisher.OutcomeCompleted }
	if err := s.await(ctx, "the runs to end", func() bool { return s.each(ended) }); err != nil {
		return err
	}
	s.say(successor, "has gone on by itself, and has ended the three runs")
	return s.executor.stop()
}
