package codingagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/waymarkio/waymark/internal/adapter/session"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Worker runs an agent, and records its sessions.
type Worker struct {
	Fleet   *publisher.Fleet
	Dialect *Dialect
	// Program is the agent's, and Hook the beginning of the shell command that calls [Ask].
	Program, Hook string
	Tools         Tools
	Stdin         io.Reader
	Stdout        io.Writer
	Stderr        io.Writer
}

// Check fails unless the version of the program is supported.
func (w *Worker) Check(ctx context.Context) error {
	printed, err := exec.CommandContext(ctx, w.Program, "--version").Output()
	if err != nil {
		return failure.New(failure.NotFound, "install it, or name its path", "%s --version: %v", w.Program, err)
	}
	return w.Dialect.Check(string(printed))
}

// say tells the person who runs the agent.
func (w *Worker) say(format string, args ...any) {
	_, _ = fmt.Fprintf(w.Stderr, "waymark: "+format+"\n", args...)
}

// Policy asks a person about the tools whose line says so; nil if there are none.
func (t Tools) Policy() publisher.Policy {
	if !slices.ContainsFunc(slices.Collect(maps.Values(t)), func(tool Tool) bool { return tool.Ask }) {
		return nil
	}
	return func(_ context.Context, _ *publisher.Run, call publisher.ToolCall) (publisher.Decision, error) {
		decision := publisher.Decision{Decision: schema.DecisionAllow, Policy: "waymark.tools"}
		if t.Of(call.Name).Ask {
			decision.Decision = schema.DecisionAsk
		}
		return decision, nil
	}
}

// Run runs one session, and returns once its agent has ended.
func (w *Worker) Run(ctx context.Context, args []string) (err error) {
	if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--settings") }) {
		return failure.New(failure.Usage, "put the settings into a file that "+w.Dialect.Name+" reads by itself", "--settings is the flag by which waymark gives %s its hooks", w.Dialect.Name)
	}
	p := &process{Worker: w, args: args, id: resumed(args)}
	if p.id != "" {
		if p.run, p.state, err = w.open(ctx, p.id, true); err != nil {
			return err
		}
	}
	return p.record(ctx)
}

// record runs the agent, and records how it ended.
func (p *process) record(ctx context.Context) error {
	end, err := p.wait(ctx)
	if err != nil {
		return err
	}
	if end.run == nil {
		return end.stopped
	}
	return p.finish(ctx, end)
}

// Serve claims runs of the agent, and runs a session for each, until ctx ends: with args, and the task or a request to go
// on as its prompt. Each works in the directory that its run names, if it is here, else in the one of this process.
func (w *Worker) Serve(ctx context.Context, args []string, capacity int) error {
	executor, err := w.Fleet.NewExecutor(publisher.ExecutorSpec{
		Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
			w.Dialect.Name: func(context.Context, *publisher.Run) (publisher.Work, error) {
				return func(ctx context.Context, run *publisher.Run) error { return w.work(ctx, run, args) }, nil
			},
		},
		Capacity: capacity, Grace: 2 * stopLimit,
		OnOutcome: func(run string, outcome publisher.Outcome, err error) {
			if w.say("run %s: %s", run, outcome); err != nil {
				w.say("run %s: %v", run, err)
			}
		},
	})
	if err != nil {
		return err
	}
	return executor.Serve(ctx)
}

// goOn is the prompt of a session that another process began.
const goOn = "The process of this session died. Go on where the work stopped."

// work brings a run to its end, or returns why it is left to others.
func (w *Worker) work(ctx context.Context, run *publisher.Run, args []string) error {
	if err := Settle(ctx, run); err != nil {
		return err
	}
	state := run.State()
	if err := w.Fleet.Hydrate(ctx, state); err != nil {
		return err
	}
	var was workspace
	if _, err := run.GetState(ctx, workspaceKey, &was); err != nil {
		return err
	}
	p := &process{Worker: w, run: run, state: state, id: sessionID(run.ID()), fixed: true}
	here := here()
	if info, err := os.Stat(was.Dir); err == nil && info.IsDir() {
		here.Dir = was.Dir
	}
	p.dir = here.Dir
	again := len(state.Messages) > 0
	if again { // the record has more than the file of a killed session
		if err := w.Dialect.writeSession(w.Dialect.sessionFile(p.dir, p.id), p.dir, p.id, state); err != nil {
			return err
		}
		state.Calls = slices.DeleteFunc(state.Calls, func(c schema.Call) bool { return len(c.Source) == 0 }) // the file has them
	}
	if was != here {
		if err := run.SetState(ctx, workspaceKey, here); err != nil {
			return err
		}
	}
	prompt := goOn
	if !again {
		var err error
		if prompt, err = run.Task(ctx); err != nil {
			return err
		}
	}
	p.args, p.input = w.Dialect.session(args, p.id, again), strings.NewReader(prompt)
	end, err := p.wait(ctx)
	switch {
	case err != nil: // the next worker may be set up better
		return fmt.Errorf("%w: %w", publisher.ErrConfig, err)
	case run.Err() != nil:
		return run.Err()
	case end.stopped != nil:
		return end.stopped
	case len(run.Head().OpenCalls) > 0 || killed(end.exit):
		return errors.Join(publisher.ErrLost, end.exit)
	case end.exit != nil:
		return end.exit
	}
	return run.End(ctx, publisher.RunEnd{Summary: end.last})
}

