package demo

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

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/pause"
)

// programs are the computations of demo-program.
var programs = map[string]func([]byte) string{
	"lines":  func(b []byte) string { return strconv.Itoa(bytes.Count(b, []byte("\n"))) },
	"sha256": func(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) },
}

// Files of the scratch folder that stand for the world outside: their entries cannot be undone.
const (
	outboxFile = "outbox.txt"
	ledgerFile = "ledger.txt"
)

// toolbox runs real tools in a scratch folder.
type toolbox struct {
	scratch string
	// pause is how long a tool with an outside effect takes.
	pause time.Duration
}

// arguments are the arguments of all tools.
type arguments struct {
	Path   string   `json:"path"`
	Text   string   `json:"text"`
	Args   []string `json:"args"`
	To     string   `json:"to"`
	File   string   `json:"file"`
	Amount string   `json:"amount"`
}

// Run runs one tool and returns its result.
func (t toolbox) run(ctx context.Context, name string, in arguments) (string, error) {
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
		// The mail is sent first, the answer comes later. After a kill in between, the mail is sent.
		if err := t.append(outboxFile, fmt.Sprintf("to %s: %s\n", in.To, in.File)); err != nil {
			return "", err
		}
		return "sent", pause.For(ctx, t.pause)
	case "pay":
		// The payment comes last. After a kill in between, nothing is paid.
		if err := pause.For(ctx, t.pause); err != nil {
			return "", err
		}
		return "paid", t.append(ledgerFile, fmt.Sprintf("%s %s\n", in.To, in.Amount))
	default:
		return "", fmt.Errorf("there is no tool %q", name)
	}
}

// path keeps a path within the scratch folder.
func (t toolbox) path(name string) (string, error) {
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return "", fmt.Errorf("%q is outside the scratch folder", name)
	}
	return filepath.Join(t.scratch, filepath.FromSlash(name)), nil
}

// command runs a program in the scratch folder.
func (t toolbox) command(ctx context.Context, args []string) (string, error) {
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

func (t toolbox) append(name, text string) (err error) {
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

// ProgramCmd are the harmless commands that the demonstration's agents run as processes of their own, so that it
// needs no shell and no program of the system.
type ProgramCmd struct {
	What string `arg:"" enum:"lines,sha256" help:"What to print."`
	File string `arg:"" help:"File to look at."`
}

// Run prints the number of lines or the checksum.
func (c ProgramCmd) Run(a *base.App) error {
	b, err := os.ReadFile(c.File)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.Stdout, programs[c.What](b))
	return err
}
