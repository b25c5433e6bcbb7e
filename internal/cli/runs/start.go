package runs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// maxTask bounds a task that is read from standard input.
const maxTask = 16 << 20

// StartCmd is waymark start.
type StartCmd struct {
	Agent    string            `arg:"" help:"Agent of the run: an executor that has it claims the run."`
	Task     string            `placeholder:"TEXT" help:"What the run is to do; - reads it from standard input."`
	ID       string            `name:"id" placeholder:"ID" help:"Id of the run (default: made from the agent's name). The same id again is the same run."`
	Thread   string            `placeholder:"ID" help:"Conversation that the run belongs to."`
	Label    map[string]string `placeholder:"KEY=VALUE" help:"Label to find the run by; may be repeated."`
	MaxTurns int32             `placeholder:"N" help:"Turns after which the run is to end (default: those of its agent)."`
	Await    bool              `name:"wait" help:"Wait until the run has ended, and print what it came to."`
}

// Help is the text below the flags.
func (StartCmd) Help() string {
	return `The run is handed in: an executor of the agent claims it, usually within a second. A command with an --id may be repeated when ` +
		`its answer was lost; it never starts a second run.

With --wait the output of the run is printed, or its summary if it has none. The exit code is 0 for a run that is completed, and 1 for one ` +
		`that has failed or was cancelled. Ctrl-C ends the waiting, and not the run.

Examples:
  waymark start coder --task "Mend the parser." --id fix-parser
  waymark start coder --task - --wait < task.txt`
}

// started is what start prints as JSON.
type started struct {
	Run   string `json:"run"`
	Agent string `json:"agent"`
	// Result is there with --wait.
	Result *result `json:"result,omitzero"`
}

// result is what a run came to.
type result struct {
	Status      schema.Status  `json:"status"`
	Summary     string         `json:"summary,omitzero"`
	Output      jsontext.Value `json:"output,omitzero"`
	CompletedBy string         `json:"completed_by,omitzero"`
	Limit       string         `json:"limit_reached,omitzero"`
	Error       *schema.Error  `json:"error,omitzero"`
}

// Run hands a run in.
func (c StartCmd) Run(ctx context.Context, a *base.App) error {
	if c.ID == "" {
		id := rand.Text()
		c.ID = c.Agent[:min(len(c.Agent), schema.MaxName-9)] + "-" + strings.ToLower(id[len(id)-8:])
	}
	for what, name := range map[string]string{"--id": c.ID, "agent": c.Agent} {
		if err := schema.CheckName(what, name); err != nil {
			return err
		}
	}
	if c.MaxTurns < 0 {
		return failure.New(failure.Usage, "name a number of turns above 0, or leave out --max-turns", "--max-turns %d", c.MaxTurns)
	}
	if c.Task == "-" {
		text, err := io.ReadAll(io.LimitReader(a.Stdin, maxTask+1))
		if err != nil {
			return fmt.Errorf("reading the task from standard input: %w", err)
		}
		if len(text) > maxTask {
			return failure.New(failure.Usage, "name a file in the task, which the agent reads", "the task on standard input is larger than %d MiB", maxTask>>20)
		}
		c.Task = strings.TrimSuffix(string(text), "\n")
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
	spec := publisher.RunSpec{ID: c.ID, Agent: c.Agent, Task: c.Task, ThreadID: c.Thread, Labels: c.Label, MaxTurns: c.MaxTurns, HeadOnly: true}
	said := started{Run: c.ID, Agent: c.Agent}
	var failed error
	err = cl.WithExecutor(ctx, base.Operator, func(fleet *publisher.Fleet) error {
		if err := fleet.Submit(ctx, spec); err != nil || !c.Await {
			return err
		}
		if !a.JSON && !a.Quiet {
			if _, err := fmt.Fprintln(a.Stderr, output.Printable("run "+c.ID+" is handed in; waiting for its end")); err != nil {
				return err
			}
		}
		came, err := fleet.Result(ctx, c.ID)
		if err != nil {
			return err
		}
		said.Result = &result{Status: came.Status, Summary: came.Summary, Output: came.Output, CompletedBy: came.CompletedBy, Limit: came.Limit, Error: came.Error}
		if came.Status != schema.StatusCompleted {
			failed = &failure.Error{Code: failure.General, What: "run " + c.ID + " has ended as " + string(came.Status), Hint: "see why with: " + cl.Prompt.Command("runs get "+c.ID)}
		}
		return nil
	})
	switch {
	case errors.Is(err, publisher.ErrConflict), errors.Is(err, publisher.ErrRunErased):
		return &failure.Error{Code: failure.Conflict, What: err.Error(), Hint: "choose another --id, or leave it out", Err: err}
	case err != nil:
		return err
	}
	if err := c.print(a, cl, &said); err != nil {
		return err
	}
	return failed
}

func (c StartCmd) print(a *base.App, cl *base.Client, said *started) error {
	switch r := said.Result; {
	case a.JSON:
		return output.Document(a.Stdout, said)
	case r != nil && len(r.Output) > 0:
		_, err := fmt.Fprintln(a.Stdout, string(r.Output))
		return err
	case r != nil:
		_, err := fmt.Fprintln(a.Stdout, output.Printable(r.Summary))
		return err
	case a.Quiet:
		_, err := fmt.Fprintln(a.Stdout, said.Run)
		return err
	}
	if err := output.Fields(a.Stdout, "run", said.Run, "agent", said.Agent); err != nil {
		return err
	}
	_, err := fmt.Fprintln(a.Stderr, output.Printable("an executor of the agent claims it; follow it with: "+cl.Prompt.Command("runs watch "+said.Run)))
	return err
}
