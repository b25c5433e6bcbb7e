package natsd

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/base/durable"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
)

// Only the owner of the state directory reads its files and enters its directories.
const (
	fileMode fs.FileMode = 0o600
	dirMode  fs.FileMode = 0o700
)

// createDirs makes the directories.
func createDirs(l natsconn.Layout) error {
	if err := os.MkdirAll(l.Root, dirMode); err != nil {
		return fmt.Errorf("%w: %w: set another directory with WAYMARK_STATE_DIR", natsconn.ErrUnusable, err)
	}
	if err := l.Check(); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Dir(l.Store()), l.Store()} {
		if err := os.MkdirAll(dir, dirMode); err != nil {
			return fmt.Errorf("%w: %w", natsconn.ErrUnusable, err)
		}
		// MkdirAll does not change an existing directory's mode.
		if err := os.Chmod(dir, dirMode); err != nil {
			return fmt.Errorf("%w: %w", natsconn.ErrUnusable, err)
		}
	}
	return nil
}

// writeJSON replaces a file atomically: after a crash it has the old content or the new, never half of it.
func writeJSON(path string, value any) error {
	data, err := json.Marshal(value, jsontext.WithIndent("  "))
	if err != nil {
		return fmt.Errorf("encoding %s: %w", path, err)
	}
	err = durable.Replace(path, func(w io.Writer) error {
		_, err := w.Write(append(data, '\n'))
		return err
	})
	if err != nil {
		return fmt.Errorf("%w: %w", natsconn.ErrUnusable, err)
	}
	return nil
}

// removeFile removes a file durably; a missing file is no error.
func removeFile(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", natsconn.ErrUnusable, err)
	}
	return durable.SyncDir(filepath.Dir(path))
}

// syncTree syncs every file and directory below root to the disk.
func syncTree(root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			return durable.SyncDir(path)
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
