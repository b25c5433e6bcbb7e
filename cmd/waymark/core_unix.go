//go:build !windows

package main

import "syscall"

// withoutCore prevents core files after a crash: they would contain the seeds of keys and the content of runs. Child
// processes inherit the limit.
func withoutCore() {
	_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}) // lowering a limit is never refused
}
