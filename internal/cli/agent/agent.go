package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/gofrs/flock"
	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/adapter/codingagent"
	"github.com/waymarkio/waymark/internal/base/group"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/publisher"
)

// Cmd is waymark agent.
type Cmd struct {
	Run       RunCmd       `cmd:"" help:"Run a session of Claude Code or Codex, and record it as a run."`
	Serve     ServeCmd     `cmd:"" help:"Work on runs of the agent claude or codex: begin sessions, and go on with those that died."`
	Install   InstallCmd   `cmd:"" serverless:"" help:"Record the sessions that a person begins: write hooks into the agent's settings."`
	Uninstall UninstallCmd `cmd:"" serverless:"" help:"Take away the hooks that install wrote."`
	Hook      HookCmd      `cmd:"" serverless:"" help:"Pass the input of a hook on to its bridge. Agents start it."`
	Watch     WatchCmd     `cmd:"" hidden:""`
}

// Settings are the flags of the commands that run an agent.
type Settings struct {
	Tools string `type:"path" placeholder:"FILE" environ:"WAYMARK_AGENT_TOOLS" help:"Policies of tools, a line each: TOOL = pure, idempotent or hold; and then ask if a person must allow each call (WAYMARK_AGENT_TOOLS)."`
	Name  string `placeholder:"EXECUTOR" environ:"WAYMARK_EXECUTOR" help:"Name of the executor (WAYMARK_EXECUTOR; default: the agent and the host)."`
}

// newWorker returns a worker of the program of an agent.
func newWorker(a *base.App, program string) (*codingagent.Worker, error) {
	own, err := os.Executable()
	w := &codingagent.Worker{
		Dialect: codingagent.Of(program), Program: program, Hook: codingagent.Quoted(own) + " agent hook",
		Stdin: a.Stdin, Stdout: a.Stdout, Stderr: a.Stderr,
	}
	if page, ok := a.Stdout.(output.Page); ok {
		w.Stdout = page.Writer // the terminal itself
	}
	if w.Dialect == nil {
		return nil, failure.New(failure.Usage, "name claude or codex, with its arguments behind it", "%s is not an agent that waymark knows", program)
	}
	return w, err //nolint:wrapcheck // it names the call
}

// with calls use with a worker for the program that the arguments begin with, and the others. With check the program's
// version must be supported.
func (s Settings) with(ctx context.Context, a *base.App, args []string, check bool, use func(w *codingagent.Worker, args []string) error) error {
	if args = base.Program(args); len(args) == 0 {
		return failure.New(failure.Usage, "name it after --: waymark agent run -- claude", "no agent is given")
	}
	w, err := newWorker(a, args[0])
	if err != nil {
		return err
	}
	if w.Tools, err = codingagent.ReadTools(s.Tools); err != nil {
		return &failure.Error{Code: failure.Usage, What: err.Error(), Err: err}
	}
	if check {
		if err := w.Check(ctx); err != nil {
			return err
		}
	}
	cl, err := connect(ctx, a)
	if err != nil {
		return err
	}
	w.Fleet, err = cl.Executor(ctx, cmp.Or(s.Name, w.Dialect.Name+"-"+base.Host()), func(c *publisher.Config) {
		c.Agent, c.Policy = w.Dialect.Name, w.Tools.Policy()
	})
	if err != nil {
		return err
	}
	err = use(w, args[1:])
	return errors.Join(err, base.CloseFleet(ctx, w.Fleet))
}

// connect connects to the server, and starts a local one if there is none.
func connect(ctx context.Context, a *base.App) (cl *base.Client, err error) {
	dir, _ := a.StateDirectory() // it fails below if it is needed
	failed := orStart(ctx, a, func() bool {
		cl, err = a.Connect(ctx, nats.Name("waymark agent"), nats.MaxReconnects(-1))
		return !errors.Is(err, natsconn.ErrNoServer)
	}, "serve", "--state-dir", dir, "--fleet", a.Fleet, "--http", "off")
	if failed != nil {
		return nil, &failure.Error{Code: failure.Unavailable, What: "cannot start a local server: " + failed.Error(), Hint: "start one with: waymark serve", Err: failed}
	}
	return cl, err
}

