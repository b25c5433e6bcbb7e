//go:build unix

package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/adapter/worker"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/cli"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// perform is a process of a mixed fleet: a worker of a program, or an executor in Go of the same agent.
func perform(role string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if role == "server" {
		args := []string{"serve", "--state-dir", os.Getenv("WAYMARK_STATE_DIR"), "--silence", "2s", "--http", "off", "--log-level", "error"}
		return cli.Run(ctx, args, os.Getenv, os.Stdin, os.Stdout, os.Stderr)
	}
	connect := func(ctx context.Context, _ string, change func(*publisher.Config)) (*publisher.Fleet, error) {
		cfg := publisher.Config{Executor: os.Getenv("NAME")}
		change(&cfg)
		return publisher.Connect(ctx, cfg) //nolint:wrapcheck // a test
	}
	var err error
	if role == "go" {
		err = performGo(ctx, connect)
	} else {
		err = worker.Serve(ctx, worker.Config{
			Command: commandOf(role), Stderr: os.Stderr, Log: zerolog.New(os.Stderr).Level(zerolog.WarnLevel), Connect: connect, Ready: func(*worker.Hello, string) {},
		})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// commandOf is the program of a worker. That of the role "played" plays the scripts with the number of the start.
func commandOf(role string) []string {
	self, err := os.Executable()
	if role != "played" || err != nil {
		return languages[role]
	}
	return []string{"sh", "-c", `for n in 1 2; do mkdir "$LEDGER.$n.started" 2>/dev/null && PLAY="$LEDGER.$n" exec "$0"; done`, self}
}

func performGo(ctx context.Context, connect func(context.Context, string, func(*publisher.Config)) (*publisher.Fleet, error)) error {
	fleet, err := connect(ctx, "", func(*publisher.Config) {})
	if err != nil {
		return err
	}
	ledger := os.Getenv("LEDGER")
	model := func(_ context.Context, r publisher.ModelRequest) (publisher.Answer, error) {
		var plan [][]string
		if err := json.Unmarshal([]byte(*r.Messages[0].Parts[0].Content), &plan); err != nil {
			return publisher.Answer{}, err
		}
		if int(r.Turn) > len(plan) {
			return publisher.Answer{Message: schema.Message{Parts: []schema.Part{schema.Text("All is done.")}}}, nil
		}
		var a publisher.Answer
		for _, name := range plan[r.Turn-1] {
			a.Calls = append(a.Calls, publisher.ToolCall{Name: name, Arguments: []byte("{}")})
		}
		return a, nil
	}
	put := func(name, key, text string) string {
		path := ledger + "." + name + "." + key
		fresh := path + "." + strconv.Itoa(os.Getpid()) + ".new"
		said, err := "", os.WriteFile(fresh, []byte(text), 0o600)
		if err = errors.Join(err, os.Link(fresh, path)); err == nil || errors.Is(err, os.ErrExist) {
			b, _ := os.ReadFile(path)
			said = string(b)
		}
		_ = os.Remove(fresh)
		return said
	}
	tool := func(ctx context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
		defer func() { _ = pause.For(ctx, 100*time.Millisecond) }() // its effect is made, and not recorded
		switch inv.Name {
		case "pay":
			put("pay", inv.IdempotencyKey, "done")
		case "book":
			said := put("book", inv.IdempotencyKey, "done")
			if epoch, refused := strings.CutPrefix(said, "refused "); refused {
				if n, err := strconv.Atoi(epoch); err != nil || schema.Epoch(n) > inv.Epoch {
					return publisher.ToolResult{}, errors.New("another executor was told that this was not done")
				}
				if err := os.WriteFile(ledger+".book."+inv.IdempotencyKey, []byte("done"), 0o600); err != nil {
					return publisher.ToolResult{}, err
				}
			}
		default:
			f, err := os.OpenFile(ledger, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				return publisher.ToolResult{}, err
			}
			_, err = f.WriteString(inv.Name + " " + inv.IdempotencyKey + "\n")
			if err = errors.Join(err, f.Close()); err != nil {
				return publisher.ToolResult{}, err
			}
		}
		return publisher.Result(inv.Name + " is done")
	}
	loop := publisher.Loop{Model: model}
	for name, replay := range map[string]schema.Replay{"look": schema.ReplayPure, "pay": schema.ReplayIdempotent, "book": schema.ReplayVerify, "mail": schema.ReplayHold} {
		t := publisher.Tool{Name: name, Replay: replay, Run: tool}
		if name == "book" {
			t.VerifySubject = "verify.clerk.book"
			stop, err := publisher.ServeVerify(fleet.Conn(), t.VerifySubject, "clerk", func(_ context.Context, q schema.VerifyRequest) (schema.VerifyReply, error) {
				if put("book", q.IdempotencyKey, fmt.Sprintf("refused %d", q.Epoch)) == "done" {
					return schema.VerifyReply{Outcome: schema.VerifyDone, Result: []byte(`"book is done"`)}, nil
				}
				return schema.VerifyReply{Outcome: schema.VerifyNotDone}, nil
			})
			if err != nil {
				return err
			}
			defer func() { _ = stop() }()
		}
		loop.Tools = append(loop.Tools, t)
	}
	executor, err := fleet.NewExecutor(publisher.ExecutorSpec{Loops: map[string]publisher.Loop{"clerk": loop}, WaitDetached: true})
	if err != nil {
		return err
	}
	return errors.Join(executor.Serve(ctx), fleet.Close(context.WithoutCancel(ctx)))
}

// mixed is a fleet of processes in three languages.
type mixed struct {
	t      *testing.T
	dir    string
	ledger string
	rand   *rand.Rand
	roles  []string
	alive  []*exec.Cmd
	server *exec.Cmd
	env    []string
	log    *os.File
	reader *publisher.Reader
	// asleep is when the process wakes up, and sleeping how many may still do late what they had begun.
	asleep   []time.Time
	sleeping atomic.Int32
	did      map[string]int
	open     string // a run that had not ended at the latest look
}

func (m *mixed) start(i int) {
	m.t.Helper()
	self, err := os.Executable()
	require.NoError(m.t, err)
	here, err := filepath.Abs(clients)
	require.NoError(m.t, err)
	cmd := exec.CommandContext(context.WithoutCancel(m.t.Context()), self)
	cmd.Env = append(append(os.Environ(), m.env...), "ROLE="+m.roles[i], fmt.Sprintf("NAME=%s-%d", m.roles[i], i), "CLIENTS="+here, "LEDGER="+m.ledger, "TAKES=0.1", "WAYMARK_STATE_DIR="+m.dir)
	cmd.Stderr, cmd.Stdout = m.log, m.log
	require.NoError(m.t, cmd.Start())
	m.alive[i] = cmd
}

// serve starts the server, and waits until it is ready.
func (m *mixed) serve() {
	m.t.Helper()
	self, err := os.Executable()
	require.NoError(m.t, err)
	m.server = exec.CommandContext(context.WithoutCancel(m.t.Context()), self)
	m.server.Env = append(os.Environ(), "ROLE=server", "WAYMARK_STATE_DIR="+m.dir)
	m.server.Stderr = m.log
	out, err := m.server.StdoutPipe()
	require.NoError(m.t, err)
	require.NoError(m.t, m.server.Start())
	_, err = out.Read(make([]byte, 1))
	require.NoError(m.t, err)
}

// programs are the processes that a process has started.
func programs(pid int) (list []int) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // a pattern of our own
	for _, thread := range threads {
		text, _ := os.ReadFile(thread) // it may have ended
		for child := range strings.FieldsSeq(string(text)) {
			if n, err := strconv.Atoi(child); err == nil {
				list = append(list, n)
			}
		}
	}
	return list
}

// gone reports whether a process has ended.
func gone(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(text), ") Z ")
}

