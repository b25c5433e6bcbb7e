//go:build !unix

package bench

// cpuTime returns nil: this system does not report it.
func cpuTime() *float64 { return nil }
