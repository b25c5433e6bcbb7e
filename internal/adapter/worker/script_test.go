//go:build unix

package worker_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// Programs that are no agents: each says what is wrong, and ends the worker at once.
func TestServe_WrongProgram_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{
		`exit 3`:          "no hello: the program ended: exit status 3",
		`echo starting`:   "line 1 of the program's standard output is not JSON",
		`echo '{"id":1}'`: "the first line of the program is not a hello",
		`echo '{"hello":{"protocol":2,"agent":"a"}}'`:                      "the program speaks protocol 2, this worker speaks 1",
		`echo '{"hello":{"protocol":1,"agent":""}}'`:                       "the hello names no agent",
		`echo '{"hello":{"protocol":1,"agent":"a","tolls":[]}}'`:           `/hello/tolls is no known member: `,
		`echo '{"hello":{"protocol":1,"agent":"a","tools":[{"name":7}]}}'`: "/hello/tools/0/name is a JSON number where a string is wanted: ",
		`echo '[]'`: "it is a JSON array where an object is wanted: ",
		`echo '{"hello":{"protocol":1,"agent":"a","tools":{}}}'`:                                  "/hello/tools is a JSON object where an array is wanted: ",
		`echo '{"hello":{"protocol":1,"agent":"a"},"retry_at":"soon"}'`:                           "/retry_at is a JSON string where ",
		`echo '{"hello":{"protocol":1,"agent":"a","tools":[{"name":"x","replay":"hodl"}]}}'; cat`: "hodl",
	} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			w := waymarktest.Start(t)
			err := worker.Serve(t.Context(), worker.Config{
				Command: []string{"sh", "-c", script}, Stderr: io.Discard, Log: zerolog.Nop(), Ready: func(*worker.Hello, string) {},
				Connect: func(_ context.Context, _ string, change func(*publisher.Config)) (*publisher.Fleet, error) {
					return w.Fleet("one", change), nil
				},
			})
			require.ErrorContains(t, err, want)
		})
	}
}

// A program that writes no hello is waited for, and the log says so.
func TestServe_NoHello_IsSaid(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a pause")
	}
	t.Parallel()
	out, logs := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- worker.Serve(ctx, worker.Config{Command: []string{"cat"}, Stderr: io.Discard, Log: zerolog.New(logs)})
	}()
	text := make([]byte, 1<<10)
	n, err := out.Read(text)
	require.NoError(t, err)
	require.Contains(t, string(text[:n]), "the program has not written its hello yet")
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}

// What may run again is for the program's own loop to decide: the worker records it.
func TestServe_OwnLoop_RetryableFailure_RunsOnce(t *testing.T) {
	t.Parallel()
	b, _, program := scripted(t, `< {"hello":{"protocol":1,"agent":"clerk","own_loop":true}}
> {"id":1,"do":"run","run":"r1","epoch":2,"task":"Go."}
< {"id":"c1","run":"r1","do":"call","call":"look-1","name":"look","arguments":{},"replay":"pure"}
> {"id":"c1","go":true,"within_ms":1,"key":"r1.1.look-1.1","epoch":2,"attempt":1}
< {"id":"c1","run":"r1","error":"busy","retryable":true,"retry_at":"2026-01-02T03:04:05Z"}
> {"id":"c1","recorded":true}
< {"id":1,"output":"I am done."}
`)
	b.work("one", program)
	b.submit("r1", "Go.")
	require.Equal(t, schema.StatusCompleted, b.w.Ended("r1").Status)
	require.True(t, b.w.State("r1").Calls[0].Error.Retryable)
}

// A result that no event can have is kept as text: the effect was made.
func TestServe_DeepResult_IsKeptAsText(t *testing.T) {
	t.Parallel()
	b, _, program := scripted(t, `< {"hello":{"protocol":1,"agent":"clerk","tools":[{"name":"look","replay":"hold"}]}}
> {"id":1,"do":"model","run":"r1","turn":1,"messages":[{"role":"user","parts":[{"type":"text","content":"Go."}]}]}
< {"id":1,"calls":[{"id":"c1","name":"look","arguments":{}}]}
> {"id":2,"do":"tool","run":"r1","turn":1,"epoch":2,"name":"look","arguments":{},"key":"r1.1.c1.1","attempt":1,"begin":true}
< {"id":2,"begin":true}
> {"id":2,"go":true,"within_ms":1}
< {"id":2,"result":`+strings.Repeat("[", 900)+strings.Repeat("]", 900)+`}
`)
	b.work("one", program)
	b.submit("r1", "Go.")
	require.Equal(t, schema.StatusCompleted, b.w.Ended("r1").Status)
	require.Contains(t, string(b.w.State("r1").Calls[0].Result), "keeps this result as text")
}