// supervise starts the processes again that have ended, because they found no server or their first program was killed.
func (m *mixed) supervise() {
	m.t.Helper()
	for i, cmd := range m.alive {
		if gone(cmd.Process.Pid) {
			_ = cmd.Wait() // it says why in the log
			m.start(i)
		}
	}
}

// disturb breaks something at random: mostly the process that has a run.
func (m *mixed) disturb(runs int) {
	m.t.Helper()
	i := m.rand.IntN(len(m.alive))
	for run := max(0, runs-20); run < runs; run++ {
		head, err := m.reader.Head(m.t.Context(), fmt.Sprintf("r%d", run))
		if _, n, ok := strings.Cut(head.Executor, "-"); err == nil && ok && head.Status == schema.StatusRunning {
			if busy, err := strconv.Atoi(n); err == nil && time.Now().After(m.asleep[busy]) {
				i = busy
				break
			}
		}
	}
	if time.Now().Before(m.asleep[i]) {
		return // it sleeps on
	}
	p := m.alive[i].Process
	what := ""
	switch n := m.rand.IntN(20); {
	case n < 8: // its program ends with it
		what = "workers killed"
		require.NoError(m.t, p.Kill())
		_ = m.alive[i].Wait() // killed
		m.start(i)
	case n < 14:
		what = "programs killed"
		for _, program := range programs(p.Pid) {
			_ = syscall.Kill(program, syscall.SIGKILL) // it may have ended
		}
	case n < 17: // a worker and its program, for longer than the silence
		what = "frozen for 3s"
		wakes := 3 * time.Second
		if testbin.Whole() && m.sleeping.Load() < 2 {
			what, wakes = "frozen for 30s", 30*time.Second
		}
		m.asleep[i] = time.Now().Add(wakes)
		m.sleeping.Add(1)
		still := append(programs(p.Pid), p.Pid)
		for _, pid := range still {
			_ = syscall.Kill(pid, syscall.SIGSTOP)
		}
		time.AfterFunc(wakes, func() {
			for _, pid := range still {
				_ = syscall.Kill(pid, syscall.SIGCONT)
			}
			time.AfterFunc(time.Second, func() { m.sleeping.Add(-1) })
		})
	case n < 19:
		what = "servers killed"
		require.NoError(m.t, m.server.Process.Kill())
		_ = m.server.Wait() // killed
		m.serve()
	default:
		what = "servers stopped"
		require.NoError(m.t, m.server.Process.Signal(syscall.SIGTERM))
		require.NoError(m.t, m.server.Wait())
		m.serve()
	}
	m.did[what]++
}

