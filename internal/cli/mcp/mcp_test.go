package mcp_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gofrs/flock"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/cli"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// The test binary is the command waymark, and the MCP server, too.
func TestMain(m *testing.M) {
	switch os.Getenv("PLAY") {
	case "waymark":
		signal.Ignore(syscall.SIGPIPE)
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		os.Exit(cli.Run(ctx, os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr)) //nolint:forbidigo // this process is the command
	case "server", "lines":
		os.Exit(serve()) //nolint:forbidigo // this process is the server
	}
	natstest.Main(m)
}

type order struct {
	To string `json:"to"`
}

// serve is the server over standard input and output.
func serve() int {
	dir := os.Getenv("DIR")
	alive := flock.New(filepath.Join(dir, "alive"))
	if alive.RLock() != nil || os.WriteFile(filepath.Join(dir, "pid"), []byte(strconv.Itoa(os.Getpid())), 0o600) != nil {
		return 1
	}
	if os.Getenv("PLAY") == "lines" {
		return serveLines(dir)
	}
	if server(dir).Run(context.Background(), &mcp.StdioTransport{}) != nil {
		return 1
	}
	return 0
}

// server is an MCP server. A tool writes a line into the ledger, some moments after it begins and before it ends. While
// there is the file before, or after, it waits there.
func server(dir string) *mcp.Server {
	moment := func(ctx context.Context, file string) {
		_ = os.WriteFile(filepath.Join(dir, "at-"+file), nil, 0o600)
		<-time.After(time.Duration(rand.IntN(15)) * time.Millisecond) //nolint:gosec // a test
		for _, err := os.Stat(filepath.Join(dir, file)); err == nil && ctx.Err() == nil; _, err = os.Stat(filepath.Join(dir, file)) {
			<-time.After(time.Millisecond)
		}
	}
	effect := func(name string) mcp.ToolHandlerFor[order, any] {
		return func(ctx context.Context, r *mcp.CallToolRequest, in order) (*mcp.CallToolResult, any, error) {
			moment(ctx, "before")
			if ctx.Err() != nil {
				return nil, nil, ctx.Err()
			}
			file, err := os.OpenFile(filepath.Join(dir, "ledger"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err == nil {
				_, err = fmt.Fprintf(file, "%s %s %v\n", name, in.To, r.Params.Meta["io.waymark/idempotencyKey"])
			}
			_ = file.Close()
			moment(ctx, "after")
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: name + " " + in.To}}}, nil, err
		}
	}
	s := mcp.NewServer(&mcp.Implementation{Name: "bank", Version: "1"}, &mcp.ServerOptions{PageSize: 2})
	mcp.AddTool(s, &mcp.Tool{Name: "charge"}, effect("charge"))
	mcp.AddTool(s, &mcp.Tool{Name: "pay", Annotations: &mcp.ToolAnnotations{IdempotentHint: true}}, effect("pay"))
	mcp.AddTool(s, &mcp.Tool{Name: "look", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}}, effect("look"))
	mcp.AddTool(s, &mcp.Tool{Name: "find"}, func(_ context.Context, _ *mcp.CallToolRequest, in order) (*mcp.CallToolResult, schema.VerifyReply, error) {
		ledger, _ := os.ReadFile(filepath.Join(dir, "ledger")) // there may be none yet
		reply := schema.VerifyReply{Outcome: schema.VerifyNotDone}
		if strings.Contains(string(ledger), "charge "+in.To) {
			reply.Outcome = schema.VerifyDone
		}
		return nil, reply, nil
	})
	s.AddPrompt(&mcp.Prompt{Name: "hello"}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		s.AddPrompt(&mcp.Prompt{Name: "again"}, nil) // all clients are told
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: "Hello."}}}}, nil
	})
	s.AddResource(&mcp.Resource{Name: "book", URI: "file:///book"}, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: "file:///book", Text: "Once."}}}, nil
	})
	return s
}

// bank is a directory of the server, in a world.
type bank struct {
	t   *testing.T
	w   *waymarktest.World
	dir string
}

func newBank(t *testing.T) *bank {
	t.Helper()
	return &bank{t, waymarktest.Start(t), t.TempDir()}
}

