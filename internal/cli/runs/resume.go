package runs

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/operate"
	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// ResumeCmd is waymark resume.
type ResumeCmd struct {
	Run_   string `arg:"" name:"run" help:"Run id."`
	At     string `placeholder:"POINT" xor:"point" help:"Continue after this point of its history."`
	Step   *int   `placeholder:"K" xor:"point" help:"The same as --at result:K."`
	Force  bool   `help:"Take it from its executor, which is fenced and loses unrecorded work."`
	DryRun bool   `help:"Only show what would be left behind."`
}

// Help is the text below the flags.
func (ResumeCmd) Help() string {
	return `The run continues after the point, even if it has ended. Later events stay in the record, but are no part of the run. Their external ` +
		`effects are listed, and not undone. For a second run, use waymark fork.

Examples:
  waymark resume fix-login --step 3 --dry-run
  waymark resume fix-login --at mark:before-deploy`
}

// resumption is the JSON output of resume.
type resumption struct {
	Run   string `json:"run"`
	Point string `json:"point"`
	// DryRun: nothing was changed.
	DryRun bool `json:"dry_run,omitzero"`
	// LeftBehind is the run's work after the point.
	LeftBehind operate.LeftBehind `json:"left_behind"`
	// Head is the run at the point.
	Head schema.Head `json:"head"`
}

// Run takes a run over after a point, and releases it to the fleet.
func (c ResumeCmd) Run(ctx context.Context, a *base.App) error {
	point, err := c.point()
	if err != nil {
		return err
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	reply, err := cl.Get(ctx, c.Run_)
	if err != nil {
		return err
	}
	if err := operate.MayTake(a.Prompt, &reply.Head, c.Force || c.DryRun); err != nil {
		return err
	}
	answer := resumption{Run: c.Run_, Point: point.String(), DryRun: c.DryRun}
	err = cl.WithReader(ctx, func(r *publisher.Reader) error {
		there, err := r.GetAt(ctx, c.Run_, point)
		if err != nil {
			return err
		}
		now, err := r.Get(ctx, c.Run_)
		if err != nil {
			return err
		}
		answer.Head, answer.LeftBehind = there.Head, operate.Behind(there, now)
		return nil
	})
	if err == nil && !c.DryRun {
		answer.Head, err = c.resume(ctx, cl, reply.Head.Epoch, point)
	}
	if err != nil {
		return err
	}
	if err := story.OpenHead(ctx, cl, &answer.Head); err != nil {
		return err
	}
	if a.JSON {
		return output.Document(a.Stdout, answer)
	}
	return c.print(a, &answer)
}

// point is the point from which the run continues.
func (c ResumeCmd) point() (schema.Point, error) {
	switch {
	case c.Step == nil && c.At == "":
		return schema.Point{}, failure.New(failure.Usage, "after its third tool call: --step 3; any other point: --at POINT; to list them: waymark runs history "+c.Run_, "neither --step nor --at is given")
	case c.Step == nil:
		p, err := parsePoint("--at", c.At)
		if err == nil && p.Kind == schema.PointEnd {
			err = failure.New(failure.Usage, "to make it claimable: waymark release "+c.Run_, "--at end leaves no event behind")
		}
		return p, err
	case *c.Step < 1:
		return schema.Point{}, failure.New(failure.Usage, "steps are counted from 1", "--step %d is below 1", *c.Step)
	}
	return schema.Point{Kind: schema.PointResult, Number: uint64(*c.Step)}, nil
}

// resume takes the run over in the epoch in which it was read, and returns its head afterwards.
func (c ResumeCmd) resume(ctx context.Context, cl *base.Client, epoch schema.Epoch, point schema.Point) (schema.Head, error) {
	var head schema.Head
	err := cl.WithExecutor(ctx, base.Operator, func(fleet *publisher.Fleet) (err error) {
		head, err = operate.Rewind(ctx, fleet, c.Run_, epoch, point, rand.Text())
		return err
	})
	return head, err
}

func (c ResumeCmd) print(a *base.App, answer *resumption) error {
	label, next := "resumed", nextText(a.Prompt, &schema.GetReply{Head: answer.Head}, "continues it", "continues from there")
	if c.DryRun {
		label, next = "would resume", "nothing was changed; to do it, omit --dry-run"
	}
	left := &answer.LeftBehind
	if err := output.Fields(a.Stdout, label, "run "+answer.Run+" after "+answer.Point,
		"left behind", fmt.Sprintf("%s: %s, %s, %s", output.Plural(left.Records, "record"), output.Plural(left.Turns, "turn"), output.Plural(left.Messages, "message"), output.Plural(left.Calls, "call")),
		"next", next,
	); err != nil {
		return err
	}
	rows := make([][]string, len(left.Done))
	for i, d := range left.Done {
		rows[i] = []string{d.Name, d.ToolCallID, output.Number(d.Occurrence), output.Number(d.Turn), string(d.Replay), string(d.Outcome)}
	}
	if err := printBelow(a, []output.Column{
		{Title: "external effects, not undone", Shrinks: true},
		{Title: "call"},
		{Title: "occ.", Right: true, Drop: 2},
		{Title: "turn", Right: true},
		{Title: "replay", Drop: 1},
		{Title: "outcome"},
	}, rows); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(a.Stdout); err != nil {
		return err
	}
	return cmp.Or(printHead(a, &answer.Head, false, nil), printSteps(a, &answer.Head, false))
}
