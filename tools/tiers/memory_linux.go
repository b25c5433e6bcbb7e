package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// A folder in memory that Linux has, and the room that the tests need there.
const (
	memory     = "/dev/shm"
	memoryRoom = 3 << 30
	tmpfs      = 0x01021994
	leftFor    = 24 * time.Hour // no test takes as long
)

// inMemory returns the environment with which tests keep their temporary files in memory. Streams are made of many small files: on
// a disk they are a quarter of what tests cost. The compiler's files stay where they are.
func inMemory(say io.Writer) []string {
	var space syscall.Statfs_t
	if err := syscall.Statfs(memory, &space); err != nil || space.Type != tmpfs || int64(space.Bavail)*space.Bsize < memoryRoom { //nolint:gosec // a size
		_, _ = fmt.Fprintf(say, "tiers: the tests' files are on the disk: %s is no file system in memory with 3 GiB of room\n", memory)
		return nil
	}
	// The same name each time: the test cache compares it.
	dir := filepath.Join(memory, "waymark-"+strconv.Itoa(os.Getuid()))
	if err := ownFolder(dir); err != nil {
		_, _ = fmt.Fprintf(say, "tiers: the tests' files are on the disk: %v\n", err)
		return nil
	}
	return []string{"TMPDIR=" + dir, "GOTMPDIR=" + os.TempDir()}
}

// ownFolder makes the folder, or takes it if it is this user's alone, and empties it of what tests left that were killed.
func ownFolder(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || int(owner.Uid) != os.Getuid() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s is not a folder that only this user reads: remove it", dir)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range left {
		info, err := entry.Info()
		if err == nil && time.Since(info.ModTime()) > leftFor {
			err = os.RemoveAll(filepath.Join(dir, entry.Name()))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