// command is the command waymark mcp for the server, with flags.
func (b *bank) command(flags ...string) *exec.Cmd {
	b.t.Helper()
	self, err := os.Executable()
	require.NoError(b.t, err)
	args := append([]string{"mcp", "--state-dir", b.w.StateDir()}, flags...)
	cmd := exec.CommandContext(context.WithoutCancel(b.t.Context()), self, append(args, "--", "/usr/bin/env", "PLAY=server", self)...)
	cmd.Env = append(os.Environ(), "PLAY=waymark", "DIR="+b.dir, "CLAUDE_CODE_SESSION_ID=", "WAYMARK_AGENT=")
	cmd.Stderr = b.t.Output()
	return cmd
}

// connect connects a client to a command.
func (b *bank) connect(cmd *exec.Cmd) *mcp.ClientSession {
	b.t.Helper()
	s, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(b.t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = s.Close() })
	return s
}

// call calls a tool, with an id if it is not empty.
func call(ctx context.Context, s *mcp.ClientSession, id, name, to string) (*mcp.CallToolResult, error) {
	p := &mcp.CallToolParams{Name: name, Arguments: order{to}, Meta: mcp.Meta{}}
	if id != "" {
		p.Meta["claudecode/toolUseId"] = id
	}
	return s.CallTool(ctx, p)
}

// text is a result's text, with the members that the proxy added.
func text(t *testing.T, r *mcp.CallToolResult, err error) string {
	t.Helper()
	require.NoError(t, err)
	require.NotEmpty(t, r.Content)
	out := r.Content[0].(*mcp.TextContent).Text //nolint:errcheck // all are texts
	for _, name := range []string{"io.waymark/recorded", "io.waymark/call"} {
		if value, ok := r.Meta[name]; ok {
			out += fmt.Sprintf(" [%s %v]", strings.TrimPrefix(name, "io.waymark/"), value)
		}
	}
	return out
}

