//go:build unix

package day_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/wire"
)

// scale is the size of a day.
type scale struct {
	servers, runs, leads, capacity int
	// tries of the model; the agent writer has the SDK's default.
	tries int
	// minute is how long one of the script lasts at least; think is how long the model takes at most; down is how long a
	// killed process stays away.
	minute, think, down time.Duration
	// whole: the script is that of the whole day.
	whole bool
}

// user is the name and the password of everything that connects.
const user = "day"

// agents and the forms of their providers. The digger's executor dies at each request.
var agents = map[string]wire.Form{"writer": wire.Anthropic, "clerk": wire.OpenAIChat, "buyer": wire.OpenAIResponses}

const digger = "digger"

// fleet is a fleet of processes.
type fleet struct {
	tb    testing.TB
	dir   string
	scale scale
	out   *outside
	urls  string

	servers, daemons, executors []*process
	digger                      *process
	build                       int

	sdk    *publisher.Fleet
	kills  []kill
	mu     sync.Mutex
	ended  map[string]time.Time // when a life of an executor was ended
	stop   context.CancelFunc
	work   sync.WaitGroup
	killed map[string]int // victims so far, by kind
}

// kill is one that was done.
type kill struct {
	minute int
	name   string
}

func newFleet(tb testing.TB, s scale) *fleet {
	tb.Helper()
	f := &fleet{tb: tb, dir: tb.TempDir(), scale: s, out: newOutside(tb, s.think), build: 1, ended: map[string]time.Time{}, killed: map[string]int{}}
	require.NoError(tb, os.Mkdir(filepath.Join(f.dir, "logs"), 0o700))
	require.NoError(tb, os.WriteFile(filepath.Join(f.dir, "secret"), []byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"), 0o600))
	tb.Cleanup(f.end)
	ports, routes := natstest.FreePorts(tb, s.servers), natstest.FreePorts(tb, s.servers)
	var urls []string
	for i, port := range ports {
		urls = append(urls, "nats://127.0.0.1:"+strconv.Itoa(port))
		settings := nodeSettings{StateDir: filepath.Join(f.dir, fmt.Sprint("server-", i)), Port: port, User: user}
		if s.servers > 1 {
			settings.Cluster = &natstest.Cluster{Name: "day", Node: i, Ports: routes, User: user, Password: user}
		}
		f.servers = append(f.servers, f.self(fmt.Sprint("server-", i), nodeVariable, func(string) any { return settings }))
	}
	f.urls = strings.Join(urls, ",")
	var starts sync.WaitGroup
	for _, p := range f.servers {
		starts.Go(func() { f.check(p.start(tb.Context())) })
	}
	starts.Wait()
	for i := range 2 {
		p := f.daemon(i)
		f.daemons = append(f.daemons, p)
		f.check(p.start(tb.Context()))
	}
	for agent := range agents {
		for i := range 2 {
			f.executors = append(f.executors, f.executor(agent, i))
		}
	}
	slices.SortFunc(f.executors, func(a, b *process) int { return strings.Compare(a.name, b.name) })
	for _, p := range f.executors {
		starts.Go(func() { f.check(p.start(tb.Context())) })
	}
	starts.Wait()
	var err error
	f.sdk, err = publisher.Connect(tb.Context(), publisher.Config{
		URL: f.urls, Options: []nats.Option{nats.UserInfo(user, user)}, Executor: "person", Heartbeat: -1,
	})
	require.NoError(tb, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(tb.Context()))
	f.stop = stop
	f.digger = f.executor(digger, 0)
	f.work.Go(func() { f.supervise(ctx) })
	return f
}

func (f *fleet) check(err error) {
	f.tb.Helper()
	if err != nil && f.tb.Context().Err() == nil {
		f.tb.Error(err)
	}
}

// supervise starts the digger's executor again each time that it has died.
func (f *fleet) supervise(ctx context.Context) {
	for ctx.Err() == nil {
		if err := f.digger.start(ctx); err == nil {
			select {
			case <-f.digger.gone:
			case <-ctx.Done():
			}
		}
		wait(ctx, 500*time.Millisecond)
	}
}

// end kills everything.
func (f *fleet) end() {
	if f.stop != nil {
		f.stop()
	}
	f.work.Wait()
	if f.sdk != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_ = f.sdk.Close(ctx) // it has no runs
		cancel()
	}
	for _, p := range slices.Concat([]*process{f.digger}, f.executors, f.daemons, f.servers) {
		if p != nil {
			_ = p.end(syscall.SIGKILL) // it may have ended
		}
	}
	if f.tb.Failed() {
		to, err := os.MkdirTemp("", "waymark-day-")
		f.tb.Logf("the logs of all processes are in %s (%v)", to, errors.Join(err, os.CopyFS(to, os.DirFS(filepath.Join(f.dir, "logs")))))
	}
}

// self is a process of this program in another role.
func (f *fleet) self(name, variable string, settings func(life string) any) *process {
	return &process{name: name, logs: filepath.Join(f.dir, "logs"), command: func(life string) *exec.Cmd {
		text, err := json.Marshal(settings(life))
		f.check(err)
		cmd := exec.CommandContext(context.Background(), testBinary)
		cmd.Env = testbin.Environment("GOMAXPROCS=2", variable+"="+string(text))
		return cmd
	}}
}

func (f *fleet) executor(agent string, i int) *process {
	name := fmt.Sprintf("%s-%d", agent, i)
	return f.self(name, executorVariable, func(life string) any {
		s := executorSettings{
			Name: name, Life: life, URLs: f.urls, User: user, Agent: agent, Form: agents[agent], World: f.out.server.URL,
			Build: f.build, Capacity: f.scale.capacity, Tries: f.scale.tries, Early: os.Getenv("WAYMARK_DAY_BREAK") == "early",
		}
		switch agent {
		case "writer":
			s.Tries = 0
		case digger:
			s.Dies, s.Capacity, s.Form = true, 1, wire.Anthropic
		}
		return s
	})
}

func (f *fleet) daemon(i int) *process {
	name := fmt.Sprint("daemon-", i)
	return &process{name: name, logs: filepath.Join(f.dir, "logs"), command: func(string) *exec.Cmd {
		cmd := exec.CommandContext(context.Background(), waymarkBinary, "demo-child", "serve", "--json", "--nats", f.urls, "--http", "127.0.0.1:0",
			"--quota", "256MiB", "--replicas", strconv.Itoa(f.scale.servers), "--synced", "--purge-after", "30s", "--silence", "3s", "--name", name, "--log-format", "json",
			"--webhook", f.out.server.URL+"/webhook", "--webhook-secret", filepath.Join(f.dir, "secret"))
		cmd.Env = testbin.Environment("GOMAXPROCS=2", "WAYMARK_STATE_DIR="+filepath.Join(f.dir, name), "NATS_USER="+user, "NATS_PASSWORD="+user)
		return cmd
	}}
}

// waymark runs a command as a person does, and returns its output and what it says of a failure.
func (f *fleet) waymark(ctx context.Context, args ...string) (stdout []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, waymarkBinary, append([]string{"--nats", f.urls, "--timeout", "10s"}, args...)...)
	cmd.Env = testbin.Environment("GOMAXPROCS=2", "WAYMARK_STATE_DIR="+filepath.Join(f.dir, "person"), "NATS_USER="+user, "NATS_PASSWORD="+user)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("waymark %s: %w: %s", strings.Join(args, " "), err, complaint.String())
	}
	return out.Bytes(), err
}

