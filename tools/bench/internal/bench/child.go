package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/natsd"
)

// childWait bounds each step of a child process.
const childWait = time.Minute

// childRole is the first line that a child reads: its role. One of the three is set.
type childRole struct {
	Server   *serverRole   `json:"server,omitzero"`
	Daemon   *daemonRole   `json:"daemon,omitzero"`
	Executor *executorRole `json:"executor,omitzero"`
}

type serverRole struct {
	StateDir string            `json:"state_dir"`
	Interval bool              `json:"sync_interval"`
	Cluster  *natstest.Cluster `json:"cluster,omitzero"`
}

type daemonRole struct {
	URL      string       `json:"url"`
	User     string       `json:"user"`
	Password string       `json:"password"`
	Config   daemonConfig `json:"config"`
}

// childAnswer is each line that a child writes: one when it is ready, one for each line that it reads after the first.
type childAnswer struct {
	Error string `json:"error,omitzero"`
	URL   string `json:"url,omitzero"`
	// CPU of the process in us, absent where the system does not report it.
	CPU *float64 `json:"cpu_us,omitzero"`
	// Leading is the number of shards that a daemon folds.
	Leading int `json:"leading,omitzero"`
	// Latencies of turns in ns, and the heads of runs, of an executor that was asked for them.
	Latencies []int64 `json:"latencies_ns,omitzero"`
	Wrote     []Wrote `json:"wrote,omitzero"`
}

// Child is the main function of a process of the measurement: a server, a daemon or an executor, as its standard input
// says. It ends with standard input, or with ctx.
func Child(ctx context.Context, stdin io.Reader, stdout io.Writer, log zerolog.Logger) error {
	in := bufio.NewReader(stdin)
	answer := func(a childAnswer) error {
		line, err := json.Marshal(a)
		if err != nil {
			return err
		}
		_, err = stdout.Write(append(line, '\n'))
		return err
	}
	line, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("%w: it was told nothing: %w", ErrChild, err)
	}
	var role childRole
	if err := json.Unmarshal(line, &role); err != nil {
		return fmt.Errorf("%w: %w", ErrChild, err)
	}
	// Nodes of a cluster log that they look for each other. The answer has the error of a node that is not ready.
	var asked atomic.Bool
	log = log.Hook(zerolog.HookFunc(func(e *zerolog.Event, _ zerolog.Level, _ string) {
		if !asked.Load() {
			e.Discard()
		}
	}))
	begin, cancel := context.WithTimeout(ctx, childWait)
	defer cancel()
	stop, do, err := role.start(begin, log)
	if err != nil {
		return errors.Join(err, answer(childAnswer{Error: err.Error()}))
	}
	line = []byte("{}")
	for err == nil {
		a, failed := do(ctx, line)
		if failed != nil {
			a.Error = failed.Error()
		}
		if err = answer(a); err == nil {
			line, err = in.ReadBytes('\n')
			asked.Store(true)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, stop())
}

// start starts the role. do answers each further line; only an executor reads its content.
func (r childRole) start(ctx context.Context, log zerolog.Logger) (stop func() error, do func(context.Context, []byte) (childAnswer, error), err error) {
	only := func(tell func() childAnswer) func(context.Context, []byte) (childAnswer, error) {
		return func(context.Context, []byte) (childAnswer, error) { return tell(), nil }
	}
	switch {
	case r.Server != nil:
		s, err := natsd.Start(ctx, r.Server.config(), log)
		if err != nil {
			return nil, nil, err
		}
		return s.Close, only(func() childAnswer { return childAnswer{URL: s.URL(), CPU: cpuTime()} }), nil
	case r.Daemon != nil:
		connect := func(name string) (*link, error) {
			return dial(r.Daemon.URL, name, nats.UserInfo(r.Daemon.User, r.Daemon.Password))
		}
		d, err := startDaemon(ctx, r.Daemon.Config, connect, log)
		if err != nil {
			return nil, nil, err
		}
		return d.stop, only(func() childAnswer { return childAnswer{CPU: cpuTime(), Leading: d.leading()} }), nil
	case r.Executor != nil:
		e, err := r.Executor.start(ctx, log)
		if err != nil {
			return nil, nil, err
		}
		return e.stop, e.answer, nil
	}
	return nil, nil, fmt.Errorf("%w: it is to be nothing", ErrChild)
}

func (r serverRole) config() natsd.Config {
	cfg := natsd.Config{StateDir: r.StateDir}
	if r.Cluster != nil {
		cfg.Options = r.Cluster.Options
	}
	if r.Interval {
		cfg.Sync = natsd.SyncInterval
	}
	return cfg
}

// child is a running process.
type child struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Reader
	first childAnswer
	mu    sync.Mutex
	gone  bool
}

// startChild starts a process and waits until it is ready.
func startChild(ctx context.Context, command func() *exec.Cmd, name string, role childRole) (_ *child, err error) {
	if command == nil {
		return nil, fmt.Errorf("%w: Child is not set: it makes the processes that %s needs", ErrOptions, name)
	}
	line, err := json.Marshal(role)
	if err != nil {
		return nil, err
	}
	c := &child{name: name, cmd: command()}
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrChild, name, err)
	}
	stopKill := context.AfterFunc(ctx, func() { _ = c.cmd.Process.Kill() }) // it may have ended already
	defer stopKill()
	if c.first, err = c.ask(childWait, line); err != nil {
		_ = c.cmd.Process.Kill() // it may have ended already
		return nil, errors.Join(err, c.cmd.Wait())
	}
	return c, nil
}

// ask writes a line and reads the answer. It kills the process after the limit.
func (c *child) ask(limit time.Duration, line []byte) (a childAnswer, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	timer := time.AfterFunc(limit, func() { _ = c.cmd.Process.Kill() })
	defer timer.Stop()
	if _, err = c.stdin.Write(append(slices.Clip(line), '\n')); err == nil {
		line, err = c.out.ReadBytes('\n')
	}
	if err == nil {
		err = json.Unmarshal(line, &a)
	}
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	if err != nil {
		return a, fmt.Errorf("%w: %s: %w", ErrChild, c.name, err)
	}
	return a, nil
}

// tell asks for the usage of the process.
func (c *child) tell() (childAnswer, error) { return c.ask(childWait, []byte("{}")) }

// stop ends the process cleanly. A second call, or one after kill, does nothing.
func (c *child) stop() error {
	if c.gone {
		return nil
	}
	c.gone = true
	timer := time.AfterFunc(childWait, func() { _ = c.cmd.Process.Kill() })
	defer timer.Stop()
	err := c.stdin.Close()
	if wait := c.cmd.Wait(); wait != nil {
		return fmt.Errorf("%w: %s did not end well: %w", ErrChild, c.name, errors.Join(err, wait))
	}
	return nil
}

// stopChildren ends processes cleanly, all at once; nil ones were never started.
func stopChildren(children []*child) error {
	errs := make([]error, len(children))
	var group sync.WaitGroup
	for i, c := range children {
		if c != nil {
			group.Go(func() { errs[i] = c.stop() })
		}
	}
	group.Wait()
	return errors.Join(errs...)
}
