//go:build unix

package bench

import "syscall"

// cpuTime returns the processor time of this process in us, user and system.
func cpuTime() *float64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return nil
	}
	d := float64(r.Utime.Nano()+r.Stime.Nano()) / 1e3
	return &d
}