// killed reports whether a signal ended a process.
func killed(err error) bool {
	exit, ok := errors.AsType[*exec.ExitError](err)
	return ok && exit.ExitCode() < 0 || errors.Is(err, errGone)
}

// resumed returns the session that the arguments resume; empty if they name none.
func resumed(args []string) string {
	for i, arg := range args {
		name, id, found := strings.Cut(arg, "=")
		if !slices.Contains([]string{"--resume", "-r", "resume"}, name) {
			continue
		}
		if !found && i+1 < len(args) {
			id = args[i+1]
		}
		if len(id) == 36 && schema.ValidName(id) && !slices.Contains(args, "--fork-session") {
			return id
		}
	}
	return ""
}

// open starts the run of a session, or takes it over and closes the calls that it left open. With wait it waits for the
// person who must settle one.
func (w *Worker) open(ctx context.Context, id string, wait bool) (run *publisher.Run, state *schema.State, err error) {
	run, taken, err := session.Open(ctx, w.Fleet, publisher.RunSpec{ID: id, Agent: w.Dialect.Name, State: map[string]any{workspaceKey: here()}})
	if err != nil || !taken {
		return run, nil, err
	}
	if err := w.settle(ctx, run, wait); err != nil {
		return nil, nil, errors.Join(err, run.Interrupt(context.WithoutCancel(ctx), schema.InterruptedPreempted))
	}
	state = run.State()
	return run, state, w.Fleet.Hydrate(ctx, state)
}

// workspaceKey is the state of a run that names its working directory. Waymark does not keep the directory.
const workspaceKey = "workspace"

// workspace is where a session works.
type workspace struct {
	Host string `json:"host"`
	Dir  string `json:"dir"`
}

func here() (w workspace) {
	w.Host, _ = os.Hostname()
	w.Dir, _ = os.Getwd()
	return w
}

// lookAgain is how often a waiting session looks for a late result of the earlier process.
const lookAgain = 2 * time.Second

// settle closes what the earlier process left open.
func (w *Worker) settle(ctx context.Context, run *publisher.Run, wait bool) error {
	for asked := false; ; asked = true {
		if err := run.Sync(ctx); err != nil { // a late result, or a person's decision
			return err
		}
		err := Settle(ctx, run)
		held, ok := errors.AsType[*publisher.HeldError](err)
		if !ok || !wait {
			return err
		}
		if !asked {
			w.say("call %s of tool %s is in doubt. Look for a running child of the earlier process, then settle it, and this command goes on:\n%s",
				held.Key.ToolCallID, held.Name, held.Command)
		}
		round, cancel := context.WithTimeout(ctx, lookAgain)
		err = run.AwaitSettled(round, held.Key)
		cancel()
		if err != nil && (ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded)) {
			return err
		}
	}
}

// finish records what became of a run whose agent has ended.
func (w *Worker) finish(ctx context.Context, end *ended) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	run := end.run
	switch err := run.Sync(ctx); {
	case run.Err() != nil:
		return &failure.Error{Code: failure.Conflict, What: fmt.Sprintf("run %s: %v; its agent was stopped here", run.ID(), run.Err()), Hint: "see: waymark runs show " + run.ID(), Err: run.Err()}
	case err != nil && !errors.Is(err, publisher.ErrCancelRequested):
		return err
	}
	open := run.Head().OpenCalls
	switch {
	case len(open) > 0:
		err := run.SetState(ctx, ChildKey, open[0].Name)
		return errors.Join(err, run.Interrupt(ctx, schema.InterruptedPreempted), failure.New(failure.General, "waymark plan "+run.ID(),
			"%s ended in the middle of a call of %s (%s): look for a running child", w.Program, open[0].Name, exitText(end.exit)))
	case run.CancelRequested():
		return run.End(ctx, publisher.RunEnd{Status: schema.StatusCancelled})
	case end.stopped != nil:
		return errors.Join(run.Interrupt(ctx, schema.InterruptedShutdown), end.stopped)
	case end.exit == nil:
		return run.End(ctx, publisher.RunEnd{Summary: end.last})
	}
	if killed(end.exit) {
		return errors.Join(run.Interrupt(ctx, schema.InterruptedPreempted), failure.New(failure.General, "resume it with: waymark agent run -- "+w.Dialect.Name+", and its flag for session "+run.ID(), "%s was ended: %v", w.Program, end.exit))
	}
	return errors.Join(run.End(ctx, publisher.RunEnd{Error: &schema.Error{Type: "exit", Message: end.exit.Error()}}), failure.New(failure.General, "", "%s: %v", w.Program, end.exit))
}
