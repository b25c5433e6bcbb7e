//go:build unix && !linux

package nemesis_test

import "syscall"

// endsWithParent has no effect: only Linux can end a process when its parent is gone.
func endsWithParent() *syscall.SysProcAttr { return nil }