// effects are the lines of the ledger that begin with a text, once the server has ended.
func (b *bank) effects(of string) (lines []string) {
	b.t.Helper()
	ledger, err := os.ReadFile(filepath.Join(b.dir, "ledger"))
	if !os.IsNotExist(err) {
		require.NoError(b.t, err)
	}
	for line := range strings.Lines(string(ledger)) {
		if strings.HasPrefix(line, of) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// serverEnds waits until no server runs.
func (b *bank) serverEnds() {
	b.t.Helper()
	alive := flock.New(filepath.Join(b.dir, "alive"))
	require.NoError(b.t, alive.Lock())
	require.NoError(b.t, alive.Close())
}

// decide settles a held call as a person does: the call had its effect, or without it runs again.
func (b *bank) decide(run, id string) {
	b.t.Helper()
	for _, c := range b.w.State(run).Head.OpenCalls {
		if c.ToolCallID == id {
			request := schema.SettleRequest{CallKey: c.CallKey, CallEpoch: c.Epoch, How: schema.SettledRerun, By: "ann"}
			if len(b.effects("charge")) > 0 {
				request.How, request.Result = schema.SettledDecided, []byte(`{"content":[{"type":"text","text":"a person found it"}]}`)
			}
			_, err := b.w.Fleet("ann", nil).Settle(b.t.Context(), run, request)
			require.NoError(b.t, err)
			return
		}
	}
	b.t.Fatalf("call %s of run %s is not open", id, run)
}

func TestCall_SameID_IsAnsweredFromTheRecord(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	for _, want := range []string{"charge Ann", "charge Ann [recorded true]"} {
		s := b.connect(b.command("--run", "r1"))
		r, err := call(t.Context(), s, "c1", "charge", "Ann")
		require.Equal(t, want, text(t, r, err))
		r, err = call(t.Context(), s, "c1", "charge", "Ann")
		require.Equal(t, "charge Ann [recorded true]", text(t, r, err))
		_, err = call(t.Context(), s, "c2", "none", "Ann")
		require.ErrorContains(t, err, "none")
		require.NoError(t, s.Close())
		require.Equal(t, schema.StatusCompleted, b.w.State("r1").Head.Status)
	}
	require.Len(t, b.effects("charge"), 1)
	require.Regexp(t, `^charge Ann r1\.\d+\.c1\.1$`, b.effects("charge")[0])
}

func TestCall_ResultNotRecorded_IsNotAnswered(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	arrived, goOn := b.waits("after")
	s := b.connect(b.command("--run", "r1"))
	said := make(chan string, 1)
	go func() {
		r, err := call(context.WithoutCancel(t.Context()), s, "c1", "charge", "Ann")
		said <- fmt.Sprint(r.IsError, err)
	}()
	arrived()
	b.w.Server.Stop()
	goOn()
	for range 200 { // the server has long answered
		_, err := s.ListPrompts(t.Context(), nil)
		require.NoError(t, err)
	}
	require.Empty(t, said)
	b.w.Server.Start()
	require.Equal(t, "false <nil>", <-said)
	require.Equal(t, schema.OutcomeReturned, b.w.State("r1").Calls[0].Outcome)
}

func TestCall_WithoutID_IsNamedByToolArgumentsAndOccurrence(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	for _, recorded := range []string{"", " [recorded true]"} {
		s := b.connect(b.command("--run", "r1"))
		for n := range 2 {
			r, err := call(t.Context(), s, "", "charge", "Ann")
			require.Regexp(t, `^charge Ann`+strings.NewReplacer("[", `\[`, "]", `\]`).Replace(recorded)+fmt.Sprintf(` \[call charge-[0-9a-f]{12}\.%d\]$`, n+1), text(t, r, err))
			if n == 0 {
				_, err = call(t.Context(), s, "", "find", "Ann") // in between
				require.NoError(t, err)
			}
		}
		require.NoError(t, s.Close())
	}
	require.Len(t, b.effects("charge"), 2)
}

// waits has the server wait at a place, and returns what ends that. arrived waits until a call is there.
func (b *bank) waits(place string) (arrived, goOn func()) {
	b.t.Helper()
	file := filepath.Join(b.dir, place)
	require.NoError(b.t, os.WriteFile(file, nil, 0o600))
	return func() {
		require.Eventually(b.t, func() bool { _, err := os.Stat(filepath.Join(b.dir, "at-"+place)); return err == nil }, time.Minute, time.Millisecond)
	}, func() { require.NoError(b.t, os.Remove(file)) }
}

// doubt leaves the call c1 of charge in doubt: the proxy is killed while it is at a place.
func (b *bank) doubt(place string, flags ...string) {
	b.t.Helper()
	b.doubtTo("Ann", place, flags...)
}

func (b *bank) doubtTo(to, place string, flags ...string) {
	b.t.Helper()
	arrived, goOn := b.waits(place)
	cmd := b.command(flags...)
	s := b.connect(cmd)
	go func() { _, _ = call(context.WithoutCancel(b.t.Context()), s, "c1", "charge", to) }() // its proxy is killed
	arrived()
	require.NoError(b.t, cmd.Process.Kill())
	_ = s.Close()
	b.serverEnds()
	goOn()
}

// Two servers with the same command in one session of a client.
func TestServe_SameCommand_NamesTellTheRunsApart(t *testing.T) {
	t.Parallel()
	for _, names := range [][]string{{"one", "two"}, {"one", "one"}} {
		b := newBank(t)
		var servers []*mcp.ClientSession
		for _, name := range names {
			cmd := b.command()
			cmd.Env = append(cmd.Env, "CLAUDE_CODE_SESSION_ID=0195c1f0-1111-4111-8111-111111111111", "WAYMARK_MCP_SERVER="+name)
			servers = append(servers, b.connect(cmd))
		}
		for n := range 3 {
			r, err := call(t.Context(), servers[n%2], fmt.Sprint("c", n), "charge", fmt.Sprint(n))
			if n == 2 && names[0] == names[1] { // the second one has the run
				require.Contains(t, text(t, r, err), "waymark mcp --server NAME")
				continue
			}
			require.Equal(t, fmt.Sprint("charge ", n), text(t, r, err))
		}
		for _, s := range servers {
			_ = s.Close() // one may have ended
		}
	}
}

func TestCall_VerifyTool_IsAskedAboutADoubt(t *testing.T) {
	t.Parallel()
	for place, want := range map[string]string{"before": "charge Ann", "after": `{"Extra":null,"outcome":"done"} [recorded true]`} {
		b := newBank(t)
		file := filepath.Join(b.dir, "policies")
		require.NoError(t, os.WriteFile(file, []byte("charge = verify find # the ledger\n"), 0o600))
		flags := []string{"--run", "r1", "--policies", file}
		b.doubt(place, flags...)
		s := b.connect(b.command(flags...))
		r, err := call(t.Context(), s, "c1", "charge", "Ann")
		require.Equal(t, want, text(t, r, err))
		require.NoError(t, s.Close())
		require.Len(t, b.effects("charge"), 1)
	}
}

func TestPolicies_File_IsNeverLooserUnlessTrusted(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	file := filepath.Join(b.dir, "policies")
	require.NoError(t, os.WriteFile(file, []byte("charge = pure\nlook = hold\n"), 0o600))
	for run, want := range map[string]map[string]schema.Replay{
		"none":    {"charge": schema.ReplayHold, "pay": schema.ReplayIdempotent, "look": schema.ReplayPure},
		"file":    {"charge": schema.ReplayHold, "pay": schema.ReplayIdempotent, "look": schema.ReplayHold},
		"trusted": {"charge": schema.ReplayPure, "pay": schema.ReplayIdempotent, "look": schema.ReplayHold},
	} {
		flags := map[string][]string{"none": nil, "file": {"--policies", file}, "trusted": {"--trust", "--policies", file}}[run]
		s := b.connect(b.command(append(flags, "--run", run)...))
		got := make(map[string]schema.Replay)
		for name := range want {
			r, err := call(t.Context(), s, name, name, "Ann")
			require.Equal(t, name+" Ann", text(t, r, err))
		}
		require.NoError(t, s.Close())
		for _, c := range b.w.State(run).Calls {
			got[c.Name] = c.Replay
		}
		require.Equal(t, want, got, run)
	}
}

func TestServe_ClientGoneOrCancelled_CallIsRecorded(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	arrived, goOn := b.waits("after")
	cmd := b.command()
	cmd.Env = append(cmd.Env, "CLAUDE_CODE_SESSION_ID=0195c1f0-1111-4111-8111-111111111111")
	s := b.connect(cmd)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := call(ctx, s, "c1", "charge", "Ann"); done <- err }()
	arrived()
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	go func() { _, _ = call(context.WithoutCancel(t.Context()), s, "c2", "charge", "Bob") }() // the client goes
	require.Eventually(t, func() bool { return len(b.effects("charge")) == 2 }, time.Minute, time.Millisecond)
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	if testing.Short() {
		t.Log("short: the wait for longer than other calls that were cancelled are awaited")
	} else {
		require.NoError(t, pause.For(t.Context(), 6*time.Second))
	}
	goOn()
	require.NoError(t, <-closed)
	runs, err := b.w.Reader().List(t.Context(), schema.ListRequest{})
	require.NoError(t, err)
	require.Len(t, runs.Runs, 1)
	state := b.w.State(runs.Runs[0].Run)
	require.Equal(t, schema.StatusCompleted, state.Head.Status)
	require.Len(t, state.Calls, 2)
	require.Equal(t, schema.OutcomeReturned, state.Calls[0].Outcome, "it has had its effect")
	require.Equal(t, schema.OutcomeReturned, state.Calls[1].Outcome)
}

// A client sees the same through the proxy as without it.
func TestServe_AllButCalls_IsTransparent(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	for _, version := range []string{"2025-06-18", "2026-07-28"} {
		stateless := &mcp.StreamableHTTPOptions{Stateless: version > "2026"}
		web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server(b.dir) }, stateless))
		defer web.Close()
		direct := b.command()
		direct.Args, direct.Env = direct.Args[:1], append(direct.Env, "PLAY=server")
		byWeb := b.command("--url", web.URL)
		byWeb.Args = byWeb.Args[:len(byWeb.Args)-4]
		hooked := b.command()
		hooked.Env = append(hooked.Env, "WAYMARK_AGENT=1")
		var want string
		for _, cmd := range []*exec.Cmd{direct, b.command(), byWeb, hooked} {
			told := make(chan struct{}, 10)
			client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
				PromptListChangedHandler: func(context.Context, *mcp.PromptListChangedRequest) { told <- struct{}{} },
			})
			s, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, &mcp.ClientSessionOptions{ProtocolVersion: version})
			require.NoError(t, err)
			all := seen(t, s, map[string]any{"look": order{"Ann"}})
			if version < "2026" {
				<-told
			}
			require.NoError(t, s.Close())
			want = cmp.Or(want, all)
			require.Equal(t, want, all, "%s", cmd)
		}
	}
}

