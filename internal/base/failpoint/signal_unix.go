//go:build waymark_failpoints && unix

package failpoint

import (
	"os"
	"syscall"
)

// end kills or stops this process. It returns once it is continued.
func end(action string) error {
	sig := syscall.SIGKILL
	if action == "stop" {
		sig = syscall.SIGSTOP
	}
	return syscall.Kill(os.Getpid(), sig)
}
