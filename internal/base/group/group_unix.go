//go:build unix

package group

import (
	"context"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
)

// leash waits for the end of its input, whose other end is this process, and kills its group.
const leash = `trap "" HUP INT TERM; read -r line; kill -9 0`

// Own starts a program in a process group of its own: a Ctrl-C reaches only this process, which stops in order.
func Own(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// Start starts a program in a process group of its own. The group is killed when this process ends, and by kill, which
// must be called once the program has ended or shall end.
func Start(ctx context.Context, cmd *exec.Cmd) (kill func(), err error) {
	first := exec.CommandContext(context.WithoutCancel(ctx), "/bin/sh", "-c", leash) // kill ends it
	Own(first)
	_, err = first.StdinPipe()
	if err == nil {
		err = first.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("the shell that would end the program with this process: %w", err)
	}
	kill = sync.OnceFunc(func() {
		_ = syscall.Kill(-first.Process.Pid, syscall.SIGKILL) // the group is there: its first process is not waited for
		_ = first.Wait()                                      // killed
	})
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: first.Process.Pid}
	if err = cmd.Start(); err != nil {
		kill()
	}
	return kill, err //nolint:wrapcheck // it names the program
}
