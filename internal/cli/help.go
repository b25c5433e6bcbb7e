package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
)

type helpCmd struct {
	Command []string `arg:"" optional:"" help:"Command to explain."`
}

// Run prints the help of a command; without a command the overview, the exit codes, and the order in which servers are
// looked up.
func (c helpCmd) Run(a *base.App, parsed *kong.Context) error {
	if len(c.Command) > 0 {
		_, err := parsed.Parse(append(c.Command, "--help"))
		if err != nil && !errors.Is(err, errHelp) {
			return usageError(err)
		}
		return nil
	}
	if a.JSON {
		return output.Document(a.Stdout, exitCodeList())
	}
	if _, err := parsed.Parse([]string{"--help"}); err != nil && !errors.Is(err, errHelp) {
		return err
	}
	var b strings.Builder
	b.WriteString(`
Which server: the first of these that is set
  --nats, --context              command line
  NATS_URL, NATS_CONTEXT         environment (WAYMARK_NATS_URL … come first)
  the server of "waymark serve"  state directory of this user, or --state-dir
  nats context select            the context selected with the nats command

Exit codes:
`)
	for _, e := range failure.Codes {
		b.WriteString(output.Hanging(a.Stdout, fmt.Sprintf("  %3d  %-12s ", e.Code, e.Name), e.Meaning) + "\n")
	}
	_, err := a.Stdout.Write([]byte(b.String()))
	return err
}

// printHelp is kong's help without the server flags for commands that use no server.
func printHelp(options kong.HelpOptions, ctx *kong.Context) error {
	for n := ctx.Selected(); n != nil; n = n.Parent {
		if n.Tag == nil || !n.Tag.Has("serverless") {
			continue
		}
		for _, f := range ctx.Model.Flags {
			if f.Group != nil && f.Group.Key == "server" && !f.Hidden {
				f.Hidden = true
				defer func() { f.Hidden = false }()
			}
		}
		break
	}
	return kong.DefaultHelpPrinter(options, ctx)
}

// exitCodeEntry is one exit code for programs.
type exitCodeEntry struct {
	Code    failure.Code `json:"code"`
	Name    string       `json:"name"`
	Meaning string       `json:"meaning"`
}

// exitCodeList is the table of exit codes for programs.
func exitCodeList() []exitCodeEntry {
	list := make([]exitCodeEntry, len(failure.Codes))
	for i, e := range failure.Codes {
		list[i] = exitCodeEntry{e.Code, e.Name, e.Meaning}
	}
	return list
}
