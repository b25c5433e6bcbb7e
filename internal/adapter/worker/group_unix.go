//go:build unix

package worker

import (
	"os/exec"
	"syscall"
)

// OwnGroup starts a program in a process group of its own: a Ctrl-C reaches only the worker, which stops in order, and
// the end of the group reaches what the program has started.
func OwnGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killGroup kills the program and what it has started.
func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // it may have ended
