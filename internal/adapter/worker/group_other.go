//go:build !unix

package worker

import "os/exec"

// OwnGroup does nothing: this system has no process groups.
func OwnGroup(*exec.Cmd) {}

// killGroup kills the program.
func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() } // it may have ended
