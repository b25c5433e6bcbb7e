//go:build !windows

package main

import "syscall"

// withoutCore sees to it that a crash leaves no core file: it would have the seeds of keys, and the content of runs, beside the working directory or
// wherever the machine collects them. Child processes inherit it.
func withoutCore() {
	_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}) // lowering a limit is never refused
}