// A line that is wrong ends the program, with its number, and the program is started again.
func TestServe_WrongLineLater_IsLoggedAndRestarted(t *testing.T) {
	t.Parallel()
	hello := `echo '{"hello":{"protocol":1,"agent":"clerk"}}'; `
	for line, want := range map[string]string{
		`{"id":7,"text":"x"}`:     "line 2 of the program: it answers a request with the id 7, and there was none",
		`{"id":"c1","do":"call"}`: "only a program that says",
		`hello`:                   "line 2 of the program's standard output is not JSON",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			out, logs := io.Pipe()
			t.Cleanup(func() { require.NoError(t, logs.Close()) }) // behind the worker
			b.work("one", []string{"sh", "-c", hello + "echo '" + line + "'; cat >/dev/null"}, func(c *worker.Config) { c.Log = zerolog.New(logs) })
			text := make([]byte, 1<<10)
			n, err := out.Read(text)
			require.NoError(t, err)
			require.Contains(t, string(text[:n]), want)
			go func() { _, _ = io.Copy(io.Discard, out) }()
		})
	}
}

// A worker, or its program, is killed while the program has a call that it has not begun: the call is not in doubt, and
// the next one runs it. After go it is.
func TestServe_KilledAroundBegin_InDoubtFromGoOn(t *testing.T) {
	if testing.Short() {
		t.Skip("short: processes, and a silence")
	}
	t.Parallel()
	tool := `> {"id":%d,"do":"tool","run":"r1","turn":1,"epoch":%d,"name":"mail","arguments":{},"key":"r1.1.c1.1","attempt":1,"begin":true}` + "\n"
	begin := `< {"id":%d,"begin":true}` + "\n" + `> {"id":%[1]d,"go":true,"within_ms":1}` + "\n"
	hello := `< {"hello":{"protocol":1,"agent":"clerk","tools":[{"name":"mail","replay":"hold"}]}}` + "\n"
	asked := hello + `> {"id":1,"do":"model","run":"r1","turn":1,"messages":[{"role":"user","parts":[{"type":"text","content":"Go."}]}]}` + "\n" +
		`< {"id":1,"calls":[{"id":"c1","name":"mail","arguments":{}}]}` + "\n" + fmt.Sprintf(tool, 2, 2)
	for _, killed := range []string{"worker", "program"} {
		for _, begun := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", killed, begun), func(t *testing.T) {
				t.Parallel()
				script := filepath.Join(t.TempDir(), "script")
				first, second := asked, hello+fmt.Sprintf(tool, 1, 3)+fmt.Sprintf(begin, 1)+`< {"id":1,"result":"sent"}`+"\n"
				if begun {
					first, second = first+fmt.Sprintf(begin, 2), hello
				}
				require.NoError(t, os.WriteFile(script+".1", []byte(first), 0o600))
				require.NoError(t, os.WriteFile(script+".2", []byte(second), 0o600))
				w := waymarktest.StartWith(t, waymarktest.Config{Silence: 2 * time.Second})
				m := &mixed{t: t, dir: w.StateDir(), roles: []string{"played"}, alive: make([]*exec.Cmd, 1)}
				m.ledger = script
				var err error
				m.log, err = os.Create(script + ".log")
				require.NoError(t, err)
				m.start(0)
				t.Cleanup(func() {
					_ = m.alive[0].Process.Kill()
					_ = m.alive[0].Wait()
					text, _ := os.ReadFile(script + ".log")
					for _, n := range []string{".1", ".2"} {
						failed, _ := os.ReadFile(script + n + ".failed")
						require.Empty(t, string(failed), string(text))
					}
				})
				_, err = w.Fleet("submitter", nil).Submit(t.Context(), publisher.RunSpec{ID: "r1", Agent: "clerk", Task: "Go."})
				require.NoError(t, err)
				require.Eventually(t, func() bool { _, err := os.Stat(script + ".1.played"); return err == nil }, time.Minute, 5*time.Millisecond)
				if killed == "worker" {
					require.NoError(t, m.alive[0].Process.Kill())
					_ = m.alive[0].Wait() // killed
					m.start(0)
				} else {
					for _, pid := range programs(m.alive[0].Process.Pid) {
						require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
					}
				}
				if !begun {
					require.Equal(t, schema.StatusCompleted, w.Ended("r1").Status)
					require.JSONEq(t, `"sent"`, string(w.State("r1").Calls[0].Result))
					return
				}
				require.Eventually(t, func() bool {
					head := w.State("r1").Head
					return head.Epoch == 3 && len(head.OpenCalls) == 1 && head.OpenCalls[0].State == schema.CallHeld
				}, time.Minute, 5*time.Millisecond)
			})
		}
	}
}

