package statedir

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
	// FileMode is that of every file: only its owner reads it.
	FileMode fs.FileMode = 0o600
	dirMode  fs.FileMode = 0o700
)

// maxStateFile bounds what is read from one of the small JSON files.
const maxStateFile = 64 << 10

// Default returns the state directory of this user: WAYMARK_STATE_DIR if set, else
// LocalAppData\waymark on Windows, XDG_STATE_HOME/waymark or ~/.local/state/waymark elsewhere. getenv is
// os.Getenv in the program. It does not create the directory.
func Default(getenv func(string) string) (string, error) {
	if dir := getenv("WAYMARK_STATE_DIR"); dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("%w: WAYMARK_STATE_DIR is %q: %w", ErrUnusable, dir, err)
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
				ErrUnusable, base.variable, root)
		}
		return filepath.Join(append([]string{root}, base.below...)...), nil
	}
	return "", fmt.Errorf("%w: none is set for this user: set WAYMARK_STATE_DIR", ErrUnusable)
}

// Layout knows the paths within a state directory; Root is the absolute one of the directory itself.
type Layout struct{ Root string }

// Of is the layout of a state directory, which need not be there.
func Of(dir string) (Layout, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return Layout{}, fmt.Errorf("%w: %s: %w", ErrUnusable, dir, err)
	}
	return Layout{Root: abs}, nil
}

// Used reports whether a server has run in a state directory.
func Used(dir string) bool {
	l, err := Of(dir)
	if err != nil {
		return false
	}
	_, err = os.Stat(l.Identity())
	return err == nil
}

// Lock is held by the process that uses the directory.
func (l Layout) Lock() string { return filepath.Join(l.Root, "waymark.lock") }

// Running is there while a server runs, or when one did not stop cleanly.
func (l Layout) Running() string { return filepath.Join(l.Root, "running.json") }

// Unclean is an unclean stop that is still to be cleared up.
func (l Layout) Unclean() string { return filepath.Join(l.Root, "unclean.json") }

// Endpoint tells where the running server is.
func (l Layout) Endpoint() string { return filepath.Join(l.Root, "endpoint.json") }

func (l Layout) nats() string { return filepath.Join(l.Root, "nats") }

// Identity is the server's user, password and name.
func (l Layout) Identity() string { return filepath.Join(l.nats(), "identity.json") }

// Context is the same as a NATS context.
func (l Layout) Context() string { return filepath.Join(l.nats(), "waymark.json") }

// Key is the fingerprint of the store's encryption key.
func (l Layout) Key() string { return filepath.Join(l.nats(), "key.json") }

// Store has JetStream's files.
func (l Layout) Store() string { return filepath.Join(l.nats(), "store") }

// Create makes the directories. The root may be wider than 0700 when another program made it (a systemd
// state directory is 0755), since every secret is a level below; but not writable by all, or anyone
// could swap our directory for theirs.
func (l Layout) Create() error {
	if err := os.MkdirAll(l.Root, dirMode); err != nil {
		return fmt.Errorf("%w: %w: set another directory with WAYMARK_STATE_DIR", ErrUnusable, err)
	}
	info, err := os.Stat(l.Root)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	if runtime.GOOS != "windows" && info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf(`%w: every user may write to %s (mode %04o): run "chmod o-w %s", or set another directory with WAYMARK_STATE_DIR`,
			ErrUnusable, l.Root, info.Mode().Perm(), l.Root)
	}
	for _, dir := range []string{l.nats(), l.Store()} {
		if err := os.MkdirAll(dir, dirMode); err != nil {
			return fmt.Errorf("%w: %w", ErrUnusable, err)
		}
		// MkdirAll leaves an existing directory's mode alone.
		if err := os.Chmod(dir, dirMode); err != nil {
			return fmt.Errorf("%w: %w", ErrUnusable, err)
		}
	}
	return nil
}

// Marker is the content of running.json and unclean.json.
type Marker struct {
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
}

// ReadJSON reads a small state file. A missing file is fs.ErrNotExist, anything else that is wrong with
// it [ErrUnusable].
func ReadJSON(path string, into any) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Size() > maxStateFile {
		return fmt.Errorf("%w: %s has %d bytes, at most %d are expected: move it away", ErrUnusable, path, info.Size(), maxStateFile)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%w: %s does not parse: %w: move it away", ErrUnusable, path, err)
	}
	return nil
}

// WriteJSON replaces a file as a whole: after a crash there is the old content or the new, never half of it.
func WriteJSON(path string, value any) (err error) {
	data, err := json.Marshal(value, jsontext.WithIndent("  "))
	if err != nil {
		return fmt.Errorf("encoding %s: %w", path, err)
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w: writing %s: %w", ErrUnusable, path, err), os.Remove(file.Name()))
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

// RemoveFile removes a file for good; that it is not there already is fine.
func RemoveFile(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnusable, err)
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

// SyncTree writes every file and directory below root through to the disk.
func SyncTree(root string) error {
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