// seen is all that a server offers, and the answers of some tools.
func seen(t *testing.T, s *mcp.ClientSession, calls map[string]any) string {
	t.Helper()
	got := []any{s.InitializeResult()}
	see := func(v any, err error) {
		if err != nil {
			v = err.Error()
		}
		got = append(got, v)
	}
	for tool, err := range s.Tools(t.Context(), nil) {
		see(tool, err)
	}
	for prompt, err := range s.Prompts(t.Context(), nil) {
		require.NoError(t, err)
		see(s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: prompt.Name}))
	}
	see(s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "none"}))
	for resource, err := range s.Resources(t.Context(), nil) {
		require.NoError(t, err)
		see(s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: resource.URI}))
	}
	see(s.ListResourceTemplates(t.Context(), nil))
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: calls[name]})
		if r != nil {
			delete(r.Meta, "io.waymark/call")
		}
		see(r, err)
	}
	all, err := json.MarshalIndent(got, "", " ")
	require.NoError(t, err)
	return strings.ReplaceAll(string(all), `"_meta": {},`, "")
}

// Client, proxy and server are killed at any moment of a call. What the ledger has is what the record has.
func TestCall_KilledAtAnyMoment_LedgerIsTheRecord(t *testing.T) {
	t.Parallel()
	rounds := 2
	if testbin.Full(t) {
		rounds = 50
	}
	b := newBank(t)
	var seed atomic.Uint64
	for _, victim := range []string{"client", "proxy", "server"} {
		for n := range rounds {
			for _, tool := range []string{"charge", "pay"} {
				t.Run(fmt.Sprintf("%s/%s/%d", victim, tool, n), func(t *testing.T) {
					t.Parallel()
					b := &bank{t, b.w, t.TempDir()}
					luck := rand.New(rand.NewPCG(seed.Add(1), uint64(n))) //nolint:gosec // a test
					b.kill(victim, tool, fmt.Sprintf("%s-%s-%d", victim, tool, n), time.Duration(luck.IntN(40))*time.Millisecond+time.Duration(n%2))
				})
			}
		}
	}
}