// A framework may take the error that says "leave the run" for a tool's, and go on: nothing more is recorded.
func TestServe_ProgramGoesOnAfterStop_IsStoppedAgain(t *testing.T) {
	t.Parallel()
	stop := `"stop":"the answer to q1: run waits and was released"}`
	b, script, program := scripted(t, `< {"hello":{"protocol":1,"agent":"clerk","own_loop":true}}
> {"id":1,"do":"run","run":"r1","epoch":2,"task":"Go."}
< {"id":"c1","run":"r1","do":"ask","name":"q1","question":"May it go on?"}
> {"id":"c1",`+stop+`
< {"id":"c2","run":"r1","do":"call","call":"look-1","name":"look","arguments":{},"replay":"pure"}
> {"id":"c2",`+stop+`
< {"id":1,"output":"I am done."}
`)
	var log bytes.Buffer
	end := b.work("one", program, func(c *worker.Config) { c.Log = zerolog.New(zerolog.SyncWriter(&log)) })
	b.submit("r1", "Go.")
	require.Eventually(t, func() bool {
		played, _ := filepath.Glob(script + ".*") // a pattern of our own
		return len(played) > 0 && b.w.State("r1").Head.Status == schema.StatusWaiting
	}, time.Minute, 5*time.Millisecond)
	failed, _ := os.ReadFile(script + ".failed")
	require.Empty(t, string(failed))
	require.Empty(t, b.w.State("r1").Calls)
	end()
	require.Contains(t, log.String(), `"outcome":"waiting","reason":`)
	require.NotContains(t, log.String(), `"error"`, "it waits, and has not failed")
}

// The loop fails, or leaves, while another call of it runs: the result of that call is recorded first.
func TestServe_OwnLoop_AnswersWhileACallRuns_ResultIsRecorded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lines   string
		outcome publisher.Outcome
	}{
		"a tool failed": {`< {"id":"c2","run":"r1","do":"call","call":"look-1","name":"look","arguments":{},"replay":"pure"}
> {"id":"c2","go":true,"within_ms":1,"key":"r1.1.look-1.1","epoch":2,"attempt":1}
< {"id":"c2","run":"r1","error":"not found"}
> {"id":"c2","recorded":true}
< {"id":1,"error":"not found"}
`, publisher.OutcomeFailed},
		"it waits": {`< {"id":"c2","run":"r1","do":"ask","name":"q1","question":"May it go on?"}
> {"id":"c2","stop":"the answer to q1: run waits and was released"}
< {"id":1,"error":"left","type":"stopped"}
`, publisher.OutcomeWaiting},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, script, program := scripted(t, `< {"hello":{"protocol":1,"agent":"clerk","own_loop":true}}
> {"id":1,"do":"run","run":"r1","epoch":2,"task":"Go."}
< {"id":"c1","run":"r1","do":"call","call":"mail-1","name":"mail","arguments":{},"replay":"hold"}
> {"id":"c1","go":true,"within_ms":1,"key":"r1.1.mail-1.1","epoch":2,"attempt":1}
`+c.lines+`=
< {"id":"c1","run":"r1","result":"sent"}
> {"id":"c1","recorded":true}
`)
			pipe := filepath.Join(filepath.Dir(script), "pipe")
			require.NoError(t, syscall.Mkfifo(pipe, 0o600))
			left := make(chan publisher.Outcome, 1)
			b.work("one", program, func(cfg *worker.Config) {
				cfg.Spec.OnOutcome = func(_ string, o publisher.Outcome, _ error) { left <- o }
			})
			b.submit("r1", "Go.")
			in, err := os.OpenFile(pipe, os.O_WRONLY, 0) // the program has answered the run's request
			require.NoError(t, err)
			require.Never(t, func() bool { return len(left) > 0 }, 300*time.Millisecond, 5*time.Millisecond)
			require.NoError(t, in.Close())
			require.Equal(t, c.outcome, <-left)
			failed, _ := os.ReadFile(script + ".failed")
			require.Empty(t, string(failed))
			require.JSONEq(t, `"sent"`, string(b.w.State("r1").Calls[0].Result))
		})
	}
}
