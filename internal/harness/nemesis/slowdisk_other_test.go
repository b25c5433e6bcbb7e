//go:build unix && !linux

package nemesis_test

import "testing"

// throttle bounds how many writes a second the servers of a world may do, on Linux.
type throttle struct{}

func slowDisk(t *testing.T, _ *scale) *throttle {
	t.Helper()
	t.Log("a slow disk needs Linux, and is left out")
	return nil
}

func (*throttle) allow(*process, int) error { return nil }
