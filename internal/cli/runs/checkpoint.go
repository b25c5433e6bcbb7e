package runs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/operate"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// maxStateFile bounds a file with state values, in bytes.
const maxStateFile = 64 << 20

// CheckpointCmd is waymark checkpoint.
type CheckpointCmd struct {
	Run_  string   `arg:"" name:"run" help:"Run id."`
	State string   `placeholder:"FILE" help:"File with a JSON object: each member becomes a value of the state; - is standard input."`
	Unset []string `placeholder:"KEY" help:"Delete this value; may be repeated."`
	Name  string   `placeholder:"NAME" help:"Name of the point (default with new values: state-at-record-N)."`
	Move  bool     `help:"Move the name if another point has it."`
	Force bool     `help:"With new values: take it from its executor, which is fenced and loses unrecorded work."`
	By    string   `placeholder:"NAME" environ:"WAYMARK_OPERATOR" help:"Your name, recorded as a claim (WAYMARK_OPERATOR; default: waymark-cli)."`
}

// Help is the text below the flags.
func (CheckpointCmd) Help() string {
	return `The point is mark:NAME, for waymark runs get --at and waymark resume --at. New values take the run over and release it; other ` +
		`values stay.

Examples:
  waymark checkpoint fix-login --name before-deploy
  waymark checkpoint fix-login --state plan.json --name new-plan
  waymark checkpoint fix-login --unset scratchpad`
}

// checkpointed is the JSON output of checkpoint.
type checkpointed struct {
	Run string `json:"run"`
	// Point names the checkpoint, to restore it.
	Point string   `json:"point"`
	Set   []string `json:"set"`
	Unset []string `json:"unset"`
	// Head is the run after it.
	Head schema.Head `json:"head"`
}

// marked is the JSON output of checkpoint without new values.
type marked struct {
	Run   string `json:"run"`
	Point string `json:"point"`
	schema.ControlReply
}

// mark names the current point of a run.
func (c CheckpointCmd) mark(ctx context.Context, a *base.App) error {
	cl, by, err := a.ConnectAs(ctx, c.By)
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
		"show it with", a.Prompt.Command("runs get "+c.Run_+schema.Flag("at", point)),
		"go back to it with", a.Prompt.Command("resume "+c.Run_+schema.Flag("at", point)))
}

