package runs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/history"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// ReplayCmd is waymark replay.
type ReplayCmd struct {
	Run_ string `arg:"" name:"run" help:"Run id."`
	At   string `default:"end" placeholder:"POINT" help:"Up to a point of its history (default: end)."`
	Save string `placeholder:"FILE" xor:"file" help:"Write the calls to a new file."`
	// Expect is a file with the expected calls.
	Expect string `placeholder:"FILE" xor:"file" help:"Compare with a file from --save."`
}

// Help is the text below the flags.
func (ReplayCmd) Help() string {
	return `Folds the run twice, by this program and by the daemon, and compares both with the calls of the events: order, arguments, ` +
		`outcomes. Events that a rewind left behind are left out. The exit code is 9 if anything differs.

Examples:
  waymark replay fix-login --save calls.json
  waymark replay fix-login --expect calls.json`
}

// replayed is the JSON output of replay.
type replayed struct {
	Run    string `json:"run"`
	Point  string `json:"point"`
	Digest string `json:"digest"`
	Events int64  `json:"events"`
	Steps  int    `json:"steps"`
	// Expected compares the run (left) with the file (right); absent without a file.
	Expected *history.Comparison `json:"expected,omitzero"`
}

// Run reads a run again and compares its calls.
func (c ReplayCmd) Run(ctx context.Context, a *base.App) error {
	point, err := parsePoint("--at", c.At)
	if err != nil {
		return err
	}
	var expect *history.Golden
	if c.Expect != "" {
		if expect, err = readGolden(c.Expect); err != nil {
			return err
		}
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	out := replayed{Run: c.Run_, Point: point.String()}
	var steps []history.Step
	err = cl.WithReader(ctx, func(fleet *publisher.Reader) error {
		// A numbered point stays the same while the run continues.
		head, err := fleet.HeadAt(ctx, c.Run_, point)
		if err != nil {
			return err
		}
		at := schema.Point{Kind: schema.PointEvent, Name: head.Position.ID}
		state, err := fleet.GetAt(ctx, c.Run_, at)
		if err != nil {
			return err
		}
		out.Digest, out.Events = state.Head.Digest, state.Head.Counts.Events
		if state.Head.Digest != head.Digest {
			return failure.New(failure.Differs, "find the damage with: "+a.Prompt.Command("verify "+c.Run_),
				"the daemon folds run %s to digest %.16s…, its events give %.16s…", c.Run_, head.Digest, state.Head.Digest)
		}
		steps = history.Steps(state)
		return recorded(ctx, a, fleet, c.Run_, at, state)
	})
	if err != nil {
		return err
	}
	out.Steps = len(steps)
	if expect != nil {
		compared := history.Compare(steps, expect.Steps)
		out.Expected = &compared
	}
	if c.Save != "" {
		if err := saveGolden(c.Save, &history.Golden{Run: c.Run_, Point: out.Point, Steps: steps}); err != nil {
			return err
		}
	}
	if err := c.print(a, &out); err != nil {
		return err
	}
	if out.Expected != nil && out.Expected.Divergence != nil {
		return failure.New(failure.Differs, "", "run %s and %s differ at %s", c.Run_, c.Expect, out.Expected.Divergence)
	}
	return nil
}

// recorded compares the calls of a state one by one with the events that record them. Events that a rewind left behind
// are not part of the state. A fork's calls from its base are compared in the base.
func recorded(ctx context.Context, a *base.App, fleet *publisher.Reader, run string, at schema.Point, state *schema.State) error {
	differs := func(what string, key schema.CallKey) error {
		return failure.New(failure.Differs, "find the damage with: "+a.Prompt.Command("verify "+run), "call %s of turn %d of run %s differs from %s", key.ToolCallID, key.Turn, run, what)
	}
	head := schema.NewHead(fleet.Name(), run)
	last := schema.StreamSequence(0)
	own := len(state.Calls)
	var calls []schema.CallKey
	err := fleet.EventsAt(ctx, run, at, func(rec schema.Record) error {
		if rec.Stream <= last {
			head.Position = schema.Position{} // sequences that damage freed were used again
		}
		last = rec.Stream
		keys, err := fleet.Keys(ctx)
		if err != nil {
			return err
		}
		v := head.Apply(keys, &rec)
		if v.Kind != schema.Applied || state.Head.LeftBehind(head.Records) {
			return nil
		}
		a.OpenVerdict(ctx, &v)
		switch d := v.Data.(type) {
		case *schema.TurnAnsweredData:
			calls = append(calls, v.Calls...)
			for i := range d.Calls {
				if c := state.Call(v.Calls[i]); c == nil || c.Name != d.Calls[i].Name || string(c.Arguments) != string(d.Calls[i].Arguments) {
					return differs("turn.answered", v.Calls[i])
				}
			}
		case *schema.ToolCalledData:
			if v.Begun {
				return nil
			}
			calls = append(calls, v.Call)
			if c := state.Call(v.Call); c == nil || c.Name != d.Name || string(c.Arguments) != string(d.Arguments) {
				return differs("tool.called", v.Call)
			}
		case *schema.ToolReturnedData:
			if c := state.Call(v.Call); c == nil || c.Outcome != schema.OutcomeReturned || string(c.Result) != string(d.Result) {
				return differs("tool.returned", v.Call)
			}
		case *schema.ToolFailedData:
			if c := state.Call(v.Call); c == nil || c.Outcome != schema.OutcomeFailed || c.Error == nil || c.Error.Message != d.Error.Message {
				return differs("tool.failed", v.Call)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if own < len(calls) {
		return failure.New(failure.Differs, "find the damage with: "+a.Prompt.Command("verify "+run), "run %s has %s, its events record %d", run, output.Plural(own, "call"), len(calls))
	}
	for i, key := range calls {
		if state.Calls[own-len(calls)+i].CallKey != key {
			return differs("the order of its events", key)
		}
	}
	return nil
}

func readGolden(path string) (*history.Golden, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, failure.New(failure.NotFound, "write it with --save", "file %s does not exist", path)
	}
	if err != nil {
		return nil, err
	}
	g, err := history.DecodeGolden(b)
	if err != nil {
		return nil, failure.New(failure.Usage, "write it with --save", "%s: %s", path, err)
	}
	return g, nil
}

// saveGolden writes a new file: the expectation of a test is never replaced.
func saveGolden(path string, g *history.Golden) error {
	b, err := g.Encode()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return failure.New(failure.Conflict, "choose another name, or remove it", "file %s already exists", path)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

func (c ReplayCmd) print(a *base.App, r *replayed) error {
	if a.JSON {
		return output.Document(a.Stdout, r)
	}
	state, file := "matches its record", ""
	if r.Expected != nil {
		file = fmt.Sprintf("%s: the same in %d of %s", c.Expect, r.Expected.Same, output.Plural(max(r.Expected.Left, r.Expected.Right), "step"))
	}
	if c.Save != "" {
		file = "written to " + c.Save
	}
	if err := output.Fields(a.Stdout, "run", r.Run, "point", r.Point, "replay", state, "events", output.Number(r.Events), "steps", output.Number(r.Steps), "file", file, "digest", r.Digest); err != nil {
		return err
	}
	if r.Expected != nil && r.Expected.Divergence != nil {
		return printDivergence(a, r.Expected.Divergence)
	}
	return nil
}
