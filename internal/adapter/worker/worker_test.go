//go:build unix

package worker_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/adapter/worker"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

const clients = "../../../docs/examples/workers"

// languages are the commands of the test agent, by the language.
var languages = map[string][]string{"python": {"python3", "testdata/agent.py"}, "node": {"node", "testdata/agent.mjs"}}

// eachLanguage runs a test for each language that is here.
func eachLanguage(t *testing.T, test func(t *testing.T, command []string)) {
	t.Helper()
	for name, command := range languages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(command[0]); err != nil {
				t.Skipf("%s is not here: its client is NOT TESTED", command[0])
			}
			test(t, command)
		})
	}
}

// bench is a worker of the test agent in a world of its own.
type bench struct {
	t      *testing.T
	w      *waymarktest.World
	ledger string
	env    []string
}

func newBench(t *testing.T, env ...string) *bench {
	t.Helper()
	b := &bench{t: t, w: waymarktest.Start(t), ledger: filepath.Join(t.TempDir(), "ledger")}
	here, err := filepath.Abs(clients)
	require.NoError(t, err)
	b.env = append([]string{"CLIENTS=" + here, "LEDGER=" + b.ledger}, env...)
	return b
}

// startBench is a bench with the worker "one" and the run r1, which has that task.
func startBench(t *testing.T, command []string, task string, env ...string) *bench {
	t.Helper()
	b := newBench(t, env...)
	b.work("one", command)
	b.submit("r1", task)
	return b
}

// work starts a worker, which stops with the test, or with stop.
func (b *bench) work(name string, command []string, more ...func(*worker.Config)) (stop func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.t.Context()))
	done, ready := make(chan error, 1), make(chan struct{})
	var log bytes.Buffer
	cfg := worker.Config{
		Command: append([]string{"/usr/bin/env"}, append(slices.Clone(b.env), command...)...), Stderr: io.Discard, Log: zerolog.New(zerolog.SyncWriter(&log)),
		Connect: func(_ context.Context, agent string, change func(*publisher.Config)) (*publisher.Fleet, error) {
			return b.w.Fleet(name, change), nil
		},
		Ready: func(*worker.Hello, string) { close(ready) },
	}
	for _, change := range more {
		change(&cfg)
	}
	go func() { done <- worker.Serve(ctx, cfg) }()
	select {
	case <-ready:
	case err := <-done:
		require.NoError(b.t, err)
		b.t.Fatal("the worker ended")
	}
	ended := false
	stop = func() {
		if !ended {
			ended = true
			cancel()
			require.NoError(b.t, <-done, log.String())
		}
	}
	b.t.Cleanup(stop)
	return stop
}

// submit hands the run in.
func (b *bench) submit(run, task string) {
	b.t.Helper()
	_, err := b.w.Fleet("submitter", nil).Submit(b.t.Context(), publisher.RunSpec{ID: run, Agent: "clerk", Task: task})
	require.NoError(b.t, err)
}

// effects counts the effects by tool.
func (b *bench) effects() map[string]int {
	b.t.Helper()
	list := make(map[string]int)
	for effect, n := range effectsIn(b.t, b.ledger) {
		name, _, _ := strings.Cut(effect, " ")
		list[name] += n
	}
	return list
}

// effectsIn counts the effects in a ledger by tool and key, as "tool key".
func effectsIn(tb testing.TB, ledger string) map[string]int {
	tb.Helper()
	text, err := os.ReadFile(ledger)
	if !os.IsNotExist(err) {
		require.NoError(tb, err)
	}
	list := make(map[string]int)
	for line := range strings.Lines(string(text)) {
		list[strings.TrimSuffix(line, "\n")]++
	}
	files, err := filepath.Glob(ledger + ".*")
	require.NoError(tb, err)
	for _, file := range files {
		said, err := os.ReadFile(file)
		if name, key, ok := strings.Cut(strings.TrimPrefix(file, ledger+"."), "."); ok && err == nil && string(said) == "done" && !strings.HasSuffix(key, ".new") {
			list[name+" "+key]++
		}
	}
	return list
}