// must runs a command until it is successful: servers may be away.
func (f *fleet) must(ctx context.Context, args ...string) []byte {
	f.tb.Helper()
	var out []byte
	f.until(ctx, "waymark "+strings.Join(args, " "), func() (err error) {
		out, err = f.waymark(ctx, args...)
		return err
	})
	return out
}

// until tries something until it works.
func (f *fleet) until(ctx context.Context, what string, try func() error) {
	f.tb.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end) && ctx.Err() == nil; wait(ctx, 200*time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	require.Fail(f.tb, "it does not happen within "+patience.String(), "%s: %v", what, err)
}

// victims are the processes of a kind.
func (f *fleet) victims(kind string) []*process {
	return map[string][]*process{"executor": f.executors, "daemon": f.daemons, "server": f.servers}[kind]
}

// kill kills the next process of a kind, and starts it again after a while, once seen has returned.
func (f *fleet) kill(ctx context.Context, minute int, kind string, seen func()) {
	f.tb.Helper()
	list := f.victims(kind)
	p := list[f.killed[kind]%len(list)]
	f.killed[kind]++
	require.NoError(f.tb, p.end(syscall.SIGKILL))
	f.dead(p)
	f.kills = append(f.kills, kill{minute, p.name})
	wait(ctx, f.scale.down)
	seen()
	f.check(p.start(ctx))
}

// dead notes that a process's life has ended.
func (f *fleet) dead(p *process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended[p.life()] = time.Now()
}

// deploy restarts the executors with the second build, one of each agent after the other.
func (f *fleet) deploy(ctx context.Context) {
	f.build = 2
	for half := range 2 {
		var group sync.WaitGroup
		for i, p := range f.executors {
			if i%2 != half {
				continue
			}
			group.Go(func() {
				f.check(p.end(syscall.SIGTERM))
				f.dead(p)
				f.check(p.start(ctx))
			})
		}
		group.Wait()
	}
}
