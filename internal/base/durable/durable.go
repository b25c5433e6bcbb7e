package durable

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// Replace writes a file, with mode 0600, and puts it in the place of the old one: after a crash the whole old or the
// whole new content is there. An error of write leaves the old file and is returned unchanged.
func Replace(path string, write func(io.Writer) error) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if err := write(file); err != nil {
		return errors.Join(err, file.Close(), os.Remove(file.Name()))
	}
	if err = errors.Join(file.Sync(), file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, errors.Join(err, os.Remove(file.Name())))
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes the names in a directory durable. Windows has no such call, and makes names durable with the files.
func SyncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