// look settles what is held, as a person does by the ledger once nothing sleeps that may do it late, and reports how many of the runs have not ended.
func (m *mixed) look(ctx context.Context, fleet *publisher.Fleet, runs int) (open int, err error) {
	for i := range runs {
		head, err := m.reader.Head(ctx, fmt.Sprintf("r%d", i))
		switch {
		case err != nil:
			return 1, err
		case head.Status.Terminal():
			continue
		}
		open++
		m.open = fmt.Sprintf("run %s is %s under %s in epoch %d, with %+v, %d interrupts", head.Run, head.Status, head.Executor, head.Epoch, head.OpenCalls, len(head.Interrupts))
		if head.Quarantined(schema.DefaultMaxClaims) {
			if _, err := fleet.Release(ctx, head.Run, publisher.ResumeSpec{}); err != nil {
				return open, err
			}
		}
		for j := range head.OpenCalls {
			c := &head.OpenCalls[j]
			if c.State != schema.CallHeld && c.State != schema.CallLate || len(head.Interrupts) == 0 || m.sleeping.Load() > 0 {
				continue
			}
			request := schema.SettleRequest{CallKey: c.CallKey, CallEpoch: c.Epoch, How: schema.SettledRerun, By: "ann"}
			if c.State == schema.CallLate { // of a process that woke up while the run waited
				request.How = schema.SettledAdopted
			} else if effectsIn(m.t, m.ledger)[c.Name+" "+c.IdempotencyKey(head.Run)] > 0 {
				request.How, request.Result = schema.SettledDecided, []byte(`"it was done"`)
			}
			if _, err := fleet.Settle(ctx, head.Run, request); err != nil && !errors.Is(err, publisher.ErrNotInDoubt) && !errors.Is(err, publisher.ErrConflict) {
				return open, err
			}
		}
	}
	return open, nil
}

