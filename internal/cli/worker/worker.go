package worker

import (
	"cmp"
	"context"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/adapter/worker"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Cmd is waymark worker.
type Cmd struct {
	Command   []string          `arg:"" passthrough:"" name:"command" help:"The agent's program, and its arguments, after --."`
	Name      string            `placeholder:"EXECUTOR" environ:"WAYMARK_EXECUTOR" help:"Name of the executor (WAYMARK_EXECUTOR; default: the agent and the host)."`
	Programs  int               `default:"1" placeholder:"N" help:"Number of programs that run at once (default: 1)."`
	Capacity  int               `default:"100" placeholder:"N" help:"Number of active runs at which it claims no more (default: 100)."`
	Label     map[string]string `placeholder:"KEY=VALUE" help:"Claim only runs with this label; may be repeated."`
	LogLevel  string            `default:"info" placeholder:"LEVEL" environ:"WAYMARK_LOG_LEVEL" help:"debug, info, warn or error (WAYMARK_LOG_LEVEL; default: info)."`
	LogFormat string            `default:"auto" enum:"auto,console,json" placeholder:"FORMAT" environ:"WAYMARK_LOG_FORMAT" help:"auto, console or json (WAYMARK_LOG_FORMAT; default: auto)."`
}

// Help is the text below the flags.
func (Cmd) Help() string {
	return `The program speaks lines of JSON on its standard input and output (docs/any-language.md); its standard error is shown. ` +
		`If it ends, its runs are given back and it is started again. Ctrl-C gives the runs back, and then ends the program.

Examples:
  waymark worker -- python3 agent.py
  waymark worker --programs 4 --name helper-1 -- node agent.mjs`
}

// ready is the output line.
type ready struct {
	Agent    string `json:"agent"`
	Executor string `json:"executor"`
	Tools    int    `json:"tools"`
}

// Run serves until ctx ends.
func (c Cmd) Run(ctx context.Context, a *base.App) error {
	command := base.Program(c.Command)
	switch {
	case len(command) == 0:
		return failure.New(failure.Usage, "name it after --: waymark worker -- python3 agent.py", "no program is given")
	case c.Programs < 1 || c.Capacity < 1:
		return failure.New(failure.Usage, "use 1 or more", "--programs and --capacity must be above 0")
	}
	log, err := base.NewLogger(a.Stderr, c.LogLevel, c.LogFormat)
	if err != nil {
		return err
	}
	err = worker.Serve(ctx, worker.Config{
		Command: command, Programs: c.Programs, Stderr: a.Stderr, Log: log,
		Spec: publisher.ExecutorSpec{Capacity: c.Capacity, Labels: c.Label},
		Connect: func(ctx context.Context, agent string, change func(*publisher.Config)) (*publisher.Fleet, error) {
			cl, err := a.Connect(ctx, nats.Name("waymark worker"), nats.MaxReconnects(-1))
			if err != nil {
				return nil, err
			}
			return cl.Executor(ctx, c.executor(agent), change)
		},
		Ready: func(h *worker.Hello, executor string) {
			if a.JSON {
				_ = output.Line(a.Stdout, ready{h.Agent, executor, len(h.Tools)})
				return
			}
			_ = a.Say(a.Stderr, "executor %s works for agent %s with %s: %s", executor, h.Agent, output.Plural(len(h.Tools), "tool"), strings.Join(command, " "))
		},
	})
	if ctx.Err() != nil && err == nil {
		return nil
	}
	return err //nolint:wrapcheck // it says what failed
}

// executor is the name of the executor.
func (c Cmd) executor(agent string) string {
	host := base.Host()
	return cmp.Or(c.Name, agent[:min(len(agent), schema.MaxName-1-len(host))]+"-"+host)
}
