package runs

import (
	"context"
	"crypto/rand"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/schema"
)

// MarkCmd is waymark mark.
type MarkCmd struct {
	Run_ string `arg:"" name:"run" help:"Run id."`
	Name string `arg:"" help:"Name of the point."`
	Move bool   `help:"Move the name if another point has it."`
	By   string `placeholder:"NAME" environ:"WAYMARK_OPERATOR" help:"Your name, recorded as a claim (WAYMARK_OPERATOR; default: waymark-cli)."`
}

// Help is the text below the flags.
func (MarkCmd) Help() string {
	return `The run is not changed. The point is mark:NAME, for waymark runs get --at and waymark resume --at.

Example:
  waymark mark fix-login before-deploy`
}

// marked is the JSON output of mark.
type marked struct {
	Run   string `json:"run"`
	Point string `json:"point"`
	schema.ControlReply
}

// Run names the current point of a run.
func (c MarkCmd) Run(ctx context.Context, a *base.App) error {
	by, err := base.Sender(c.By)
	if err != nil {
		return err
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	point := schema.Point{Kind: schema.PointMark, Name: c.Name}.String()
	answer := marked{Run: c.Run_, Point: point}
	if err := cl.Ask(ctx, schema.VerbMark, c.Run_, schema.MarkRequest{Name: c.Name, By: by, Move: c.Move, RequestID: rand.Text()}, &answer.ControlReply); err != nil {
		return err
	}
	if a.JSON {
		return output.Document(a.Stdout, answer)
	}
	return output.Fields(a.Stdout, output.PastLabel("marked", answer.Already), "run "+c.Run_+" as "+c.Name, output.ByLabel(answer.By), answer.By, "position", output.Number(answer.Stream),
		"show it with", a.Prompt.Command("runs get "+c.Run_+" --at "+schema.ShellWord(point)),
		"go back to it with", a.Prompt.Command("resume "+c.Run_+" --at "+schema.ShellWord(point)))
}
