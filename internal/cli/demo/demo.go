package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
)

// longest bounds the whole demonstration.
const longest = 2 * time.Minute

// Cmd shows what Waymark is for, on a temporary directory of its own.
type Cmd struct {
	Keep bool `help:"Keep the temporary directory."`
}

// Help is the text below the flags.
func (Cmd) Help() string {
	return `Kills an executor and the server in the middle of their work, and proves what became of it: fifteen seconds. It needs no server.`
}

// Run plays the scene and prints the proof.
func (c Cmd) Run(ctx context.Context, a *base.App) (err error) {
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "waymark-demo-")
	if err != nil {
		return &failure.Error{Code: failure.General, What: err.Error(), Hint: "set TMPDIR to a directory that this user may write", Err: err}
	}
	if !c.Keep {
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	s, err := newStage(a, binary, dir)
	if err != nil {
		return err
	}
	// Deferred calls run in reverse: the processes are gone before their directory is.
	defer func() { err = errors.Join(err, s.tree.stopAll()) }()
	limited, cancel := context.WithTimeoutCause(ctx, longest, fmt.Errorf("the demonstration took longer than %s", longest))
	defer cancel()
	p, err := s.play(limited)
	switch {
	case ctx.Err() != nil:
		// The processes may have had the same signal: then their end is no failure.
		return failure.New(failure.Interrupted, "", "interrupted; all processes of the demonstration were stopped")
	case err != nil:
		return c.explain(err, dir)
	}
	if a.JSON {
		err = output.Line(a.Stdout, p)
	} else {
		err = p.print(a.Stdout)
	}
	if err == nil && c.Keep {
		err = a.Say(a.Stderr, "kept: %s", dir)
	}
	if err == nil && len(p.Problems) > 0 {
		err = c.explain(fmt.Errorf("the proof does not hold: %s", output.Plural(len(p.Problems), "problem")), dir)
	}
	return err
}

// explain adds to an error where to look for its cause.
func (c Cmd) explain(err error, dir string) error {
	hint := "set TMPDIR to another directory if the disk is full, or run it with --keep and read its logs"
	if c.Keep {
		hint = "look at the logs in " + filepath.Join(dir, "logs")
	}
	return &failure.Error{Code: failure.General, What: err.Error(), Hint: hint, Err: err}
}
