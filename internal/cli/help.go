package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
)

// helpFlag prints help for the words so far and ends the parse.
type helpFlag bool

// BeforeReset is called by kong before flags are checked, so that help works on an invalid command line.
func (helpFlag) BeforeReset(ctx *kong.Context) error {
	if err := ctx.PrintUsage(false); err != nil {
		return err
	}
	return errHelp
}

// versionFlag prints the versions and ends the parse.
type versionFlag bool

// BeforeReset is called by kong before the rest of the command line is checked.
func (versionFlag) BeforeReset(ctx *kong.Context) error {
	if err := base.Versions().Write(ctx.Stdout); err != nil {
		return err
	}
	return errHelp
}

// printHelp is kong's help without the server flags for commands that use no server. The overview ends with the exit
// codes and the order in which servers are looked up.
func printHelp(options kong.HelpOptions, ctx *kong.Context, getenv func(string) string) error {
	if ctx.Selected() == nil {
		if err := kong.DefaultHelpPrinter(options, ctx); err != nil {
			return err
		}
		return printCodes(output.NewPage(ctx.Stdout, getenv))
	}
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

func printCodes(w io.Writer) error {
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
		b.WriteString(output.Hanging(w, fmt.Sprintf("  %3d  %-12s ", e.Code, e.Name), e.Meaning) + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