func TestServe_EachTool_RunsOnce(t *testing.T) {
	t.Parallel()
	eachLanguage(t, func(t *testing.T, command []string) {
		t.Helper()
		for _, mode := range []string{"LOOP=1", "OWN=1"} {
			b := newBench(t, mode)
			b.work("one", command)
			task := `[["look","pay"],["fail"],["mail"]]`
			b.submit("r1", task)
			result := b.w.Ended("r1")
			require.Equal(t, schema.StatusCompleted, result.Status, mode)
			require.Equal(t, map[string]int{"look": 1, "pay": 1, "fail": 1, "mail": 1}, b.effects(), mode)
			state, err := publisher.Result(b.w.State("r1"))
			require.NoError(t, err)
			require.Contains(t, string(state.Result), "it is broken", mode)
		}
	})
}

// A program that hears nothing does not outlive its worker: what it had begun does not happen after the takeover.
func TestServe_WorkerKilled_ItsProgramEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	m := &mixed{t: t, dir: b.w.StateDir(), ledger: b.ledger, roles: []string{"python"}, alive: make([]*exec.Cmd, 1), env: []string{"AT=before:look", "FREEZE=1"}}
	m.start(0)
	b.submit("r1", `[["look"]]`)
	var pid int
	require.Eventually(t, func() bool {
		text, _ := os.ReadFile(b.ledger + ".was-there") // there may be none yet
		pid, _ = strconv.Atoi(string(text))
		return pid > 0
	}, time.Minute, time.Millisecond)
	require.NoError(t, m.alive[0].Process.Kill())
	_ = m.alive[0].Wait() // killed
	require.Eventually(t, func() bool { return gone(pid) }, time.Minute, time.Millisecond)
}

// The table of docs/tools.md, for programs: each policy, killed before and after the effect.
func TestServe_ProgramKilledInATool_PolicyDecides(t *testing.T) {
	if testing.Short() {
		t.Skip("short: many programs")
	}
	t.Parallel()
	eachLanguage(t, func(t *testing.T, command []string) {
		t.Helper()
		for _, mode := range []string{"LOOP=1", "OWN=1"} {
			for _, tool := range []string{"look", "pay", "book", "mail"} {
				for _, when := range []string{"before", "after"} {
					if mode == "OWN=1" && tool == "book" {
						continue // its tools are asked by their workers' loops
					}
					t.Run(fmt.Sprintf("%s/%s/%s", mode, when, tool), func(t *testing.T) {
						t.Parallel()
						b := startBench(t, command, `[["`+tool+`"]]`, mode, "AT="+when+":"+tool)
						want := 1
						if tool == "look" && when == "after" {
							want = 2
						}
						if tool == "mail" {
							b.settle("r1")
						}
						require.Equal(t, schema.StatusCompleted, b.w.Ended("r1").Status)
						require.Equal(t, want, b.effects()[tool])
					})
				}
			}
		}
	})
}

// settle settles the call that is held as an operator does after a look into the ledger.
func (b *bench) settle(run string) {
	b.t.Helper()
	var call *schema.OpenCall
	require.Eventually(b.t, func() bool {
		head := b.w.State(run).Head
		if len(head.OpenCalls) > 0 && head.OpenCalls[0].State == schema.CallHeld && len(head.Interrupts) > 0 {
			call = &head.OpenCalls[0]
		}
		return call != nil
	}, time.Minute, 5*time.Millisecond)
	request := schema.SettleRequest{CallKey: call.CallKey, CallEpoch: call.Epoch, How: schema.SettledRerun, By: "ann"}
	if b.effects()[call.Name] > 0 {
		request.How, request.Result = schema.SettledDecided, []byte(`"it was sent"`)
	}
	_, err := b.w.Fleet("ann", nil).Settle(b.t.Context(), run, request)
	require.NoError(b.t, err)
}

// Parts of a result that are not JSON become text, half a character is replaced, and each exception is a failure.
func TestServe_OddAnswers_AreRecorded(t *testing.T) {
	t.Parallel()
	eachLanguage(t, func(t *testing.T, command []string) {
		t.Helper()
		for _, mode := range []string{"LOOP=1", "OWN=1"} {
			b := startBench(t, command, `[["half"],["odd"],["deep"],["gone"],["exit"]]`, mode)
			require.Equal(t, schema.StatusCompleted, b.w.Ended("r1").Status, mode)
			calls := b.w.State("r1").Calls
			require.Len(t, calls, 5)
			require.JSONEq(t, `"half a character: \ufffd"`, string(calls[0].Result), mode)
			require.Contains(t, []string{`{"odd":"1"}`, `{"odd":"{1}"}`}, string(calls[1].Result), mode)
			require.Equal(t, schema.OutcomeReturned, calls[2].Outcome, mode)
			require.Contains(t, string(calls[2].Result), `"`, mode)
			require.Equal(t, schema.OutcomeFailed, calls[3].Outcome, mode)
			require.Equal(t, schema.OutcomeFailed, calls[4].Outcome, mode)
		}
	})
}

