package runs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

const (
	// maxTask bounds a task that is read from standard input.
	maxTask = 16 << 20
	// startLook is the interval of checks whether the run is stuck, startUnclaimed how long a run may stay unclaimed
	// before start reports it.
	startLook      = 2 * time.Second
	startUnclaimed = 10 * time.Second
)

// newRun describes the run that a command submits, or has submitted.
type newRun struct {
	Agent     string            `arg:"" help:"Agent whose executors may claim the run."`
	Task      string            `placeholder:"TEXT" help:"Task; - reads it from standard input."`
	Thread    string            `placeholder:"ID" help:"Conversation of the run."`
	Label     map[string]string `placeholder:"KEY=VALUE" help:"Label; may be repeated."`
	Tier      string            `placeholder:"NAME" help:"Model tier of the run."`
	Priority  int               `placeholder:"N" help:"0 to 9: each step is worth a minute of waiting for an executor (default: 0)."`
	MaxTurns  int32             `placeholder:"N" help:"Maximum turns (default: the agent's limit)."`
	MaxTokens int64             `placeholder:"N" help:"Maximum input and output tokens (default: the agent's limit)."`
	Complete  string            `name:"completion-tool" placeholder:"TOOL" help:"Only a call of this tool completes the run."`
}

// StartCmd is waymark start.
type StartCmd struct {
	newRun

	ID    string `name:"id" placeholder:"ID" help:"Id of the run (default: from the agent's name)."`
	Await bool   `name:"wait" help:"Wait for the end, and print the output or else the summary."`
}

// Help is the text below the flags.
func (StartCmd) Help() string {
	return `Without --key-file task and labels are stored in plain text. With --wait the exit code is 1 if the run failed or was cancelled; ` +
		`Ctrl-C ends the wait, not the run.

Examples:
  waymark start coder --task "Mend the parser." --id fix-parser
  waymark start coder --task - --wait < task.txt`
}

// started is the JSON output of start.
type started struct {
	Run   string `json:"run"`
	Agent string `json:"agent"`
	// Already: an earlier command submitted the run, and nothing was changed.
	Already bool `json:"already,omitzero"`
	// Result is present with --wait.
	Result *result `json:"result,omitzero"`
}

// result is the result of a run.
type result struct {
	Status      schema.Status  `json:"status"`
	Summary     string         `json:"summary,omitzero"`
	Output      jsontext.Value `json:"output,omitzero"`
	CompletedBy string         `json:"completed_by,omitzero"`
	Limit       string         `json:"limit_reached,omitzero"`
	Error       *schema.Error  `json:"error,omitzero"`
	// Unread are the unconsumed signals.
	Unread []schema.OpenSignal `json:"unread,omitzero"`
}

