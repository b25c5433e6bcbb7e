package mcp_test

import (
	"context"
	"crypto/rand"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
)

// packages is the directory of the packages that "make mcpcheck" fetches from npm.
func packages(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("WAYMARK_MCP_NPM")
	if dir == "" {
		t.Skip("make mcpcheck fetches the packages from npm: server-everything and the conformance suite are NOT TESTED")
	}
	return dir
}

// replaced is a command whose server is another one.
func replaced(cmd *exec.Cmd, server ...string) *exec.Cmd {
	at := 1
	for cmd.Args[at-1] != "--" {
		at++
	}
	cmd.Args = append(cmd.Args[:at:at], server...)
	return cmd
}

func TestServe_ServerEverything_IsTheSame(t *testing.T) {
	t.Parallel()
	server := []string{"node", filepath.Join(packages(t), "@modelcontextprotocol", "server-everything", "dist", "index.js"), "stdio"}
	b := newBank(t)
	calls := map[string]any{
		"echo": map[string]any{"message": "Hello."}, "get-sum": map[string]any{"a": 1, "b": 2}, "get-tiny-image": map[string]any{}, "none": map[string]any{},
		"get-structured-content": map[string]any{"location": "Chicago"}, "get-annotated-message": map[string]any{"messageType": "error"},
		"trigger-long-running-operation": map[string]any{"duration": 0.1, "steps": 2}, "get-resource-links": map[string]any{"count": 2},
	}
	want := seen(t, b.connect(exec.CommandContext(t.Context(), server[0], server[1:]...)), calls)
	require.Contains(t, want, "Echo: Hello.")
	require.Equal(t, want, seen(t, b.connect(replaced(b.command(), server...)), calls))
}

// The scenarios have the same results with a server, and with the proxy in front of it.
func TestServe_ConformanceSuite_IsTheSame(t *testing.T) {
	t.Parallel()
	dist := filepath.Join(packages(t), "@modelcontextprotocol", "conformance", "dist")
	text, err := os.ReadFile(filepath.Join(dist, "index.js"))
	require.NoError(t, err)
	suite := filepath.Join(dist, "suite.js") // Node 20 lacks an import of a command that is not used
	text = []byte(strings.Replace(strings.Replace(string(text), "globSync as o,", "", 1), "import{", "const o=()=>[];import{", 1))
	require.NoError(t, os.WriteFile(suite, text, 0o600))
	b := newBank(t)
	server := filepath.Join(b.dir, "server")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", server, "github.com/modelcontextprotocol/go-sdk/conformance/everything-server").CombinedOutput()
	require.NoError(t, err, "%s", out)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := free.Addr().String()
	require.NoError(t, free.Close())
	web := exec.CommandContext(context.WithoutCancel(t.Context()), server, "-http", address, "-stateless=false")
	require.NoError(t, web.Start())
	t.Cleanup(func() { _, _ = web.Process.Kill(), web.Wait() }) // it was started
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", address)
		return err == nil && c.Close() == nil
	}, time.Minute, 10*time.Millisecond)

	results := func(url string) string {
		t.Helper()
		out, _ := exec.CommandContext(t.Context(), "node", suite, "server", "--url", url).CombinedOutput() // it fails with a scenario
		_, summary, found := strings.Cut(string(out), "=== SUMMARY ===")
		require.True(t, found, "%s", out)
		t.Log(regexp.MustCompile(`Total: .*`).FindString(summary))
		return summary
	}
	direct := results(byHTTP(t, func() *exec.Cmd { return exec.CommandContext(context.Background(), server) }))
	require.Equal(t, direct, results(byHTTP(t, func() *exec.Cmd { return replaced(b.command(), server) })))
	proxied := results(byHTTP(t, func() *exec.Cmd {
		cmd := replaced(b.command("--url", "http://"+address))
		cmd.Args = cmd.Args[:len(cmd.Args)-1]
		return cmd
	}))
	require.Equal(t, direct, proxied)
}

// byHTTP serves by HTTP what a command serves by its standard input and output: a process for each session.
func byHTTP(t *testing.T, command func() *exec.Cmd) (url string) {
	t.Helper()
	var sessions sync.Map
	var processes sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("Mcp-Session-Id")
		if known, ok := sessions.Load(id); ok {
			known.(http.Handler).ServeHTTP(w, r) //nolint:errcheck // all are
			return
		}
		front := &mcp.StreamableServerTransport{SessionID: rand.Text()}
		one, err := front.Connect(ctx)
		if err != nil || id != "" || !mayServe(r) {
			http.Error(w, "no session", http.StatusForbidden)
			return
		}
		other, err := (&mcp.CommandTransport{Command: command()}).Connect(ctx)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		copyAll := func(from, to mcp.Connection) {
			for m, err := from.Read(ctx); err == nil; m, err = from.Read(ctx) {
				_ = to.Write(ctx, m) // a client that has gone needs no message
			}
			_ = to.Close()
		}
		processes.Go(func() { copyAll(one, other) })
		processes.Go(func() { copyAll(other, one) })
		sessions.Store(front.SessionID, front)
		front.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		cancel()
		web.CloseClientConnections()
		web.Close()
		processes.Wait()
	})
	return web.URL
}

// mayServe refuses what a local server must refuse, for the scenario of DNS rebinding.
func mayServe(r *http.Request) bool { return strings.HasPrefix(r.Host, "127.0.0.1:") }