// A tool that may run again asks a person: the run leaves it open while it waits.
func TestServe_OwnLoop_ToolAsks_RunsAgainWithTheAnswer(t *testing.T) {
	t.Parallel()
	eachLanguage(t, func(t *testing.T, command []string) {
		t.Helper()
		b := startBench(t, command, `[["nested"],["pay"]]`, "OWN=1")
		b.answer("r1", `{"yes":1}`)
		result := b.w.Ended("r1")
		require.Equal(t, schema.StatusCompleted, result.Status)
		require.Contains(t, string(result.Output), `"answer":{"yes":1}`)
		require.JSONEq(t, `{"yes":1}`, string(b.w.State("r1").Calls[0].Result))
	})
}

// A run is taken from a program in a tool, and comes back to it: the late result is adopted, and what the program says for
// the older epoch begins nothing.
func TestServe_OwnLoop_TakenAndComesBack_EachEffectOnce(t *testing.T) {
	t.Parallel()
	eachLanguage(t, func(t *testing.T, command []string) {
		t.Helper()
		b := startBench(t, command, `[["mail"],["pay"]]`, "OWN=1", "TAKES=0.3")
		require.Eventually(t, func() bool { return b.effects()["mail"] == 1 }, time.Minute, time.Millisecond)
		run, err := b.w.Fleet("thief", nil).Resume(t.Context(), "r1", publisher.ResumeSpec{})
		require.NoError(t, err)
		require.NoError(t, run.Interrupt(t.Context(), schema.InterruptedShutdown))
		require.Equal(t, schema.StatusCompleted, b.w.Ended("r1").Status)
		require.Equal(t, map[string]int{"mail": 1, "pay": 1}, b.effects())
	})
}

// A server that is away fails no run: it is given back, and goes on.
func TestServe_OwnLoop_ServerAway_RunGoesOn(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: an outage")
	}
	eachLanguage(t, func(t *testing.T, command []string) {
		t.Helper()
		b := newBench(t, "OWN=1", "TAKES=0.3")
		var left atomic.Int32
		b.work("one", command, func(c *worker.Config) {
			connect := c.Connect
			c.Connect = func(ctx context.Context, agent string, change func(*publisher.Config)) (*publisher.Fleet, error) {
				return connect(ctx, agent, func(c *publisher.Config) {
					change(c)
					c.PublishTimeout = 500 * time.Millisecond
				})
			}
			c.Spec.OnOutcome = func(string, publisher.Outcome, error) { left.Add(1) }
		})
		b.submit("r1", `[["pay"],["pay"],["pay"],["pay"]]`)
		require.Eventually(t, func() bool { return b.effects()["pay"] > 0 }, time.Minute, 5*time.Millisecond)
		b.w.Server.Stop()
		require.Never(t, func() bool { return left.Load() > 0 }, 3*time.Second, 50*time.Millisecond, "it cannot be given back either")
		b.w.Server.Start()
		require.Equal(t, schema.StatusCompleted, b.w.Ended("r1").Status)
		require.Equal(t, map[string]int{"pay": 4}, b.effects())
		require.Greater(t, left.Load(), int32(1), "it was given back once")
	})
}

func TestServe_Approval_IsAskedOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("short: many programs")
	}
	t.Parallel()
	eachLanguage(t, func(t *testing.T, command []string) {
		t.Helper()
		for _, decision := range []string{schema.DecisionAllow, schema.DecisionDeny} {
			for _, mode := range []string{"LOOP=1", "OWN=1"} {
				b := startBench(t, command, `[["charge"]]`, mode)
				b.answer("r1", `{"decision":"`+decision+`","reason":"too much"}`)
				require.Equal(t, schema.StatusCompleted, b.w.Ended("r1").Status)
				want := map[string]int{"charge": 1}
				if decision == schema.DecisionDeny {
					want = map[string]int{}
				}
				require.Equal(t, want, b.effects(), mode)
			}
		}
	})
}

