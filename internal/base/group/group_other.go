//go:build !unix

package group

import (
	"context"
	"os/exec"
)

// Own does nothing: this system has no process groups.
func Own(*exec.Cmd) {}

// Start starts a program. kill kills it.
func Start(_ context.Context, cmd *exec.Cmd) (kill func(), err error) {
	return func() { _ = cmd.Process.Kill() }, cmd.Start() //nolint:wrapcheck // it names the program
}