// kill kills a victim some time after a call began, and makes the call again until it has its result.
func (b *bank) kill(victim, tool, run string, after time.Duration) {
	t := b.t
	cmd := b.command("--run", run)
	s := b.connect(cmd)
	r, err := call(t.Context(), s, "c0", "look", "Ann")
	require.Equal(t, "look Ann", text(t, r, err))
	said := make(chan string, 1)
	go func() {
		r, err := call(context.WithoutCancel(t.Context()), s, "c1", tool, "Ann")
		if err != nil || r.IsError {
			said <- "unknown"
			return
		}
		said <- "done"
	}()
	<-time.After(after)
	switch victim {
	case "client":
		require.NoError(t, s.Close()) // its end of both pipes
	case "proxy":
		require.NoError(t, cmd.Process.Kill())
	case "server":
		text, err := os.ReadFile(filepath.Join(b.dir, "pid"))
		require.NoError(t, err)
		pid, err := strconv.Atoi(string(text))
		require.NoError(t, err)
		server, err := os.FindProcess(pid)
		require.NoError(t, err)
		require.NoError(t, server.Kill())
	}
	was := <-said
	if was == "done" {
		require.Len(t, b.effects(tool), 1)
	}
	_ = s.Close()
	s = b.connect(b.command("--run", run))
	again := "c1"
	if after%2 == 1 {
		again = "c2" // a resumed client
	}
	r, err = call(t.Context(), s, again, tool, "Ann")
	require.NoError(t, err)
	if r.IsError {
		require.Equal(t, "charge", tool)
		require.Contains(t, text(t, r, err), "waymark settle")
		require.NotEqual(t, "done", was)
		require.NoError(t, s.Close())
		b.serverEnds()
		b.decide(run, "c1")
		s = b.connect(b.command("--run", run))
		r, err = call(t.Context(), s, again, tool, "Ann")
		require.False(t, r.IsError, text(t, r, err))
	}
	require.NoError(t, s.Close())
	keys := map[string]bool{}
	for _, line := range b.effects(tool) {
		keys[line] = true
	}
	require.Len(t, keys, 1) // an idempotent effect with the same key is one
	if tool == "charge" {
		require.Len(t, b.effects(tool), 1)
	}
	state := b.w.State(run)
	require.Equal(t, schema.StatusCompleted, state.Head.Status)
	for _, c := range state.Calls {
		require.Equal(t, schema.OutcomeReturned, c.Outcome, c.ToolCallID)
	}
}