// orStart calls found. If that is false, it starts this program with arguments, waits until it is ready, and calls found
// again. What it starts outlives this process. Of processes that do the same at once, one starts it.
func orStart(ctx context.Context, a *base.App, found func() bool, args ...string) error {
	if found() {
		return nil
	}
	dir, err := a.StateDirectory()
	if err != nil {
		return err //nolint:wrapcheck // it says what failed
	}
	name := filepath.Join(dir, "agent-"+args[0]+".log")
	lock := flock.New(filepath.Join(dir, "agent-"+args[0]+".lock"))
	if err = errors.Join(os.MkdirAll(dir, 0o700), lock.Lock()); err != nil {
		return err
	}
	defer func() { _ = lock.Unlock() }()
	if found() {
		return nil
	}
	log, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err //nolint:wrapcheck // it names the file
	}
	defer func() { _ = log.Close() }() // the child has its own
	program, failed := os.Executable()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program, args...)
	cmd.Stderr = log
	group.Own(cmd)
	ready, err := cmd.StdoutPipe()
	if err = errors.Join(failed, err); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	if _, err := ready.Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("it ended: see %s", name)
	}
	_ = a.Say(a.Stderr, "waymark: started waymark %s, which stays (process %d, log in %s)", args[0], cmd.Process.Pid, name)
	found()
	return cmd.Process.Release()
}

// RunCmd is waymark agent run.
type RunCmd struct {
	Settings
	Args []string `arg:"" passthrough:"" help:"The agent, claude or codex, with its arguments, after --."`
}

// Help is the text below the flags.
func (RunCmd) Help() string {
	return `Each tool call is durable before its tool runs. The run has the id of the session, and ends with it. If the session is killed, or ` +
		`leaves a call in doubt, the run waits for the same command with the agent's own flag to resume. A server is started if there is none.

Examples:
  waymark agent run -- claude -p "Mend the parser."
  waymark agent run -- claude --resume 0195c1f0-1111-4111-8111-111111111111`
}

// Run runs the session until its agent has ended.
func (c RunCmd) Run(ctx context.Context, a *base.App) error {
	return c.with(ctx, a, c.Args, true, func(w *codingagent.Worker, args []string) error { return w.Run(ctx, args) })
}

// ServeCmd is waymark agent serve.
type ServeCmd struct {
	Settings
	Sessions int      `default:"1" placeholder:"N" help:"Number of sessions at once (default: 1)."`
	Args     []string `arg:"" passthrough:"" help:"The agent, claude or codex, with arguments for each session, after --."`
}

// Help is the text below the flags.
func (ServeCmd) Help() string {
	return `It claims runs that waymark start submitted, and runs whose session died, also under waymark agent run. A session that began elsewhere ` +
		`is restored from the record; its working directory is not: mount it under the same name. The prompt is the task, or a request to go on.

Examples:
  waymark agent serve -- claude --allowedTools Bash,Read,Edit
  waymark start claude --task "Mend the parser." --wait`
}

// Run serves until ctx ends.
func (c ServeCmd) Run(ctx context.Context, a *base.App) error {
	if c.Sessions < 1 {
		return failure.New(failure.Usage, "use 1 or more", "--sessions %d is not above 0", c.Sessions)
	}
	return c.with(ctx, a, c.Args, true, func(w *codingagent.Worker, args []string) error { return w.Serve(ctx, args, c.Sessions) })
}

// HookCmd is waymark agent hook.
type HookCmd struct {
	Bridge string `arg:"" optional:"" type:"path" help:"File that names the bridge."`
	Of     string `placeholder:"AGENT" help:"Agent that has the hooks of install: claude or codex. Its first hook starts the bridge."`
}

