package base

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/schema"
)

// App is the context of a command besides its own flags: streams, environment, clock, and the global flags.
type App struct {
	*Flags
	Getenv func(string) string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// Now is the clock for all printed and compared times.
	Now func() time.Time
	// Prompt formats the commands that are shown to the user.
	Prompt prompt.Prompt
	// Refuse ends the command with a permission error of the server.
	Refuse context.CancelCauseFunc
	// Secrets are the keys of --key-file once the command has connected; nil for none.
	Secrets *encryption.Keys
	// clients that the command has connected.
	clients []*Client
}

// Flags are the flags of every command. A flag that is not given is read from the variable in its tag environ.
type Flags struct {
	StateDir string            `placeholder:"DIR" group:"server" environ:"WAYMARK_STATE_DIR" help:"State directory of the local server (WAYMARK_STATE_DIR; default: one of this user)."`
	Conn     natsconn.Settings `embed:"" group:"server"`
	Fleet    string            `default:"default" placeholder:"NAME" group:"server" environ:"WAYMARK_FLEET" help:"Fleet (WAYMARK_FLEET; default: default)."`
	KeyFile  string            `placeholder:"FILE" group:"server" environ:"WAYMARK_KEY_FILE" help:"Keys of encrypted content, one per line: id, and 32 bytes in base64. The first one encrypts (WAYMARK_KEY_FILE)."`
	Timeout  time.Duration     `default:"30s" placeholder:"TIME" group:"server" environ:"WAYMARK_TIMEOUT" help:"Longest wait for one answer (WAYMARK_TIMEOUT; default: 30s)."`
	JSON     bool              `name:"json" group:"output" help:"Print JSON, for programs."`
	Quiet    bool              `short:"q" group:"output" help:"Print no progress and no summary."`
}

// LocalKey is the key from --nkey or --creds for a server that this program starts itself: the public key in the form
// of the server's configuration, and the option with which a connection authenticates. Both are nil without a key.
func (a *App) LocalKey() ([]string, nats.Option, error) {
	public, option, err := a.Conn.KeyOption()
	if err != nil || option == nil {
		return nil, nil, err
	}
	return []string{public}, option, nil
}

// StateDirectory is the state directory in use.
func (a *App) StateDirectory() (string, error) {
	return natsconn.StateDir(func(name string) string {
		if name == "WAYMARK_STATE_DIR" && a.StateDir != "" {
			return a.StateDir
		}
		return a.Getenv(name)
	})
}

// PromptOf is the prompt of a command with these flags. It leaves out passwords and tokens: the next command is refused
// without them, and says how to give them.
func PromptOf(c *Flags, getenv func(string) string) prompt.Prompt {
	var b strings.Builder
	flag := func(name, value string) { b.WriteString(strings.TrimPrefix(schema.Flag(name, value), " ") + " ") }
	if c.StateDir != "" && c.StateDir != getenv("WAYMARK_STATE_DIR") {
		flag("state-dir", c.StateDir)
	}
	for name, value := range c.Conn.Flags() {
		flag(strings.TrimPrefix(name, "--"), value)
	}
	// Show the fleet unless it is the usual one, so that the reader of a command sees which fleet it is about.
	usual := getenv("WAYMARK_FLEET") == "" || getenv("WAYMARK_FLEET") == schema.DefaultFleet
	if c.Fleet != "" && (c.Fleet != schema.DefaultFleet || !usual) {
		flag("fleet", c.Fleet)
	}
	if c.KeyFile != "" && c.KeyFile != getenv("WAYMARK_KEY_FILE") {
		flag("key-file", c.KeyFile)
	}
	return prompt.Prompt{Flags: b.String()}
}

// Say writes a line for people, unless --quiet is set.
func (a *App) Say(w io.Writer, format string, args ...any) error {
	if a.Quiet {
		return nil
	}
	_, err := fmt.Fprintln(w, output.Printable(fmt.Sprintf(format, args...)))
	return err
}
