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
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/adapter/worker"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// perform is a process of a mixed fleet: a worker of a program, or an executor in Go of the same agent.
func perform(role string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
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
	w      *waymarktest.World
	ledger string
	rand   *rand.Rand
	roles  []string
	alive  []*exec.Cmd
	env    []string
	log    *os.File
}

func (m *mixed) start(i int) {
	m.t.Helper()
	self, err := os.Executable()
	require.NoError(m.t, err)
	here, err := filepath.Abs(clients)
	require.NoError(m.t, err)
	cmd := exec.CommandContext(context.WithoutCancel(m.t.Context()), self)
	cmd.Env = append(append(os.Environ(), m.env...), "ROLE="+m.roles[i], fmt.Sprintf("NAME=%s-%d", m.roles[i], i), "CLIENTS="+here, "LEDGER="+m.ledger, "TAKES=0.1", "WAYMARK_STATE_DIR="+m.w.StateDir())
	cmd.Stderr, cmd.Stdout = m.log, m.log
	require.NoError(m.t, cmd.Start())
	m.alive[i] = cmd
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

// disturb breaks something at random: mostly the process that has a run.
func (m *mixed) disturb(runs int) {
	m.t.Helper()
	i := m.rand.IntN(len(m.alive))
	for run := max(0, runs-20); run < runs; run++ {
		head, err := m.w.Reader().Head(m.t.Context(), fmt.Sprintf("r%d", run))
		if _, n, ok := strings.Cut(head.Executor, "-"); err == nil && ok && head.Status == schema.StatusRunning {
			if busy, err := strconv.Atoi(n); err == nil {
				i = busy
				break
			}
		}
	}
	p := m.alive[i].Process
	switch what := m.rand.IntN(10); {
	case what < 4: // a worker or executor is killed; its program gets the end of its input
		require.NoError(m.t, p.Kill())
		_ = m.alive[i].Wait() // killed
		m.start(i)
	case what < 7: // a program is killed
		for _, program := range programs(p.Pid) {
			_ = syscall.Kill(program, syscall.SIGKILL) // it may have ended
		}
	case what < 9: // a worker and its program stand still for longer than the silence
		still := append(programs(p.Pid), p.Pid)
		for _, pid := range still {
			_ = syscall.Kill(pid, syscall.SIGSTOP)
		}
		time.AfterFunc(3*time.Second, func() {
			for _, pid := range still {
				_ = syscall.Kill(pid, syscall.SIGCONT)
			}
		})
	default:
		m.w.Server.Stop()
		m.w.Server.Start()
	}
}

// look settles what is held, as a person does by the ledger, and reports how many of the runs have not ended.
func (m *mixed) look(ctx context.Context, fleet *publisher.Fleet, runs int) (open int, err error) {
	for i := range runs {
		head, err := m.w.Reader().Head(ctx, fmt.Sprintf("r%d", i))
		switch {
		case err != nil:
			return 1, err
		case head.Status.Terminal():
			continue
		}
		open++
		if head.Quarantined(schema.DefaultMaxClaims) {
			if _, err := fleet.Release(ctx, head.Run, publisher.ResumeSpec{}); err != nil {
				return open, err
			}
		}
		for j := range head.OpenCalls {
			c := &head.OpenCalls[j]
			if c.State != schema.CallHeld || len(head.Interrupts) == 0 {
				continue
			}
			request := schema.SettleRequest{CallKey: c.CallKey, CallEpoch: c.Epoch, How: schema.SettledRerun, By: "ann"}
			if effectsIn(m.t, m.ledger)[c.Name+" "+c.IdempotencyKey(head.Run)] > 0 {
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
	rounds := 25
	if testbin.Full(t) {
		rounds = 300
	}
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // a seed
	if text := os.Getenv("WAYMARK_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("WAYMARK_SEED=%d", seed)
	m := &mixed{t: t, w: waymarktest.StartWith(t, waymarktest.Config{Silence: 2 * time.Second}), rand: rand.New(rand.NewPCG(seed, 0)), roles: []string{"python", "node", "go", "python", "node"}} //nolint:gosec // a schedule
	m.ledger = filepath.Join(t.TempDir(), "ledger")
	var err error
	m.log, err = os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	m.alive = make([]*exec.Cmd, len(m.roles))
	t.Cleanup(func() {
		for _, cmd := range m.alive {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		if t.Failed() {
			_, _ = m.log.Seek(0, io.SeekStart)
			text, _ := io.ReadAll(io.LimitReader(m.log, 64<<10))
			t.Logf("%s", text)
		}
		_ = m.log.Close()
	})
	for i := range m.roles {
		m.start(i)
	}
	fleet := m.w.Fleet("ann", nil)
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
		require.NoError(t, pause.For(t.Context(), time.Duration(m.rand.IntN(400))*time.Millisecond))
		m.disturb(i + 1)
		_, _ = m.look(t.Context(), fleet, i+1) // the server may be away; the last look is exact
	}
	require.Eventually(t, func() bool {
		open, err := m.look(t.Context(), fleet, rounds)
		return open == 0 && err == nil
	}, 5*time.Minute, 100*time.Millisecond)
	effects := effectsIn(t, m.ledger)
	calls, takeovers := 0, 0
	for i := range rounds {
		state := m.w.State(fmt.Sprintf("r%d", i))
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
	t.Logf("%d rounds, %d calls, %d takeovers", rounds, calls, takeovers)
}