// Run passes standard input on to the bridge, and prints its answer. A failure refuses the tool: to the agents, exit code 2
// with a text on standard error is a refusal. For hooks of install other events go on unrecorded, but for a prompt that the bridge refuses.
func (c HookCmd) Run(ctx context.Context, a *base.App) error {
	if c.Of != "" && os.Getenv(codingagent.Supervised) != "" {
		return nil
	}
	input, err := io.ReadAll(a.Stdin)
	begins, asks, guards := codingagent.Begins(input)
	var answer []byte
	if err == nil {
		answer, err = c.ask(ctx, a, input, begins)
	}
	switch {
	case err == nil:
	case guards || c.Of == "" || asks && len(answer) > 0: // a bridge that has no run for a prompt says why
		return failure.New(failure.Usage, "", "not recorded, so it is refused: %v", err)
	default:
		answer, _ = json.Marshal(map[string]string{"systemMessage": "waymark: not recorded, and tools will be refused: " + err.Error()}) // a text
	}
	_, err = a.Stdout.Write(answer)
	return err //nolint:wrapcheck // as it is
}

// ask asks the bridge: for hooks of install that of the agent, which is the parent of this process, because the shell of
// the hook is replaced by it. At the start of a session it starts the bridge if there is none.
func (c HookCmd) ask(ctx context.Context, a *base.App, input []byte, begins bool) (answer []byte, err error) {
	if c.Of == "" {
		return codingagent.Ask(ctx, c.Bridge, input) //nolint:wrapcheck // the caller does
	}
	dir, err := a.StateDirectory()
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller does
	}
	pid := strconv.Itoa(os.Getppid())
	file := filepath.Join(dir, "agent-"+pid+".json")
	failed := orStart(ctx, a, func() bool {
		answer, err = codingagent.Ask(ctx, file, input)
		return err == nil || !begins || len(answer) > 0 // a bridge that refuses is there
	}, "agent", "watch", c.Of, pid, file)
	return answer, cmp.Or(failed, err)
}

// WatchCmd is the bridge that an installed hook starts.
type WatchCmd struct {
	Settings
	Agent string `arg:""`
	PID   int    `arg:""`
	File  string `arg:"" type:"path"`
}

// Run serves the hooks of the process until it ends.
func (c WatchCmd) Run(ctx context.Context, a *base.App) error {
	return c.with(ctx, a, []string{c.Agent}, false, func(w *codingagent.Worker, _ []string) error { return w.Watch(ctx, c.PID, c.File) })
}

// InstallCmd is waymark agent install.
type InstallCmd struct {
	Where
	Print bool `help:"Print what would be written, and write nothing."`
}

// Where says which settings.
type Where struct {
	Agent   string `arg:"" help:"claude or codex, or the path of its program."`
	Project bool   `help:"Settings of the project in the working directory; otherwise the user's."`
}

// Help is the text below the flags.
func (InstallCmd) Help() string {
	return `Sessions begun without waymark agent run are then recorded, too. The rest of the file stays as it is. Flags of the server are not kept: set ` +
		`their environment variables for the agent. Codex runs the hooks once you have trusted them, with /hooks.

Examples:
  waymark agent install claude --print
  waymark agent install codex --project`
}

// Run writes the hooks.
func (c InstallCmd) Run(ctx context.Context, a *base.App) error {
	if runtime.GOOS == "windows" {
		return failure.New(failure.Usage, "begin sessions with: waymark agent run", "the hooks need a POSIX shell")
	}
	w, err := newWorker(a, c.Agent)
	if err == nil {
		err = w.Check(ctx)
	}
	if err != nil {
		return err
	}
	var preview io.Writer
	if c.Print {
		preview = a.Stdout
	}
	return w.Install(w.Dialect.SettingsFile(c.Project), preview) //nolint:wrapcheck // it names the file
}

// UninstallCmd is waymark agent uninstall.
type UninstallCmd struct{ Where }

// Run takes the hooks away.
func (c UninstallCmd) Run(_ context.Context, a *base.App) error {
	w, err := newWorker(a, c.Agent)
	if err != nil {
		return err
	}
	w.Hook = ""
	return w.Install(w.Dialect.SettingsFile(c.Project), nil) //nolint:wrapcheck // it names the file
}
