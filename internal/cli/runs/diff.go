package runs

import (
	"context"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/history"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// DiffCmd is waymark diff.
type DiffCmd struct {
	Left  string `arg:"" help:"Run id, or RUN@POINT."`
	Right string `arg:"" help:"The other one."`
}

// Help is the text below the flags.
func (DiffCmd) Help() string {
	return `Compares names, arguments and outcomes of tool calls, JSON by value; ids, times and executors do not matter. The exit code is 9 if ` +
		`they differ.

Examples:
  waymark diff fix-login fix-login-2
  waymark diff fix-login@turn:3 fix-login@turn:9
  waymark diff fix-login@mark:before-deploy fix-login-fork-Ab12Cd34 --json`
}

// side is one side of the comparison.
type side struct {
	run   string
	point schema.Point
}

// parseSide reads RUN or RUN@POINT.
func parseSide(text string) (side, error) {
	run, at, _ := strings.Cut(text, "@")
	if err := schema.CheckName("run id", run); err != nil {
		return side{}, err
	}
	point, err := parsePoint(text+":", at)
	return side{run, point}, err
}

func (s side) String() string {
	if s.point.Kind == schema.PointEnd {
		return s.run
	}
	return s.run + "@" + s.point.String()
}

// steps reads the calls of a side.
func (s side) steps(ctx context.Context, fleet *publisher.Reader) ([]history.Step, error) {
	state, err := fleet.GetAt(ctx, s.run, s.point)
	if err != nil {
		return nil, err
	}
	return history.Steps(state), nil
}

// difference is the JSON output of diff.
type difference struct {
	LeftName  string `json:"left"`
	RightName string `json:"right"`
	history.Comparison
}

// Run compares two runs, or two points.
func (c DiffCmd) Run(ctx context.Context, a *base.App) error {
	left, err := parseSide(c.Left)
	if err != nil {
		return err
	}
	right, err := parseSide(c.Right)
	if err != nil {
		return err
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	out := difference{LeftName: left.String(), RightName: right.String()}
	err = cl.WithReader(ctx, func(fleet *publisher.Reader) error {
		one, err := left.steps(ctx, fleet)
		if err != nil {
			return err
		}
		other, err := right.steps(ctx, fleet)
		if err != nil {
			return err
		}
		out.Comparison = history.Compare(one, other)
		return nil
	})
	if err != nil {
		return err
	}
	if a.JSON {
		err = output.Document(a.Stdout, out)
	} else {
		err = printComparison(a, &out)
	}
	if err != nil || out.Divergence == nil {
		return err
	}
	return failure.New(failure.Differs, "", "%s and %s differ at %s", out.LeftName, out.RightName, out.Divergence)
}

func printComparison(a *base.App, d *difference) error {
	if err := output.Fields(a.Stdout, "left", d.LeftName+", "+output.Plural(d.Left, "step"), "right", d.RightName+", "+output.Plural(d.Right, "step"),
		"the same", output.Plural(d.Same, "step")); err != nil {
		return err
	}
	if d.Divergence == nil {
		return nil
	}
	return printDivergence(a, d.Divergence)
}

// printDivergence shows both sides of the first different step; only text too long for a line is shortened.
func printDivergence(a *base.App, d *history.Divergence) error {
	if _, err := fmt.Fprintln(a.Stdout); err != nil {
		return err
	}
	fields := []string{"first divergence", d.String()}
	for _, s := range []struct {
		name string
		step *history.Step
	}{{"left", d.Left}, {"right", d.Right}} {
		if s.step == nil {
			continue
		}
		fields = append(fields, s.name+" call", fmt.Sprintf("%s (turn %d, %s)", s.step.Name, s.step.Turn, s.step.ToolCallID),
			s.name+" arguments", valueText(s.step.Arguments, s.step.ArgumentsHash), s.name+" result", resultText(s.step))
	}
	return output.Fields(a.Stdout, fields...)
}

// valueText is a value, or the hash of a value in the blob store.
func valueText(v jsontext.Value, hash string) string {
	if hash != "" {
		return "sha256 " + hash
	}
	return string(v)
}

func resultText(s *history.Step) string {
	t := string(s.Outcome)
	if s.IsError {
		t += ", an error"
	}
	if s.Error != "" {
		t += ": " + s.Error
	}
	if v := valueText(s.Result, s.ResultHash); v != "" {
		t += ": " + v
	}
	return t
}
