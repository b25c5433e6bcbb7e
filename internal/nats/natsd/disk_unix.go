//go:build unix

package natsd

import (
	"fmt"
	"syscall"
)

// DiskRoom returns the free and total size of a directory's disk, in bytes, for this user.
func DiskRoom(dir string) (free, total int64, err error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, 0, fmt.Errorf("disk of %s: %w", dir, err)
	}
	block := int64(s.Bsize)                                      //nolint:unconvert,gosec // its type differs between systems
	return int64(s.Bavail) * block, int64(s.Blocks) * block, nil //nolint:gosec // likewise
}
