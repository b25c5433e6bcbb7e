package nemesis_test

import "syscall"

// endsWithParent has the kernel end a process when the test is gone.
func endsWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} }
