//go:build unix

package agents_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// build builds programs of the module and returns the folder that they are in.
func build(t *testing.T, packages ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	out, err := exec.Command("go", append([]string{"build", "-o", dir + string(filepath.Separator)}, packages...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return dir
}

// world is a fleet with its daemon, a fake of a model's API, and the folder that the agent works in.
type world struct {
	t      *testing.T
	server *natstest.Server
	fleet  *publisher.Fleet
	// programs and dir are the folders of the agents, and of the one that works.
	programs, dir string
	api           *api
	env           []string
}

func newWorld(t *testing.T, programs string, answer func(n int, body string) string) *world {
	t.Helper()
	w := &world{t: t, server: natstest.Start(t), programs: programs, dir: t.TempDir(), api: newAPI(t, answer)}
	nc := w.server.Conn(t, nats.ReconnectBufSize(-1))
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: "default", QuotaBytes: 64 << 20}))
	daemon, err := consumer.New(t.Context(), consumer.Config{Fleet: "default", Name: "daemon", Service: js, Fold: js, Alone: true}, time.Now, natstest.Logger(t))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- daemon.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	<-daemon.Ready()
	w.fleet, err = publisher.Connect(t.Context(), publisher.Config{Conn: w.server.Conn(t, nats.ReconnectBufSize(-1)), Executor: "tester"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.fleet.Close(context.Background())) })
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); !strings.HasPrefix(name, "OPENAI_") && !strings.HasPrefix(name, "ANTHROPIC_") && name != "WAYMARK_FLEET" && !slices.Contains(natsconn.Variables(), name) {
			w.env = append(w.env, v)
		}
	}
	w.env = append(w.env, "WAYMARK_STATE_DIR="+w.server.StateDir(), "OPENAI_API_KEY=none", "ANTHROPIC_API_KEY=none",
		"OPENAI_BASE_URL="+w.api.server.URL+"/v1/", "ANTHROPIC_BASE_URL="+w.api.server.URL)
	return w
}

// agent starts a program; the returned function kills it, as kill -9 does.
func (w *world) agent(program string, args ...string) (kill func()) {
	w.t.Helper()
	for i := range args {
		args[i] = filepath.Join(w.programs, args[i])
	}
	cmd := exec.CommandContext(context.Background(), filepath.Join(w.programs, program), args...)
	cmd.Dir, cmd.Env = w.dir, w.env
	log := new(strings.Builder)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(w.t, cmd.Start())
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		if err := cmd.Wait(); err != nil && !strings.Contains(err.Error(), "killed") {
			w.t.Errorf("%s: %v: %s", program, err, log)
		}
	})
	w.t.Cleanup(kill)
	return kill
}

func (w *world) submit(agent string) {
	w.t.Helper()
	_, err := w.fleet.Submit(w.t.Context(), publisher.RunSpec{ID: "r1", Agent: agent, Task: "Do it."})
	require.NoError(w.t, err)
}

// state awaits the end of the run and returns it.
func (w *world) state() *schema.State {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	result, err := w.fleet.Result(ctx, "r1")
	require.NoError(w.t, err)
	require.Equal(w.t, schema.StatusCompleted, result.Status, result.Summary)
	s, err := w.fleet.Get(w.t.Context(), "r1")
	require.NoError(w.t, err)
	return s
}

// api is a fake of a model's API.
type api struct {
	t      *testing.T
	server *httptest.Server
	answer func(n int, body string) string
	mu     sync.Mutex
	bodies []string
	// asked tells of each request; the one with the number stop is not answered.
	asked chan int
	stop  int
}

func newAPI(t *testing.T, answer func(n int, body string) string) *api {
	t.Helper()
	a := &api{t: t, answer: answer, asked: make(chan int, 100)}
	a.server = httptest.NewServer(a)
	t.Cleanup(a.server.Close)
	return a
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // its client was killed
	}
	a.mu.Lock()
	a.bodies = append(a.bodies, string(body))
	n := len(a.bodies)
	a.mu.Unlock()
	a.asked <- n
	if n == a.stop {
		<-r.Context().Done()
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, a.answer(n, string(body)))
}

