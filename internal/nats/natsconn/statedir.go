package natsconn

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/go-json-experiment/json"
)

// maxStateFile bounds the size of one of the small JSON files.
const maxStateFile = 64 << 10

// StateDir returns the state directory of this user: WAYMARK_STATE_DIR if set, else
// LocalAppData\waymark on Windows, XDG_STATE_HOME/waymark or ~/.local/state/waymark elsewhere. getenv is
// os.Getenv in the program. It does not create the directory.
func StateDir(getenv func(string) string) (string, error) {
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

// Layout has the paths within a state directory; Root is the absolute path of the directory itself. Files are readable
// only by their owner (0600, directories 0700). On Windows the directory inherits the equivalent rights of the user's
// profile.
type Layout struct{ Root string }

// LayoutOf is the layout of a state directory, which need not exist.
func LayoutOf(dir string) (Layout, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return Layout{}, fmt.Errorf("%w: %s: %w", ErrUnusable, dir, err)
	}
	return Layout{Root: abs}, nil
}

// StateDirUsed reports whether a server has run in a state directory.
func StateDirUsed(dir string) bool {
	l, err := LayoutOf(dir)
	if err != nil {
		return false
	}
	_, err = os.Stat(l.Identity())
	return err == nil
}

// Lock is held by the process that uses the directory.
func (l Layout) Lock() string { return filepath.Join(l.Root, "waymark.lock") }

// Running exists while a server runs, or if one did not stop cleanly.
func (l Layout) Running() string { return filepath.Join(l.Root, "running.json") }

// Unclean is an unclean stop whose effects are not repaired yet.
func (l Layout) Unclean() string { return filepath.Join(l.Root, "unclean.json") }

// Endpoint is the address of the running server.
func (l Layout) Endpoint() string { return filepath.Join(l.Root, "endpoint.json") }

func (l Layout) nats() string { return filepath.Join(l.Root, "nats") }

// Identity is the server's user, password and name.
func (l Layout) Identity() string { return filepath.Join(l.nats(), "identity.json") }

// Context is the same as a NATS context.
func (l Layout) Context() string { return filepath.Join(l.nats(), "waymark.json") }

// Store has JetStream's files.
func (l Layout) Store() string { return filepath.Join(l.nats(), "store") }

// Check refuses a directory that every user may write to: any user could replace its files. The root may be wider
// than 0700 if another program created it (a systemd state directory is 0755), because every secret is a level below.
func (l Layout) Check() error {
	info, err := os.Stat(l.Root)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	if runtime.GOOS != "windows" && info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf(`%w: every user may write to %s (mode %04o): run "chmod o-w %s", or set another directory with WAYMARK_STATE_DIR`,
			ErrUnusable, l.Root, info.Mode().Perm(), l.Root)
	}
	return nil
}

// Marker is the content of running.json and unclean.json.
type Marker struct {
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
}

// ReadState reads a small state file. A missing file is fs.ErrNotExist, any other problem [ErrUnusable].
func ReadState(path string, into any) error {
	info, err := os.Stat(path)
	if err != nil {
		return unusable(err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w: %s is no regular file: move it away", ErrUnusable, path)
	}
	if info.Size() > maxStateFile {
		return fmt.Errorf("%w: %s has %d bytes, at most %d are expected: move it away", ErrUnusable, path, info.Size(), maxStateFile)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return unusable(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%w: %s does not parse: %w: move it away", ErrUnusable, path, err)
	}
	return nil
}

// unusable wraps the error of an existing file.
func unusable(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnusable, err)
}
