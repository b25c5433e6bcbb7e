package cli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/waymarkio/waymark/internal/pause"
)

// demoPrograms is what the commands of demo-program compute.
var demoPrograms = map[string]func([]byte) string{
	"lines":  func(b []byte) string { return strconv.Itoa(bytes.Count(b, []byte("\n"))) },
	"sha256": func(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) },
}

// Files of the scratch folder that stand for the world outside: what is in them cannot be taken back.
const (
	demoOutbox = "outbox.txt"
	demoLedger = "ledger.txt"
)

// demoToolbox runs real tools in a scratch folder.
type demoToolbox struct {
	scratch string
	// pause is how long a tool takes that talks to the world outside.
	pause time.Duration
}

// demoArguments are the arguments of all tools.
type demoArguments struct {
	Path   string   `json:"path"`
	Text   string   `json:"text"`
	Args   []string `json:"args"`
	To     string   `json:"to"`
	File   string   `json:"file"`
	Amount string   `json:"amount"`
}

// Run runs one tool and returns what it says.
func (t demoToolbox) run(ctx context.Context, name string, in demoArguments) (string, error) {
	switch name {
	case "write_file":
		path, err := t.path(in.Path)
		if err != nil {
			return "", err
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return "", err
		}
		if err := os.WriteFile(path, []byte(in.Text), 0o600); err != nil {
			return "", err
		}
		return fmt.Sprintf("wrote %d bytes to %s", len(in.Text), in.Path), pause.For(ctx, t.pause/4)
	case "read_file":
		path, err := t.path(in.Path)
		if err != nil {
			return "", err
		}
		b, err := os.ReadFile(path)
		return string(b), err
	case "command":
		return t.command(ctx, in.Args)
	case "send_mail":
		// The mail goes out first; the answer that it did takes its time. Killed in between, the mail is out.
		if err := t.append(demoOutbox, fmt.Sprintf("to %s: %s\n", in.To, in.File)); err != nil {
			return "", err
		}
		return "sent", pause.For(ctx, t.pause)
	case "pay":
		// Here it is the other way round. Killed in between, nothing was paid.
		if err := pause.For(ctx, t.pause); err != nil {
			return "", err
		}
		return "paid", t.append(demoLedger, fmt.Sprintf("%s %s\n", in.To, in.Amount))
	default:
		return "", fmt.Errorf("there is no tool %q", name)
	}
}

// path keeps a path within the scratch folder.
func (t demoToolbox) path(name string) (string, error) {
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return "", fmt.Errorf("%q is outside the scratch folder", name)
	}
	return filepath.Join(t.scratch, filepath.FromSlash(name)), nil
}

// command runs a program in the scratch folder.
func (t demoToolbox) command(ctx context.Context, args []string) (string, error) {
	binary, err := os.Executable()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, binary, append([]string{"demo-program"}, args...)...)
	cmd.Dir = t.scratch
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
		}
		return "", err
	}
	return strings.TrimSpace(string(out)), nil
}

func (t demoToolbox) append(name, text string) (err error) {
	f, err := os.OpenFile(filepath.Join(t.scratch, name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.WriteString(text); err != nil {
		return err
	}
	return f.Sync()
}
