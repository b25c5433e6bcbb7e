package natsd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/statedir"
)

// Only the owner of the state directory reads its files and enters its directories.
const (
	fileMode fs.FileMode = 0o600
	dirMode  fs.FileMode = 0o700
)

// createDirs makes the directories.
func createDirs(l statedir.Layout) error {
	if err := os.MkdirAll(l.Root, dirMode); err != nil {
		return fmt.Errorf("%w: %w: set another directory with WAYMARK_STATE_DIR", statedir.ErrUnusable, err)
	}
	if err := l.Check(); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Dir(l.Store()), l.Store()} {
		if err := os.MkdirAll(dir, dirMode); err != nil {
			return fmt.Errorf("%w: %w", statedir.ErrUnusable, err)
		}
		// MkdirAll does not change an existing directory's mode.
		if err := os.Chmod(dir, dirMode); err != nil {
			return fmt.Errorf("%w: %w", statedir.ErrUnusable, err)
		}
	}
	return nil
}

// writeJSON replaces a file atomically: after a crash it has the old content or the new, never half of it.
func writeJSON(path string, value any) (err error) {
	data, err := json.Marshal(value, jsontext.WithIndent("  "))
	if err != nil {
		return fmt.Errorf("encoding %s: %w", path, err)
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return fmt.Errorf("%w: %w", statedir.ErrUnusable, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w: writing %s: %w", statedir.ErrUnusable, path, err), os.Remove(file.Name()))
		}
	}()
	if _, err := file.Write(append(data, '\n')); err != nil {
		return errors.Join(err, file.Close())
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// removeFile removes a file durably; a missing file is no error.
func removeFile(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", statedir.ErrUnusable, err)
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes a rename or a removal within dir durable. Windows has no such call for directories.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// syncTree syncs every file and directory below root to the disk.
func syncTree(root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			return syncDir(path)
		case !entry.Type().IsRegular():
			return nil
		}
		file, err := os.OpenFile(path, os.O_RDWR, 0) // Windows syncs only files that are open for writing.
		if err != nil {
			return err
		}
		return errors.Join(file.Sync(), file.Close())
	})
}
