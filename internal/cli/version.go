package cli

import (
	"github.com/alecthomas/kong"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/output"
)

type versionCmd struct{}

// Run prints the versions.
func (versionCmd) Run(a *base.App) error {
	v := base.Versions()
	if a.JSON {
		return output.Document(a.Stdout, v)
	}
	return v.Write(a.Stdout)
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