// answer answers what the run asks.
func (b *bench) answer(run, payload string) {
	b.t.Helper()
	b.w.Await(run, schema.StatusWaiting)
	open := b.w.State(run).Head.Interrupts[0]
	require.NoError(b.t, b.w.Fleet("ann", nil).Input(b.t.Context(), run, publisher.Input{InterruptID: open.InterruptID, EventID: open.Position.ID, Payload: []byte(payload)}))
}

func TestServe_OwnLoop_AsksListensAndKeepsState(t *testing.T) {
	t.Parallel()
	eachLanguage(t, func(t *testing.T, command []string) {
		t.Helper()
		b := startBench(t, command, `[["look","ask"],["listen"],["pay"]]`, "OWN=1")
		b.answer("r1", `{"yes":9007199254740993}`)
		b.w.Await("r1", schema.StatusWaiting)
		require.Eventually(t, func() bool {
			return len(b.w.State("r1").Head.Interrupts) == 1 && b.w.State("r1").Head.Interrupts[0].Reason == schema.WaitSignal
		}, time.Minute, 5*time.Millisecond)
		require.NoError(t, b.w.Fleet("ann", nil).Signal(t.Context(), "r1", publisher.SignalSpec{ID: "s1", Name: "note", Payload: []byte(`"hurry"`)}))
		result := b.w.Ended("r1")
		require.Equal(t, schema.StatusCompleted, result.Status)
		require.Contains(t, string(result.Output), `"heard":["hurry"]`)
		require.Equal(t, map[string]int{"look": 1, "pay": 1}, b.effects(), "the run was left and taken again twice")
	})
}

func TestServe_Cancel_ReachesTheTool(t *testing.T) {
	t.Parallel()
	eachLanguage(t, func(t *testing.T, command []string) {
		t.Helper()
		for _, mode := range []string{"LOOP=1", "OWN=1"} {
			b := startBench(t, command, `[["slow"],["pay"]]`, mode)
			require.Eventually(t, func() bool { return b.effects()["slow"] == 1 }, time.Minute, 5*time.Millisecond)
			require.NoError(t, b.w.Fleet("ann", nil).Cancel(t.Context(), "r1", "ann", ""))
			require.Equal(t, schema.StatusCancelled, b.w.Ended("r1").Status)
			require.Equal(t, map[string]int{"slow": 1}, b.effects())
		}
	})
}

func TestServe_Stopped_GivesTheRunsBack(t *testing.T) {
	t.Parallel()
	eachLanguage(t, func(t *testing.T, command []string) {
		t.Helper()
		b := newBench(t)
		stop := b.work("one", command)
		b.submit("r1", `[["slow"],["pay"]]`)
		require.Eventually(t, func() bool { return b.effects()["slow"] == 1 }, time.Minute, 5*time.Millisecond)
		stop()
		b.work("two", command)
		require.Equal(t, schema.StatusCompleted, b.w.Ended("r1").Status)
		require.Equal(t, map[string]int{"slow": 1, "pay": 1}, b.effects(), "the result that came with the stop was recorded")
	})
}

// One program dies at each model request: it stops no other run than those that it had, and a run that kills each is set aside.
func TestServe_ProgramsDie_OnlyTheirRunsStop(t *testing.T) {
	if testing.Short() {
		t.Skip("short: many programs")
	}
	t.Parallel()
	eachLanguage(t, func(t *testing.T, command []string) {
		t.Helper()
		b := newBench(t, "AT=before:mail")
		b.work("one", command, func(c *worker.Config) { c.Programs = 3 })
		for i := range 12 {
			b.submit(fmt.Sprintf("r%d", i), `[["look"],["pay"],["look","pay"]]`)
		}
		b.submit("deadly", `[["mail"]]`)
		b.settle("deadly")
		require.Equal(t, schema.StatusCompleted, b.w.Ended("deadly").Status)
		for i := range 12 {
			require.Equal(t, schema.StatusCompleted, b.w.Ended(fmt.Sprintf("r%d", i)).Status)
		}
		require.Equal(t, 24, b.effects()["pay"])
	})
}

