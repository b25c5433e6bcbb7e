package natsd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	fileMode fs.FileMode = 0o600
	dirMode  fs.FileMode = 0o700
)

// maxStateFile bounds what is read from one of the small JSON files.
const maxStateFile = 64 << 10

// DefaultStateDir returns the state directory of this user: WAYMARK_STATE_DIR if set, else
// LocalAppData\waymark on Windows, XDG_STATE_HOME/waymark or ~/.local/state/waymark elsewhere. getenv is
// os.Getenv in the program. It does not create the directory.
func DefaultStateDir(getenv func(string) string) (string, error) {
	if dir := getenv("WAYMARK_STATE_DIR"); dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("%w: WAYMARK_STATE_DIR is %q: %w", ErrStateDir, dir, err)
		}
		return abs, nil
	}
	bases := []struct {
		variable string
		below    []string
	}{
		{"XDG_STATE_HOME", []string{"waymark"}},
		{"HOME", []string{".local", "state", "waymark"}},
	}
	if runtime.GOOS == "windows" {
		bases = bases[:1]
		bases[0].variable = "LocalAppData"
	}
	for _, base := range bases {
		root := getenv(base.variable)
		if root == "" {
			continue
		}
		if !filepath.IsAbs(root) {
			return "", fmt.Errorf("%w: %s is %q, which is not an absolute path: correct it, or set WAYMARK_STATE_DIR",
				ErrStateDir, base.variable, root)
		}
		return filepath.Join(append([]string{root}, base.below...)...), nil
	}
	return "", fmt.Errorf("%w: none is set for this user: set WAYMARK_STATE_DIR", ErrStateDir)
}

// layout knows the paths within a state directory.
type layout struct{ root string }

func newLayout(dir string) (layout, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return layout{}, fmt.Errorf("%w: %s: %w", ErrStateDir, dir, err)
	}
	return layout{root: abs}, nil
}

// Used reports whether a server has run in a state directory.
func Used(dir string) bool {
	l, err := newLayout(dir)
	if err != nil {
		return false
	}
	_, err = os.Stat(l.identity())
	return err == nil
}

func (l layout) lock() string     { return filepath.Join(l.root, "waymark.lock") }
func (l layout) running() string  { return filepath.Join(l.root, "running.json") }
func (l layout) unclean() string  { return filepath.Join(l.root, "unclean.json") }
func (l layout) endpoint() string { return filepath.Join(l.root, "endpoint.json") }
func (l layout) nats() string     { return filepath.Join(l.root, "nats") }
func (l layout) identity() string { return filepath.Join(l.nats(), "identity.json") }
func (l layout) context() string  { return filepath.Join(l.nats(), "waymark.json") }
func (l layout) key() string      { return filepath.Join(l.nats(), "key.json") }
func (l layout) store() string    { return filepath.Join(l.nats(), "store") }

// create makes the directories. The root may be wider than 0700 when somebody else made it (a systemd
// state directory is 0755), since every secret is a level below; but not writable by all, or anyone
// could swap our directory for theirs.
func (l layout) create() error {
	if err := os.MkdirAll(l.root, dirMode); err != nil {
		return fmt.Errorf("%w: %w: set another directory with WAYMARK_STATE_DIR", ErrStateDir, err)
	}
	info, err := os.Stat(l.root)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStateDir, err)
	}
	if runtime.GOOS != "windows" && info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf(`%w: every user may write to %s (mode %04o): run "chmod o-w %s", or set another directory with WAYMARK_STATE_DIR`,
			ErrStateDir, l.root, info.Mode().Perm(), l.root)
	}
	for _, dir := range []string{l.nats(), l.store()} {
		if err := os.MkdirAll(dir, dirMode); err != nil {
			return fmt.Errorf("%w: %w", ErrStateDir, err)
		}
		// MkdirAll leaves an existing directory's mode alone.
		if err := os.Chmod(dir, dirMode); err != nil {
			return fmt.Errorf("%w: %w", ErrStateDir, err)
		}
	}
	return nil
}

// marker is the content of running.json and unclean.json.
type marker struct {
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
}

// readJSON reads a small state file. A missing file is fs.ErrNotExist, anything else that is wrong with
// it ErrStateDir.
func readJSON(path string, into any) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Size() > maxStateFile {
		return fmt.Errorf("%w: %s has %d bytes, at most %d are expected: move it away", ErrStateDir, path, info.Size(), maxStateFile)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%w: %s does not parse: %w: move it away", ErrStateDir, path, err)
	}
	return nil
}

// writeJSON replaces a file as a whole: after a crash there is the old content or the new, never half of it.
func writeJSON(path string, value any) (err error) {
	data, err := json.Marshal(value, jsontext.WithIndent("  "))
	if err != nil {
		return fmt.Errorf("encoding %s: %w", path, err)
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStateDir, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w: writing %s: %w", ErrStateDir, path, err), os.Remove(file.Name()))
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

// removeFile removes a file for good; that it is not there already is fine.
func removeFile(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStateDir, err)
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

// syncTree writes every file and directory below root through to the disk.
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
		file, err := os.OpenFile(path, os.O_RDWR, 0) // Windows syncs only what is open for writing.
		if err != nil {
			return err
		}
		return errors.Join(file.Sync(), file.Close())
	})
}