// Run submits a run.
func (c StartCmd) Run(ctx context.Context, a *base.App) error {
	if err := c.prepare(ctx, a); err != nil {
		return err
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	if err := c.warnReadable(ctx, a, cl); err != nil {
		return err
	}
	said := started{Run: c.ID, Agent: c.Agent}
	err = cl.WithExecutor(ctx, base.Operator, func(fleet *publisher.Fleet) error {
		fresh, err := fleet.Submit(ctx, publisher.RunSpec{
			ID: c.ID, Agent: c.Agent, Task: c.Task, ThreadID: c.Thread, Labels: c.Label, ModelTier: c.Tier, Priority: c.Priority, MaxTurns: c.MaxTurns, MaxTokens: c.MaxTokens, Complete: c.Complete,
		})
		said.Already = !fresh
		if err != nil || !c.Await {
			return err
		}
		said.Result, err = c.await(ctx, a, cl, fleet, &said)
		return err
	})
	switch {
	case errors.Is(err, publisher.ErrConflict), errors.Is(err, publisher.ErrRunErased):
		return &failure.Error{Code: failure.Conflict, What: err.Error(), Hint: "choose another --id, or omit it", Err: err}
	case err != nil:
		return err
	}
	if err := c.show(ctx, a, cl, &said); err != nil || said.Result == nil || said.Result.Status == schema.StatusCompleted {
		return err
	}
	limit, why := "", said.Result.Summary
	if said.Result.Limit != "" {
		limit = " at its limit of " + said.Result.Limit
	}
	if said.Result.Error != nil {
		why = said.Result.Error.Message
	}
	return &failure.Error{
		Code: failure.General, What: strings.TrimSuffix("run "+c.ID+" has ended as "+string(said.Result.Status)+limit+": "+why, ": "),
		Hint: "see the whole run with: " + cl.Prompt.Command("runs get "+c.ID),
	}
}

// startLatest is how many of the agent's latest runs show whether the agent encrypts.
const startLatest = 3

// warnReadable warns that the task is stored in plain text although the agent's latest runs are encrypted.
func (c *newRun) warnReadable(ctx context.Context, a *base.App, cl *base.Client) error {
	if cl.HasKeys() || c.Task == "" && len(c.Label) == 0 {
		return nil
	}
	var list schema.ListReply
	if err := cl.Ask(ctx, schema.VerbList, "", schema.ListRequest{Agent: c.Agent, Limit: startLatest}, &list); err != nil {
		return c.unwarned(a, err)
	}
	for i := range list.Runs {
		reply, err := cl.Get(ctx, list.Runs[i].Run)
		if err != nil {
			return c.unwarned(a, err)
		}
		if ids := reply.Head.KeyIDs; len(ids) > 0 {
			return a.Say(a.Stderr, "the task and the labels are stored in plain text, although run %s of agent %s is encrypted with key %s: to encrypt them, provide the key with --key-file",
				reply.Head.Run, c.Agent, strings.Join(ids, ", "))
		}
	}
	return nil
}

// unwarned says why it is not known whether the agent encrypts. The run is submitted all the same: that needs no answer of the daemon.
func (c *newRun) unwarned(a *base.App, err error) error {
	return a.Say(a.Stderr, "whether agent %s encrypts its runs is not known (%s): without --key-file the task is stored in plain text", c.Agent, err)
}

// prepare checks the flags, and reads the task.
func (c *StartCmd) prepare(ctx context.Context, a *base.App) error {
	if err := schema.CheckName("agent", c.Agent); err != nil {
		return err
	}
	if c.ID == "" {
		id := rand.Text()
		c.ID = c.Agent[:min(len(c.Agent), schema.MaxName-9)] + "-" + strings.ToLower(id[len(id)-8:])
	}
	if err := schema.CheckName("--id", c.ID); err != nil {
		return err
	}
	return c.newRun.prepare(ctx, a)
}

// prepare checks the flags, and reads the task.
func (c *newRun) prepare(ctx context.Context, a *base.App) error {
	if err := schema.CheckName("agent", c.Agent); err != nil {
		return err
	}
	if c.MaxTokens < 0 {
		return failure.New(failure.Usage, "use a number of tokens above 0, or omit --max-tokens", "--max-tokens %d", c.MaxTokens)
	}
	if c.MaxTurns < 0 {
		return failure.New(failure.Usage, "use a number of turns above 0, or omit --max-turns", "--max-turns %d", c.MaxTurns)
	}
	if c.Task == "-" {
		if output.IsTerminal(a.Stdin) {
			if _, err := fmt.Fprintln(a.Stderr, "type the task, and end it with Ctrl-D on a line of its own:"); err != nil {
				return err
			}
		}
		text, err := readTask(ctx, a.Stdin)
		if err != nil {
			return err
		}
		if c.Task = strings.TrimSuffix(strings.TrimSuffix(text, "\n"), "\r"); strings.TrimSpace(c.Task) == "" {
			return failure.New(failure.Usage, "write the task, or omit --task", "the task on standard input is empty")
		}
	}
	if !utf8.ValidString(c.Task) {
		return failure.New(failure.Usage, "put it into a file that the agent can read, and name the file in the task", "the task is not UTF-8 text")
	}
	return nil
}

// readTask reads a task until its end or until ctx ends. The read itself cannot be interrupted; the process ends soon.
func readTask(ctx context.Context, from io.Reader) (string, error) {
	type read struct {
		text []byte
		err  error
	}
	done := make(chan read, 1)
	go func() {
		text, err := io.ReadAll(io.LimitReader(from, maxTask+1))
		done <- read{text, err}
	}()
	select {
	case <-ctx.Done():
		return "", context.Cause(ctx)
	case r := <-done:
		switch {
		case r.err != nil:
			return "", fmt.Errorf("reading the task from standard input: %w", r.err)
		case len(r.text) > maxTask:
			return "", failure.New(failure.Usage, "put it into a file that the agent can read, and name the file in the task", "the task on standard input is larger than %d MiB", maxTask>>20)
		}
		return string(r.text), nil
	}
}

// await waits until the run has ended, and meanwhile reports why it is stuck.
func (c *StartCmd) await(ctx context.Context, a *base.App, cl *base.Client, fleet *publisher.Fleet, said *started) (*result, error) {
	tell := func(text string) {
		if !a.JSON && !a.Quiet {
			_, _ = fmt.Fprintln(a.Stderr, output.Printable(text)) // the result is reported in any case
		}
	}
	tell("run " + c.ID + said.already(" is submitted", " was already submitted") + "; waiting for its end")
	watching, stop := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() { c.watch(watching, cl, fleet, tell) })
	came, err := fleet.Result(ctx, c.ID)
	stop()
	watcher.Wait()
	if err != nil {
		if ctx.Err() != nil {
			tell("the run continues; follow it with: " + cl.Prompt.Command("events "+c.ID))
		}
		return nil, err
	}
	return &result{Status: came.Status, Summary: came.Summary, Output: []byte(came.Output), CompletedBy: came.CompletedBy, Limit: came.Limit, Error: came.Error, Unread: came.Unread}, nil
}