func (a *api) await(n int) {
	a.t.Helper()
	for got := 0; got < n; {
		select {
		case got = <-a.asked:
		case <-time.After(time.Minute):
			require.Fail(a.t, "the model is not asked")
		}
	}
}

func (a *api) requests() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.bodies...)
}

const thinking = `{"signature":"EqQB+/==","thinking":"It needs a page.","type":"thinking"}`

// writes is what the model of the writer answers: it writes the page, and says so when it sees that it is written.
func writes(_ int, body string) string {
	content, reason := `[`+thinking+`,{"type":"tool_use","id":"toolu_1","name":"write","input":{"Text":"Hello."}}]`, "tool_use"
	if strings.Contains(body, "It is written.") {
		content, reason = `[{"type":"text","text":"Done."}]`, "end_turn"
	}
	return `{"id":"msg_1","type":"message","role":"assistant","model":"claude","content":` + content + `,"stop_reason":"` + reason + `","usage":{"input_tokens":1,"output_tokens":1}}`
}

// conversation is what the record has of a run, without what differs from run to run.
func conversation(t *testing.T, s *schema.State) string {
	t.Helper()
	text, err := json.Marshal(s.Conversation())
	require.NoError(t, err)
	return string(text)
}

func TestAnthropic_KilledAnywhere_ComesToTheSameConversation(t *testing.T) {
	t.Parallel()
	const undisturbed = "undisturbed"
	programs := build(t, "./anthropic")
	var mu sync.Mutex
	conversations := map[string]string{}
	t.Run("deaths", func(t *testing.T) {
		for name, stop := range map[string]int{undisturbed: 0, "while the model is asked": 1, "while the model is shown the result": 2} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, programs, writes)
				w.api.stop = stop
				kill := w.agent("anthropic")
				w.submit("writer")
				asked := 2
				if stop > 0 {
					w.api.await(stop)
					kill()
					w.agent("anthropic")
					asked++
				}
				s := w.state()
				requests := w.api.requests()
				require.Len(t, requests, asked)
				require.Contains(t, requests[asked-1], thinking, "what was signed comes back as it was")
				require.Contains(t, requests[0], `"input_schema":{`)
				page, err := os.ReadFile(filepath.Join(w.dir, "page.txt"))
				require.NoError(t, err)
				require.Equal(t, "Hello.", string(page))
				require.Len(t, s.Calls, 1)
				mu.Lock()
				defer mu.Unlock()
				conversations[name] = conversation(t, s)
			})
		}
		t.Run("in the tool", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, programs, writes)
			page := filepath.Join(w.dir, "page.txt")
			require.NoError(t, syscall.Mkfifo(page, 0o600)) // a write waits for a reader
			kill := w.agent("anthropic")
			w.submit("writer")
			require.Eventually(t, func() bool {
				head, err := w.fleet.Head(t.Context(), "r1")
				return err == nil && len(head.OpenCalls) == 1
			}, time.Minute, 10*time.Millisecond)
			kill()
			w.agent("anthropic")
			file, err := os.Open(page) // until the second process opens it, too
			require.NoError(t, err)
			text, err := io.ReadAll(file)
			require.NoError(t, err)
			require.NoError(t, file.Close())
			require.Equal(t, "Hello.", string(text), "it was written once")
			s := w.state()
			require.Len(t, w.api.requests(), 2)
			mu.Lock()
			defer mu.Unlock()
			conversations["in the tool"] = conversation(t, s)
		})
	})
	require.Len(t, conversations, 4)
	for name, got := range conversations {
		require.JSONEq(t, conversations[undisturbed], got, name)
	}
}

