package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/cli/ui"
)

// longest bounds the whole demonstration.
const longest = 3 * time.Minute

// Cmd shows what Waymark is for, on a temporary directory of its own.
type Cmd struct {
	Keep   bool   `help:"Keep the temporary directory."`
	UI     bool   `name:"ui" help:"Show executors in a browser, with a button that kills each."`
	Listen string `name:"ui-listen" default:"127.0.0.1:0" placeholder:"ADDR" help:"Loopback address of these pages (default: a free port)."`
	NoOpen bool   `help:"Open no browser for --ui."`
}

// Help is the text below the flags.
func (Cmd) Help() string {
	return `A script kills processes, and a table proves what was left: half a minute. With --ui you kill them. Everything is removed at the ` +
		`end.`
}

// Validate is called by kong.
func (c Cmd) Validate() error {
	if c.UI {
		return ui.CheckLocal("--ui-listen", c.Listen)
	}
	return nil
}

// Run starts a server, a daemon and a small fleet of agents, kills them from outside and checks their runs.
func (c Cmd) Run(ctx context.Context, a *base.App) (err error) {
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "waymark-demo-")
	if err != nil {
		return err
	}
	if !c.Keep {
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	if c.UI {
		return c.runLive(ctx, a, binary, dir)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, longest, fmt.Errorf("the demonstration took longer than %s", longest))
	defer cancel()

	fleet, err := newProcessTree(binary, dir, os.Environ())
	if err != nil {
		return err
	}
	for _, folder := range []string{inputsIn(dir), scratchIn(dir)} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return err
		}
	}
	if err := writeInputs(inputsIn(dir)); err != nil {
		return err
	}
	runs, err := plannedRuns(inputsIn(dir))
	if err != nil {
		return err
	}
	s := newStage(a, fleet, dir, runs)
	// Deferred calls run in reverse: the processes are gone before their directory is.
	defer func() { err = errors.Join(err, fleet.stopAll()) }()
	if err := s.play(ctx); err != nil {
		return c.explain(err, dir)
	}
	proof, err := s.prove(ctx)
	if err != nil {
		return c.explain(err, dir)
	}
	if err := proof.print(a.Stdout); err != nil {
		return err
	}
	if c.Keep {
		s.say("", "Kept: %s", dir)
	}
	if len(proof.facts.Problems) > 0 {
		return c.explain(fmt.Errorf("the proof does not hold: %s", output.Plural(len(proof.facts.Problems), "problem")), dir)
	}
	return nil
}

// runLive shows working executors until ctx ends; that is no failure.
func (c Cmd) runLive(ctx context.Context, a *base.App, binary, dir string) (err error) {
	tree, err := newProcessTree(binary, dir, os.Environ())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tree.stopAll()) }()
	limited, cancel := context.WithTimeout(ctx, liveFor)
	defer cancel()
	if err := c.live(limited, a, tree); err != nil && limited.Err() == nil {
		return c.explain(err, dir)
	}
	return nil
}

// explain adds to an error where to look for its cause.
func (c Cmd) explain(err error, dir string) error {
	if own, ok := errors.AsType[*failure.Error](err); ok && own.Own {
		return own // it says what to do
	}
	f := &failure.Error{Code: failure.General, What: err.Error(), Hint: "run it with --keep and read its logs", Err: err}
	if errors.Is(err, context.Canceled) {
		f.Code, f.What, f.Hint = failure.Interrupted, "interrupted; every process of the demonstration was stopped", ""
	} else if c.Keep {
		f.Hint = "look at the logs in " + filepath.Join(dir, "logs")
	}
	return f
}