// watch reports, once for each reason, why the run is stuck.
func (c *StartCmd) watch(ctx context.Context, cl *base.Client, fleet *publisher.Fleet, tell func(string)) {
	told, unclaimed := "", time.Duration(0)
	for pause.For(ctx, startLook) == nil {
		head, err := fleet.Head(ctx, c.ID)
		if err != nil {
			continue // Result returns the end
		}
		if head.Status.Claimable() && len(head.Interrupts) == 0 {
			unclaimed += startLook
		} else {
			unclaimed = 0
		}
		why := c.standstill(&head, min(unclaimed, startUnclaimed), cl.Prompt)
		if why != "" && why != told {
			tell(why)
		}
		told = why
	}
}

// standstill says why a run that has been claimable for so long is stuck; empty if it is not.
func (c *StartCmd) standstill(head *schema.Head, unclaimed time.Duration, on prompt.Prompt) string {
	switch {
	case len(head.Interrupts) > 0:
		return "the run waits for a person; see its question with: " + on.Command("input "+c.ID)
	case unclaimed < startUnclaimed:
		return ""
	}
	return "no executor has claimed the run in " + unclaimed.String() + ": is an executor running for agent " + c.Agent +
		", or is the run paused or quarantined? See: " + on.Command("plan "+c.ID)
}

func (c StartCmd) show(ctx context.Context, a *base.App, cl *base.Client, said *started) error {
	if r := said.Result; r != nil && len(r.Unread) > 0 && !a.JSON {
		if err := a.Say(a.Stderr, "the run ended with %s unread; see them with: %s", output.Plural(len(r.Unread), "signal"), cl.Prompt.Command("runs get "+said.Run)); err != nil {
			return err
		}
	}
	switch r := said.Result; {
	case a.JSON:
		return output.Document(a.Stdout, said)
	case r != nil && len(r.Output) > 0:
		_, err := fmt.Fprintln(a.Stdout, string(output.Escaped(r.Output)))
		return err
	case r != nil && r.Status == schema.StatusCompleted && r.Summary != "":
		_, err := fmt.Fprintln(a.Stdout, output.Printable(r.Summary))
		return err
	case r != nil && r.Status == schema.StatusCompleted:
		return a.Say(a.Stderr, "the run is completed, without output and without a summary; see its work with: %s", cl.Prompt.Command("runs show "+said.Run))
	case r != nil:
		return nil
	case a.Quiet:
		_, err := fmt.Fprintln(a.Stdout, said.Run)
		return err
	}
	if err := output.Fields(a.Stdout, output.PastLabel("run", said.Already), said.Run, "agent", said.Agent); err != nil {
		return err
	}
	next := "an executor of agent " + said.Agent + " claims it as soon as one runs"
	if said.Already {
		next = "it was already submitted; nothing was changed"
	} else if reply, err := cl.Get(ctx, said.Run); err == nil && len(reply.Pauses) > 0 {
		next = "it is paused, and an executor claims it after: " + cl.Prompt.Command(reply.Pauses[0].EndsWith())
	}
	_, err := fmt.Fprintln(a.Stderr, output.Printable(next+"; follow it with: "+cl.Prompt.Command("events "+said.Run)))
	return err
}

// already chooses the words for a run that already existed.
func (s *started) already(fresh, before string) string {
	if s.Already {
		return before
	}
	return fresh
}