const encrypted = `"encrypted_content":"gAAA+/=="`

// TestOpenAI_KilledInTheTool_OrdersOnce kills the buyer while the shop has its order. Its effect is unknown, so a person decides.
func TestOpenAI_KilledInTheTool_OrdersOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, build(t, "./openai"), func(_ int, body string) string {
		output := `{"type":"reasoning","id":"rs_1","summary":[],` + encrypted + `},{"type":"function_call","id":"fc_1","call_id":"call_1","name":"order","arguments":"{\"name\": \"tea\"}","status":"completed"}`
		if strings.Contains(body, "function_call_output") {
			output = `{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Ordered.","annotations":[]}]}`
		}
		return `{"id":"resp_1","object":"response","status":"completed","model":"gpt","output":[` + output + `]}`
	})
	orders := make(chan string, 100)
	shop := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		orders <- string(body)
		<-r.Context().Done() // the buyer never hears of it
	}))
	t.Cleanup(shop.Close)
	w.env = append(w.env, "SHOP_URL="+shop.URL)
	kill := w.agent("openai")
	w.submit("buyer")
	require.Equal(t, "tea", <-orders)
	kill()
	w.agent("openai")
	require.Eventually(t, func() bool {
		head, err := w.fleet.Head(t.Context(), "r1")
		return err == nil && head.Status == schema.StatusWaiting
	}, time.Minute, 20*time.Millisecond)
	require.Empty(t, orders, "the order is held")
	head, err := w.fleet.Head(t.Context(), "r1")
	require.NoError(t, err)
	_, err = w.fleet.Settle(t.Context(), "r1", schema.SettleRequest{
		CallKey: head.OpenCalls[0].CallKey, CallEpoch: head.OpenCalls[0].Epoch, How: schema.SettledDecided, Result: []byte(`"200 OK"`), By: "ann",
	})
	require.NoError(t, err)
	s := w.state()
	require.Empty(t, orders)
	requests := w.api.requests()
	require.Len(t, requests, 2)
	require.Contains(t, requests[1], encrypted, "it comes back as it was")
	require.Len(t, s.Calls, 1)
}

// TestMCP_KilledBehindTheTool_NotesOnce kills the clerk, and with it its MCP server, when the note is in the file.
func TestMCP_KilledBehindTheTool_NotesOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, build(t, "./mcp", "./mcp/notes"), func(_ int, body string) string {
		call := func(id, name, arguments string) string {
			return `{"role":"assistant","content":null,"tool_calls":[{"id":"` + id + `","type":"function","function":{"name":"` + name + `","arguments":` + arguments + `}}]}`
		}
		message := call("call_1", "note", `"{\"text\": \"Buy tea.\"}"`)
		switch {
		case strings.Contains(body, "call_2"):
			message = `{"role":"assistant","content":"Noted."}`
		case strings.Contains(body, "call_1"):
			message = call("call_2", "read", `""`)
		}
		return `{"id":"chatcmpl-1","model":"gpt","choices":[{"index":0,"message":` + message + `,"finish_reason":"stop"}]}`
	})
	w.api.stop = 2
	kill := w.agent("mcp", "notes")
	w.submit("clerk")
	w.api.await(2)
	kill()
	w.agent("mcp", "notes")
	s := w.state()
	notes, err := os.ReadFile(filepath.Join(w.dir, "notes.txt"))
	require.NoError(t, err)
	require.Equal(t, "Buy tea.\n", string(notes))
	require.Len(t, s.Calls, 2)
	require.Equal(t, schema.ReplayHold, s.Calls[0].Replay)
	require.Equal(t, schema.ReplayPure, s.Calls[1].Replay)
	requests := w.api.requests()
	require.Len(t, requests, 4)
	require.Contains(t, requests[3], `"content":[{"text":"Buy tea.\n","type":"text"}],"role":"tool","tool_call_id":"call_2"`)
}
