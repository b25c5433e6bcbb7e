package mcp

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/adapter/codingagent"
	adapter "github.com/waymarkio/waymark/internal/adapter/mcp"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Cmd is waymark mcp.
type Cmd struct {
	Command  []string `arg:"" optional:"" passthrough:"" name:"command" help:"The MCP server, and its arguments, after --."`
	URL      string   `name:"url" placeholder:"URL" help:"Address of an MCP server that is reached by HTTP, in place of a command."`
	Token    string   `name:"token-variable" placeholder:"VARIABLE" help:"Environment variable that has the bearer token for the address."`
	ID       string   `name:"run" placeholder:"ID" environ:"WAYMARK_MCP_RUN" help:"Run that the calls belong to; it is started, or taken over (WAYMARK_MCP_RUN; default: one for each session of Claude Code or Codex, or a new one)."`
	Server   string   `placeholder:"NAME" environ:"WAYMARK_MCP_SERVER" help:"Name of the server, which tells its runs apart from another server's (WAYMARK_MCP_SERVER; default: by the command or the address)."`
	Policies string   `placeholder:"FILE" environ:"WAYMARK_MCP_POLICIES" help:"Replay policies of tools, a line each, which are stricter than the server's annotations (WAYMARK_MCP_POLICIES)."`
	Trust    bool     `help:"Let the file be looser than the annotations."`
	Name     string   `placeholder:"EXECUTOR" environ:"WAYMARK_EXECUTOR" help:"Name of the executor (WAYMARK_EXECUTOR; default: from the host, a new one for each process)."`
}

// Help is the text below the flags.
func (Cmd) Help() string {
	return `It stands between an MCP client and a server, and speaks MCP on standard input and output (docs/mcp.md). Each tool call is durable ` +
		`before the server gets it, and each result before the client gets it. All other messages pass unchanged.

Examples:
  waymark mcp -- npx -y @modelcontextprotocol/server-everything
  waymark mcp --url https://example.com/mcp --token-variable EXAMPLE_TOKEN
  claude mcp add notes -- waymark mcp --policies notes.policies -- ./notes`
}

// Run passes messages on until the client has closed standard input.
func (c Cmd) Run(ctx context.Context, a *base.App) (err error) {
	command := base.Program(c.Command)
	// The command and the address, which may have secrets, tell servers apart.
	digest := sha256.Sum256([]byte(strings.Join(append(command, c.URL, c.Token), "\x00")))
	if (len(command) == 0) == (c.URL == "") {
		return failure.New(failure.Usage, "name a command after --, or an address with --url", "there must be one MCP server")
	}
	cfg := adapter.Config{
		Client: adapter.Lines(a.Stdin, open{a.Stdout}),
		Run:    c.ID, Session: a.Getenv("CLAUDE_CODE_SESSION_ID"), Trust: c.Trust,
	}
	if cfg.Log, err = base.NewLogger(a.Stderr, "info", "auto"); err != nil {
		return err
	}
	if cfg.Policies, err = adapter.ReadPolicies(c.Policies); err != nil {
		return &failure.Error{Code: failure.Usage, What: err.Error(), Err: err}
	}
	if c.ID != "" {
		if err := schema.CheckName("--run", c.ID); err != nil {
			return err
		}
	}
	if c.URL != "" {
		address, err := url.Parse(c.URL)
		if err != nil || address.Host == "" {
			return failure.New(failure.Usage, "use such as https://example.com/mcp", "--url is not an address")
		}
		c.Server, cfg.Web = cmp.Or(c.Server, fmt.Sprintf("%s%s-%x", address.Host, address.Path, digest[:4])), new(adapter.Web)
		if c.Token != "" {
			if cfg.Web.Token = a.Getenv(c.Token); cfg.Web.Token == "" {
				return failure.New(failure.Usage, "set it, or leave out --token-variable", "the variable %s has no token", c.Token)
			}
		}
		cfg.Server = cfg.Web.Transport(c.URL)
	} else {
		server := exec.CommandContext(context.WithoutCancel(ctx), command[0], command[1:]...) // it ends behind its last call
		server.Stderr = a.Stderr
		c.Server, cfg.Server = cmp.Or(c.Server, fmt.Sprintf("%s-%x", filepath.Base(command[0]), digest[:4])), adapter.Child{Cmd: server}
	}
	cfg.Name = c.Server
	if a.Getenv(codingagent.Supervised) != "" { // each call has one record
		cfg.Log.Info().Msg("the hooks of the agent record its calls: this process records none")
		return adapter.Serve(ctx, cfg)
	}
	cl, err := a.Connect(ctx, nats.Name("waymark mcp"), nats.MaxReconnects(-1))
	if err != nil {
		return err
	}
	name := cmp.Or(c.Name, "mcp-"+base.Host()+"-"+strings.ToLower(rand.Text()[:6]))
	if cfg.Fleet, err = cl.Executor(ctx, name, func(config *publisher.Config) { config.Logger = &cfg.Log }); err != nil {
		return err
	}
	err = adapter.Serve(ctx, cfg)
	return errors.Join(err, base.CloseFleet(ctx, cfg.Fleet))
}

// open is a writer that stays open.
type open struct{ io.Writer }

func (open) Close() error { return nil }
