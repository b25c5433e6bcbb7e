package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/operate"
	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// ForkCmd is waymark fork.
type ForkCmd struct {
	Run_  string `arg:"" name:"run" help:"Run id."`
	At    string `default:"end" placeholder:"POINT" help:"Point of the run's history to start from (default: end)."`
	As    string `placeholder:"ID" help:"Id of the new run (default: from the run's id)."`
	Hold  bool   `xor:"driver" help:"No executor may claim it before waymark input FORK fork answers."`
	Agent string `placeholder:"NAME" help:"Agent of the fork (default: that of the run)."`
}

// Help is the text below the flags.
func (ForkCmd) Help() string {
	return `The new run has everything of the run at the point; the base is not changed. An open call that has begun, or has the ` +
		`policy hold or verify, is in doubt in the fork.

Examples:
  waymark fork fix-login --at mark:before-deploy --as fix-login-2 --hold`
}

// forkedRun is the JSON output of fork.
type forkedRun struct {
	Run  string         `json:"run"`
	Base schema.BaseRef `json:"base"`
	Head schema.Head    `json:"head"`
}

// Run forks a run.
func (c ForkCmd) Run(ctx context.Context, a *base.App) error {
	point, err := parsePoint("--at", c.At)
	if err != nil {
		return err
	}
	if c.As == "" {
		c.As = operate.ForkID(c.Run_)
	}
	for what, name := range map[string]string{"--as": c.As, "--agent": c.Agent} {
		if name == "" {
			continue
		}
		if err := schema.CheckName(what, name); err != nil {
			return err
		}
	}
	if c.As == c.Run_ {
		return failure.New(failure.Usage, "choose another id, or omit --as", "--as %s names the run itself, but a fork needs its own id", c.As)
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	err = cl.WithExecutor(ctx, base.Operator, func(fleet *publisher.Fleet) error {
		return operate.Fork(ctx, fleet, publisher.ForkSpec{ID: c.As, Base: c.Run_, At: point, Agent: c.Agent}, c.Hold)
	})
	if errors.Is(err, publisher.ErrRunExists) {
		return operate.Taken(cl.Prompt, c.As, err, func() error {
			_, err := cl.Get(ctx, c.As)
			return err
		})
	}
	if err != nil {
		return err
	}
	reply, err := cl.Get(ctx, c.As)
	if err != nil {
		return fmt.Errorf("run %s exists, but reading it failed: %w", c.As, err)
	}
	if err := story.OpenHead(ctx, cl, &reply.Head); err != nil {
		return err
	}
	if a.JSON {
		return output.Document(a.Stdout, forkedRun{Run: c.As, Base: *reply.Head.Base, Head: reply.Head})
	}
	return cmp.Or(printHead(a, &reply.Head, reply.Quarantined, reply.Pauses), printSteps(a, &reply.Head, reply.Quarantined))
}
