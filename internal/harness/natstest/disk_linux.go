package natstest

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Disk mounts a disk of the test's own, of so many MiB, and returns its directory. Without root the test is skipped.
func Disk(tb testing.TB, size int) (dir string) {
	tb.Helper()
	dir = tb.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", size)); err != nil {
		tb.Skipf("NOT TRIED: this test needs root to mount a disk of its own: %v", err)
	}
	tb.Cleanup(func() {
		// A process that another test forks at this moment has this one's files open until it runs its program.
		require.Eventually(tb, func() bool { return syscall.Unmount(dir, 0) == nil }, time.Minute, 10*time.Millisecond)
	})
	return dir
}
