package mcp_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// serveLines is a server that greets on its output, and does one thing after another. While it charges it hears nothing, also not the end of its
// input.
func serveLines(dir string) int {
	_, _ = fmt.Fprint(os.Stdout, "Server 1.2 has started\n\n[info] {'debug': 1}\n"+`{"level":"info"}
{"jsonrpc":"2.0","id":9,"error":{"code":1.5}}
[{"jsonrpc":"2.0","method":"notifications/of-a-batch"},"not a message",[]]
`)
	for in := bufio.NewReader(os.Stdin); ; {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return 0
		}
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct {
				Name      string
				Arguments json.RawMessage
			}
		}
		_ = json.Unmarshal(line, &m) // the tests write it
		ledger, answer := filepath.Join(dir, "ledger"), fmt.Sprintf("%s %s", m.ID, m.Params.Arguments)
		switch m.Method + " " + m.Params.Name {
		case "tools/call charge":
			_ = os.WriteFile(filepath.Join(dir, "at-before"), nil, 0o600)
			for _, err := os.Stat(filepath.Join(dir, "before")); err == nil; _, err = os.Stat(filepath.Join(dir, "before")) {
				<-time.After(time.Millisecond)
			}
			file, _ := os.OpenFile(ledger, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			_, _ = fmt.Fprintln(file, "charge")
		case "tools/call find":
			answer = `{"outcome":"not_done"}`
			if text, _ := os.ReadFile(ledger); len(text) > 0 {
				answer = `{"outcome":"done"}`
			}
		case "tools/call large":
			answer = strings.Repeat("x", 20<<20)
		case "tools/call fail":
			_, _ = fmt.Fprintf(os.Stdout, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32042,"message":"no","data":{"why":[1]}}}`+"\n", m.ID)
			continue
		case "tools/list ":
			_, _ = fmt.Fprintf(os.Stdout, `{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"charge"},{"name":"find"}]}}`+"\n", m.ID)
			continue
		}
		_, _ = fmt.Fprintf(os.Stdout, `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%q}]}}`+"\n", m.ID, answer)
	}
}

// lines is the command whose server is behind a shell, as behind npx, and serves lines.
func (b *bank) lines(flags ...string) *exec.Cmd {
	cmd := b.command(flags...)
	self := cmd.Args[0]
	cmd.WaitDelay = time.Second // a server that lives on has its standard error
	return replaced(cmd, "/bin/sh", "-c", `PLAY=lines "$0"; exit`, self)
}

// A server that hears nothing while it charges does not outlive its proxy: "not done" stays true.
func TestCall_ProxyKilledInASlowEffect_VerifiedCallHasOneEffect(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	flags := []string{"--run", "r1", "--policies", filepath.Join(b.dir, "policies")}
	require.NoError(t, os.WriteFile(flags[3], []byte("charge = verify find\n"), 0o600))
	arrived, goOn := b.waits("before")
	cmd := b.lines(flags...)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	const charge = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"charge","_meta":{"callId":"c1"}}}` + "\n"
	_, err = io.WriteString(in, charge)
	require.NoError(t, err)
	arrived()
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // killed
	require.NoError(t, os.Remove(filepath.Join(b.dir, "at-before")))
	cmd = b.lines(flags...)
	cmd.Stdin = strings.NewReader(charge)
	require.NoError(t, cmd.Start())
	arrived()
	goOn()
	require.NoError(t, cmd.Wait())
	b.serverEnds()
	require.Len(t, b.effects("charge"), 1)
	require.Equal(t, schema.OutcomeReturned, b.w.State("r1").Calls[0].Outcome)
}

func TestServe_Lines_AreTheSame(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	policies := filepath.Join(b.dir, "policies")
	require.NoError(t, os.WriteFile(policies, []byte("charge = verify serach\nlook2 = hold\nfind = hold\n"), 0o600))
	cmd := b.lines("--policies", policies)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var log bytes.Buffer
	cmd.Stderr = &log
	require.NoError(t, cmd.Start())
	answers := bufio.NewReader(out)
	said := func(line string) string {
		_, err := io.WriteString(in, line+"\n")
		require.NoError(t, err)
		answer, err := answers.ReadString('\n')
		require.NoError(t, err, log.String())
		return answer
	}
	batched, err := answers.ReadString('\n')
	require.NoError(t, err, log.String())
	require.Contains(t, batched, "notifications/of-a-batch")
	// The numbers of arguments, which a float64 would make even, and an id such as the proxy's own ones.
	for _, call := range []string{
		`{"jsonrpc":"2.0","id":"waymark/1","method":"echo","params":{"arguments":{"id":9007199254740995}}}`,
		`{"jsonrpc":"2.0","id":"waymark/1","method":"tools/call","params":{"name":"echo","arguments":{"id":9007199254740995},"_meta":{"callId":"c1"}}}`,
	} {
		answer := said(call)
		require.Contains(t, answer, `"id":"waymark/1",`)
		require.Contains(t, answer, `"\"waymark/1\" {\"id\":9007199254740995}"`)
	}
	require.Greater(t, len(said(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"large"}}`)), 20<<20)
	for range 2 { // the second one from the record
		require.Contains(t, said(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"fail","_meta":{"callId":"c3"}}}`),
			`"error":{"code":-32042,"message":"no","data":{"why":[1]}}`)
	}
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait())
	for _, printed := range []string{"Server 1.2 has started", `{"level":"info"}`, `{"jsonrpc":"2.0","id":9,"error":{"code":1.5}}`, `"not a message"`} {
		require.Contains(t, log.String(), "the server printed what is not a message: "+printed+"\n")
	}
	require.Contains(t, log.String(), "policies names tools that the server does not list")
	require.Contains(t, log.String(), `look2`)
	require.Contains(t, log.String(), `serach`)
}

func TestServe_Ending_NewCallIsRefused(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	arrived, goOn := b.waits("before")
	cmd := b.command("--run", "r1")
	s := b.connect(cmd)
	done := make(chan string, 1)
	go func() {
		r, err := call(context.WithoutCancel(t.Context()), s, "c1", "charge", "Ann")
		done <- fmt.Sprint(r, err)
	}()
	arrived()
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	refused := 0
	require.Eventually(t, func() bool {
		r, err := call(t.Context(), s, fmt.Sprintf("f%d", refused), "find", "Ann")
		if refused++; err != nil {
			return false
		}
		return strings.Contains(r.Content[0].(*mcp.TextContent).Text, "not made: the proxy ends") //nolint:errcheck // it is a text
	}, time.Minute, time.Millisecond)
	goOn()
	require.NotContains(t, <-done, "unknown")
	_ = s.Close() // the proxy has ended
	state := b.w.State("r1")
	require.Equal(t, schema.StatusCompleted, state.Head.Status)
	require.Len(t, state.Calls, refused)
	require.Len(t, b.effects("charge"), 1)
}
