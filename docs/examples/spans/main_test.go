//go:build unix

package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

const patience = 30 * time.Second

// The program runs as this test's own binary.
func TestMain(m *testing.M) {
	if os.Getenv("SPANS_OF_A_TEST") != "" {
		main()
	}
	natstest.Main(m)
}

// collector keeps the spans that it accepted by their ids, in the form of each time.
type collector struct {
	*httptest.Server
	mu       sync.Mutex
	accepted map[string][]string
	requests chan int
	// answer gives the status of a request, from 1; 0 is no answer, after which the connection ends.
	answer func(n int) int
	n      int
}

func newCollector(t *testing.T, answer func(n int) int) *collector {
	t.Helper()
	c := &collector{accepted: map[string][]string{}, requests: make(chan int, 1000), answer: answer}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct {
		ResourceSpans []struct {
			ScopeSpans []struct{ Spans []json.RawMessage }
		}
	}
	err := json.NewDecoder(r.Body).Decode(&body)
	c.mu.Lock()
	c.n++
	n := c.n
	c.mu.Unlock()
	status := c.answer(n)
	if err != nil {
		status = http.StatusBadRequest
	}
	c.mu.Lock()
	for _, scope := range body.ResourceSpans[0].ScopeSpans {
		for _, text := range scope.Spans {
			var s struct{ Name, SpanID string }
			if json.Unmarshal(text, &s) == nil && status < http.StatusMultipleChoices {
				id := s.Name + " " + s.SpanID
				c.accepted[id] = append(c.accepted[id], string(text))
			}
		}
	}
	c.mu.Unlock()
	c.requests <- n
	if status == 0 {
		<-r.Context().Done() // the program is killed before it hears of the acceptance
		return
	}
	w.WriteHeader(status)
}

// names are those of the accepted spans, each id once, in order.
func (c *collector) names(t *testing.T) (names []string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, texts := range c.accepted {
		require.Len(t, slices.Compact(slices.Clone(texts)), 1, "%s is the same each time", id)
		names = append(names, id[:len(id)-17])
	}
	slices.Sort(names)
	return names
}

// world is a fleet of one shard with its daemon and the durable consumer.
type world struct {
	server   *natstest.Server
	fleet    *publisher.Fleet
	consumer jetstream.Consumer
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{server: natstest.Start(t)}
	js := w.server.JetStream(t, nats.ReconnectBufSize(-1))
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
	w.consumer, err = js.CreateConsumer(t.Context(), schema.NamesOf("default", 0).EventStream(), jetstream.ConsumerConfig{
		Durable: "observer", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Second,
	})
	require.NoError(t, err)
	w.fleet, err = publisher.Connect(t.Context(), publisher.Config{Conn: w.server.Conn(t, nats.ReconnectBufSize(-1)), Executor: "ex-1", Agent: "coder"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.fleet.Close(context.Background())) })
	return w
}

// supervise starts the program again each time it ends, until the test does. The returned function kills it, as kill -9
// does.
func (w *world) supervise(t *testing.T, c *collector) (kill func()) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var last atomic.Pointer[os.Process]
	started, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			cmd := exec.CommandContext(ctx, os.Args[0], "-shards", "1", "-collector", c.URL+"/v1/traces")
			cmd.Env = append(os.Environ(), "SPANS_OF_A_TEST=1", "WAYMARK_STATE_DIR="+w.server.StateDir())
			cmd.Stderr = os.Stderr
			if err := cmd.Start(); err != nil {
				return
			}
			if last.Swap(cmd.Process) == nil {
				close(started)
			}
			_ = cmd.Wait() // it was killed, or the collector did not accept spans
		}
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	<-started
	return func() { _ = last.Load().Kill() } // it may have ended before
}

// turn is a turn of the run with one call.
func turn(t *testing.T, run *publisher.Run) {
	t.Helper()
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
	require.NoError(t, err)
	call := publisher.ToolCall{ID: "c1", Name: "look", Replay: schema.ReplayPure, Arguments: []byte(`{}`)}
	_, err = turn.Answer(t.Context(), publisher.Answer{
		Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.CallPart("c1", "look")}}, Calls: []publisher.ToolCall{call},
		Usage: &schema.Usage{InputTokens: 7},
	})
	require.NoError(t, err)
	_, err = turn.Tool(t.Context(), call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		return publisher.Result("seen")
	})
	require.NoError(t, err)
}

// settled awaits that each message of the shard is acknowledged.
func (w *world) settled(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		info, err := w.consumer.Info(t.Context())
		return err == nil && info.NumPending == 0 && info.NumAckPending == 0
	}, patience, patience/100)
}

// A kill at any moment of a batch: each span comes, and the same each time.
func TestSpans_KilledAtEachMoment_EachSpanArrivesWithOneID(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(n int) int{
		"accepted, not told":    func(n int) int { return map[bool]int{true: 0, false: 200}[n == 1] },
		"refused for a while":   func(n int) int { return map[bool]int{true: 503, false: 200}[n == 1] },
		"accepted and told":     func(int) int { return 200 },
		"each third is refused": func(n int) int { return map[bool]int{true: 503, false: 200}[n%3 == 0] },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, c := newWorld(t), newCollector(t, answer)
			kill := w.supervise(t, c)
			run, err := w.fleet.Start(t.Context(), publisher.RunSpec{ID: "r1", Model: "m"})
			require.NoError(t, err)
			for range 3 {
				turn(t, run)
				<-c.requests
				kill()
			}
			require.NoError(t, run.End(t.Context(), publisher.RunEnd{Status: schema.StatusCompleted}))
			w.settled(t)
			require.Equal(t, []string{
				"chat m", "chat m", "chat m", "execute_tool look", "execute_tool look", "execute_tool look", "invoke_agent coder", "turn 1", "turn 2", "turn 3",
			}, c.names(t))
		})
	}
}