// A program that stood still after it asked asks again, and begins nothing that it may not.
func TestClient_GoTooLate_AsksAgain(t *testing.T) {
	t.Parallel()
	eachLanguage(t, func(t *testing.T, command []string) {
		t.Helper()
		ledger := filepath.Join(t.TempDir(), "ledger")
		say, next, end := client(t, command, ledger)
		require.Contains(t, next(), `"hello"`)
		for id, last := range []string{`{"id":1,"stop":"run was taken over"}`, `{"id":2,"go":true,"within_ms":60000}`} {
			say(fmt.Sprintf(`{"id":%d,"do":"tool","run":"r1","name":"mail","arguments":{},"key":"k%d","begin":true}`, id+1, id+1))
			require.Equal(t, fmt.Sprintf(`{"id":%d,"begin":true}`, id+1), next())
			say(fmt.Sprintf(`{"id":%d,"go":true,"within_ms":0}`, id+1))
			require.Equal(t, fmt.Sprintf(`{"id":%d,"begin":true}`, id+1), next())
			require.Empty(t, effectsIn(t, ledger))
			say(last)
			require.Contains(t, next(), fmt.Sprintf(`"id":%d,`, id+1))
		}
		require.Equal(t, map[string]int{"mail k2": 1}, effectsIn(t, ledger))
		end()
	})
}

// client starts the test agent without a worker. next is its next line, without spaces; end waits for its end.
func client(t *testing.T, command []string, ledger string, env ...string) (say func(string), next func() string, end func()) {
	t.Helper()
	here, err := filepath.Abs(clients)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Env = append(append(os.Environ(), "CLIENTS="+here, "LEDGER="+ledger), env...)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	say = func(line string) {
		_, err := fmt.Fprintln(in, line)
		require.NoError(t, err)
	}
	next = func() string {
		require.True(t, lines.Scan())
		return strings.ReplaceAll(lines.Text(), " ", "")
	}
	return say, next, func() {
		require.NoError(t, in.Close())
		require.NoError(t, cmd.Wait(), "it ends with its standard input")
	}
}

// The same in a loop of its own, where each line names the run.
func TestClient_OwnLoop_GoTooLate_AsksAgain(t *testing.T) {
	t.Parallel()
	eachLanguage(t, func(t *testing.T, command []string) {
		t.Helper()
		ledger := filepath.Join(t.TempDir(), "ledger")
		say, next, end := client(t, command, ledger, "OWN=1")
		require.Contains(t, next(), `"own_loop":true`)
		say(`{"id":1,"do":"run","run":"r1","task":"[[\"mail\"]]"}`)
		require.Contains(t, next(), `"do":"call"`)
		say(`{"id":"c1","go":true,"within_ms":0,"key":"k1"}`)
		require.JSONEq(t, `{"id":"c1","begin":true,"run":"r1"}`, next())
		require.Empty(t, effectsIn(t, ledger))
		say(`{"id":"c1","go":true,"within_ms":60000}`)
		require.JSONEq(t, `{"id":"c1","run":"r1","result":"mailisdone"}`, next())
		require.Equal(t, map[string]int{"mail k1": 1}, effectsIn(t, ledger))
		end()
	})
}

// A worker and its program stand still in a tool for longer than the silence: the next executor holds the call, and the
// result that comes in the end is adopted.
func TestServe_StandsStillInATool_LateResultIsAdopted(t *testing.T) {
	t.Parallel()
	eachLanguage(t, func(t *testing.T, command []string) {
		t.Helper()
		b := newBench(t, "AT=before:mail", "FREEZE=1")
		stop := b.work("one", command)
		b.submit("r1", `[["mail"]]`)
		require.Eventually(t, func() bool { _, err := os.Stat(b.ledger + ".was-there"); return err == nil }, time.Minute, 5*time.Millisecond)
		next := b.w.Fleet("two", nil)
		run, err := next.Resume(t.Context(), "r1", publisher.ResumeSpec{})
		require.NoError(t, err)
		require.Len(t, run.Head().OpenCalls, 1)
		require.Equal(t, schema.CallHeld, run.Head().OpenCalls[0].State)
		require.Empty(t, b.effects())
		// The program goes on, and says what it has done.
		text, err := os.ReadFile(b.ledger + ".was-there")
		require.NoError(t, err)
		pid, err := strconv.Atoi(string(text))
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
		require.Eventually(t, func() bool {
			return run.Sync(t.Context()) == nil && run.Head().OpenCalls[0].State == schema.CallLate
		}, time.Minute, 5*time.Millisecond)
		require.NoError(t, run.Interrupt(t.Context(), schema.InterruptedShutdown))
		stop()
		b.work("three", command)
		require.Equal(t, schema.StatusCompleted, b.w.Ended("r1").Status)
		require.Equal(t, map[string]int{"mail": 1}, b.effects())
	})
}
