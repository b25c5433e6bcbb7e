//go:build !windows

package statedir

import (
	"errors"
	"os"
	"syscall"
)

// processAlive reports whether a process with this id exists, of any user.
func processAlive(pid int) bool {
	process, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	err = process.Signal(syscall.Signal(0))
	return err == nil || errors.Is(err, syscall.EPERM)
}