// Executors in Go, and workers in Python and Node, take each other's runs over while all of them are killed, or stand
// still, at random moments: each effect is made once, and the record says so.
func TestMixedFleet_KilledAtRandom_EachEffectOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a fleet of processes")
	}
	for _, command := range languages {
		if _, err := exec.LookPath(command[0]); err != nil {
			t.Skipf("%s is not here: fleets of several languages are NOT TESTED", command[0])
		}
	}
	rounds, between := 25, 400
	if testbin.Full(t) {
		rounds, between = 300, 1000
	}
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // a seed
	if text := os.Getenv("WAYMARK_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("WAYMARK_SEED=%d", seed)
	m := &mixed{t: t, dir: t.TempDir(), rand: rand.New(rand.NewPCG(seed, 0)), roles: []string{"python", "node", "go", "python", "node"}, did: make(map[string]int)} //nolint:gosec // a schedule
	m.ledger, m.asleep = filepath.Join(t.TempDir(), "ledger"), make([]time.Time, len(m.roles))
	var err error
	m.log, err = os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	t.Setenv("WAYMARK_STATE_DIR", m.dir)
	m.serve()
	fleet, err := publisher.Connect(t.Context(), publisher.Config{Executor: "ann"})
	require.NoError(t, err)
	m.reader, err = publisher.NewReader(t.Context(), publisher.Config{})
	require.NoError(t, err)
	m.alive = make([]*exec.Cmd, len(m.roles))
	t.Cleanup(func() {
		_ = errors.Join(fleet.Close(context.Background()), m.reader.Close(context.Background()))
		for _, cmd := range append(m.alive, m.server) {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		if t.Failed() {
			t.Log(m.did, m.open)
			_, _ = m.log.Seek(0, io.SeekStart)
			text, _ := io.ReadAll(io.LimitReader(m.log, 64<<10))
			t.Logf("%s", text)
		}
		_ = m.log.Close()
	})
	for i := range m.roles {
		m.start(i)
	}
	tools := []string{"look", "pay", "book", "mail", "pay", "book"}
	for i := range rounds {
		plan := make([][]string, 1+m.rand.IntN(3))
		for j := range plan {
			for range 1 + m.rand.IntN(3) {
				plan[j] = append(plan[j], tools[m.rand.IntN(len(tools))])
			}
		}
		task, err := json.Marshal(plan)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			_, err := fleet.Submit(t.Context(), publisher.RunSpec{ID: fmt.Sprintf("r%d", i), Agent: "clerk", Task: string(task)})
			return err == nil
		}, time.Minute, 10*time.Millisecond)
		require.NoError(t, pause.For(t.Context(), time.Duration(m.rand.IntN(between))*time.Millisecond))
		m.disturb(i + 1)
		m.supervise()
		_, _ = m.look(t.Context(), fleet, i+1) // the server may be away; the last look is exact
	}
	require.Eventually(t, func() bool {
		m.supervise()
		open, err := m.look(t.Context(), fleet, rounds)
		return open == 0 && err == nil
	}, 5*time.Minute, 100*time.Millisecond)
	effects := effectsIn(t, m.ledger)
	calls, takeovers := 0, 0
	for i := range rounds {
		state, err := m.reader.Get(t.Context(), fmt.Sprintf("r%d", i))
		require.NoError(t, err)
		require.Equal(t, schema.StatusCompleted, state.Head.Status, "%s", state.Head.Run)
		takeovers += int(state.Head.Epoch) - 1
		for j := range state.Calls {
			c := &state.Calls[j]
			key := c.Name + " " + c.CallKey.IdempotencyKey(state.Head.Run)
			calls++
			if n := effects[key]; c.Name == "look" {
				require.GreaterOrEqual(t, n, 1, key)
			} else {
				require.Equal(t, 1, n, key)
			}
			delete(effects, key)
		}
	}
	require.Empty(t, effects, "effects of no recorded call")
	t.Logf("%d rounds, %d calls, %d takeovers; %v", rounds, calls, takeovers, m.did)
}