// Run names a point. With new values it writes them first.
func (c CheckpointCmd) Run(ctx context.Context, a *base.App) error {
	switch {
	case c.State == "" && len(c.Unset) == 0 && c.Name == "":
		return failure.New(failure.Usage, "name the point with --name NAME, or set values with --state FILE", "none of --name, --state and --unset is given")
	case c.State == "" && len(c.Unset) == 0:
		return c.mark(ctx, a)
	}
	values, err := stateFile(a, c.State)
	if err != nil {
		return err
	}
	for _, key := range c.Unset {
		if _, both := values[key]; both || key == "" {
			return failure.New(failure.Usage, "either set the key or delete it", "--unset %q is not a valid key, or the file sets the same key", key)
		}
	}
	if c.Name != "" {
		if _, err := schema.MarshalData(&schema.CheckpointMarkedData{Name: c.Name}); err != nil {
			return failure.New(failure.Usage, "choose another name; the run was not changed", "--name %.80q: %s", c.Name, err)
		}
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	reply, err := cl.Get(ctx, c.Run_)
	if err != nil {
		return err
	}
	if reply.Head.Status.Terminal() {
		return failure.New(failure.Conflict, "to continue it from one of its points: "+a.Prompt.Command("resume "+c.Run_+" --at POINT"), "run %s has ended as %s", c.Run_, reply.Head.Status)
	}
	if err := operate.MayTake(a.Prompt, &reply.Head, c.Force); err != nil {
		return err
	}
	if err := c.mayMark(a, &reply.Head); err != nil {
		return err
	}
	answer := checkpointed{Run: c.Run_, Set: slices.Sorted(maps.Keys(values)), Unset: append([]string{}, c.Unset...)}
	err = cl.WithExecutor(ctx, base.Operator, func(fleet *publisher.Fleet) error {
		run, err := fleet.Resume(ctx, c.Run_, publisher.ResumeSpec{})
		if err != nil {
			return err
		}
		err = errors.Join(c.write(ctx, run, values, &answer), run.Interrupt(context.WithoutCancel(ctx), schema.InterruptedPreempted))
		answer.Head = run.Head()
		return err
	})
	if err != nil {
		return err
	}
	return c.print(a, &answer)
}

// stateFile reads the values of a file; none without a file.
func stateFile(a *base.App, file string) (map[string]jsontext.Value, error) {
	if file == "" {
		return nil, nil
	}
	name := fileNamed(file)
	body, err := readFile(a, file, "name a file with a JSON object", maxStateFile, "store large content where the agent can read it, and put its location into the state")
	if err != nil {
		return nil, err
	}
	var values map[string]jsontext.Value
	if err := json.Unmarshal(body, &values); err != nil || values == nil {
		return nil, failure.New(failure.Usage, `such as {"todo":["mend","test"]}`, "%s has no JSON object: %v", name, err)
	}
	if _, empty := values[""]; empty {
		return nil, failure.New(failure.Usage, "give each value a name", "%s has a member without a name", name)
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		data, err := schema.MarshalData(&schema.StateSetData{Key: key, Value: values[key]})
		if err == nil {
			_, err = schema.ParseData(&schema.Event{Type: schema.TypeOf(schema.StateSet), DataContentType: schema.ContentTypeJSON, Data: data})
		}
		if err != nil {
			return nil, failure.New(failure.Usage, "correct it in the file; the run was not changed", "%s: value %.80q: %s", name, key, err)
		}
	}
	return values, nil
}

// write writes the values and then the mark.
func (c CheckpointCmd) write(ctx context.Context, run *publisher.Run, values map[string]jsontext.Value, answer *checkpointed) error {
	for _, key := range answer.Set {
		if err := run.SetState(ctx, key, values[key]); err != nil {
			return err
		}
	}
	for _, key := range c.Unset {
		if err := run.DeleteState(ctx, key); err != nil {
			return err
		}
	}
	head := run.Head()
	name := c.Name
	if name == "" {
		name = fmt.Sprintf("state-at-record-%d", head.Records)
	}
	if err := run.Mark(ctx, name); err != nil {
		return err
	}
	answer.Point = schema.Point{Kind: schema.PointMark, Name: name}.String()
	return nil
}

func (c CheckpointCmd) print(a *base.App, answer *checkpointed) error {
	if a.JSON {
		return output.Document(a.Stdout, answer)
	}
	at := schema.Flag("at", answer.Point)
	return output.Fields(a.Stdout, "checkpoint", answer.Point+" of run "+answer.Run, "set", strings.Join(answer.Set, ", "), "deleted", strings.Join(answer.Unset, ", "),
		"epoch", output.Number(answer.Head.Epoch), "next", nextText(a.Prompt, &schema.GetReply{Head: answer.Head}, "continues it", "has the new state"),
		"show it with", a.Prompt.Command("runs get "+answer.Run+" --view state"+at),
		"go back to it with", a.Prompt.Command("resume "+answer.Run+at))
}

// mayMark refuses a used name, and one name too many, before it changes anything.
func (c CheckpointCmd) mayMark(a *base.App, h *schema.Head) error {
	taken := slices.ContainsFunc(h.Marks, func(m schema.Mark) bool { return c.Name != "" && m.Name == c.Name })
	switch {
	case taken && !c.Move:
		return failure.New(failure.Conflict, "choose another --name, or move the name with --move", "run %s already has a point named %s", h.Run, c.Name)
	case !taken && len(h.Marks) >= schema.MaxMarks:
		return failure.New(failure.Conflict, "move one of the names: --name NAME --move; to list them: "+a.Prompt.Command("runs history "+h.Run),
			"run %s already has %d named points, the maximum", h.Run, schema.MaxMarks)
	}
	return nil
}
