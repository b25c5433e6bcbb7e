package cli

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/serve"
	"github.com/waymarkio/waymark/internal/statedir"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// startServe runs serve in this process on a directory of its own, and returns a connection that was made with
// nothing but what the directory says.
func startServe(t *testing.T, args ...string) (*nats.Conn, serve.Ready) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	getenv := func(name string) string {
		return map[string]string{"WAYMARK_STATE_DIR": dir, "WAYMARK_HTTP": "127.0.0.1:0", "WAYMARK_QUOTA": "64MiB"}[name]
	}
	line, stop, err := startDaemon(append([]string{"--json"}, args...), getenv)
	require.NoError(t, err)
	t.Cleanup(func() {
		code, stderr := stop()
		require.Equal(t, int(failure.OK), code, stderr)
	})
	var r serve.Ready
	require.NoError(t, json.Unmarshal([]byte(line), &r))
	end, err := statedir.Discover(t.Context(), dir)
	require.NoError(t, err)
	closed := make(chan struct{})
	nc, err := end.Connect(nats.ReconnectBufSize(-1), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	require.NoError(t, err)
	t.Cleanup(func() {
		nc.Close()
		<-closed
	})
	return nc, r
}

// driveRun publishes a run of so many turns, one tool call each, and waits for the folder before each next turn, so
// that every turn has a checkpoint of its own.
func driveRun(t *testing.T, nc *nats.Conn, run string, turns int, checkpoints *nats.Subscription) {
	t.Helper()
	fleet, err := publisher.Connect(t.Context(), publisher.Config{Conn: nc, Executor: "tools-test"})
	require.NoError(t, err)
	defer func() { require.NoError(t, fleet.Close(context.WithoutCancel(t.Context()))) }()
	r, err := fleet.Start(t.Context(), publisher.RunSpec{ID: run, Agent: "coder"})
	require.NoError(t, err)
	for i := range turns {
		turn, err := r.StartTurn(t.Context(), publisher.TurnSpec{Messages: []schema.Message{textMessage(schema.RoleUser, "go on")}})
		require.NoError(t, err)
		call := publisher.ToolCall{ID: "call", Name: "hammer", Arguments: []byte(`{}`), Replay: schema.ReplayPure}
		_, err = turn.Answer(t.Context(), publisher.Answer{Message: textMessage(schema.RoleAssistant, "I nail it"), Calls: []publisher.ToolCall{call}})
		require.NoError(t, err)
		_, err = turn.Tool(t.Context(), call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
			return publisher.ToolResult{Result: []byte(`"bang"`)}, nil
		})
		require.NoError(t, err)
		for {
			m, err := checkpoints.NextMsg(startLimit)
			require.NoError(t, err, "no checkpoint of turn %d was republished", i+1)
			c, err := schema.DecodeCheckpoint(m.Data)
			require.NoError(t, err)
			if c.Turn == int32(i+1) && !c.TurnOpen { //nolint:gosec // a small count
				break
			}
		}
	}
	require.NoError(t, r.End(t.Context(), publisher.RunEnd{Status: schema.StatusCompleted}))
}

// waitingRunWork drives a run that waits for a person, and then ends.
type waitingRunWork struct {
	t     *testing.T
	fleet *publisher.Fleet
	run   *publisher.Run
	turn  *publisher.Turn
	call  publisher.ToolCall
}

func waitingRun(t *testing.T, nc *nats.Conn, run string) *waitingRunWork {
	t.Helper()
	fleet, err := publisher.Connect(t.Context(), publisher.Config{Conn: nc, Executor: "tools-test"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, fleet.Close(context.WithoutCancel(t.Context()))) })
	r, err := fleet.Start(t.Context(), publisher.RunSpec{
		ID: run, Agent: "coder", Model: "m-1", ModelTier: "large", Labels: map[string]string{"tenant": "acme"}, Task: "Mend the roof.",
	})
	require.NoError(t, err)
	return &waitingRunWork{t: t, fleet: fleet, run: r}
}

// answer opens a turn and has it answered with a call.
func (w *waitingRunWork) answer(text string, call publisher.ToolCall) {
	w.t.Helper()
	var err error
	w.turn, err = w.run.StartTurn(w.t.Context(), publisher.TurnSpec{Messages: []schema.Message{textMessage(schema.RoleUser, "go on")}})
	require.NoError(w.t, err)
	_, err = w.turn.Answer(w.t.Context(), publisher.Answer{Message: textMessage(schema.RoleAssistant, text), Calls: []publisher.ToolCall{call}})
	require.NoError(w.t, err)
	w.call = call
}

// tool runs the call of the turn.
func (w *waitingRunWork) tool() {
	w.t.Helper()
	_, err := w.turn.Tool(w.t.Context(), w.call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		return publisher.ToolResult{Result: []byte(`"done"`)}, nil
	})
	require.NoError(w.t, err)
}

// toQuestion brings the run to a question, in its second turn, with a call that is not begun.
func (w *waitingRunWork) toQuestion() {
	w.t.Helper()
	w.answer("I look at it", publisher.ToolCall{ID: "c1", Name: "look", Arguments: []byte(`{}`), Replay: schema.ReplayPure})
	require.NoError(w.t, w.run.Error(w.t.Context(), schema.Error{Type: "rain", Message: "it rains in"}, ""))
	w.tool()
	w.answer("I pay the carpenter"+strings.Repeat(" a lot", 100), publisher.ToolCall{ID: "c1", Name: "pay", Arguments: []byte(`{}`), Replay: schema.ReplayHold})
	require.NoError(w.t, w.run.Wait(w.t.Context(), schema.RunWaitingData{InterruptID: "q1", Reason: schema.WaitHumanInput, Message: "May I?"}))
}

// toEnd answers the question and ends the run.
func (w *waitingRunWork) toEnd() {
	w.t.Helper()
	require.NoError(w.t, w.fleet.Input(w.t.Context(), w.run.ID(), publisher.Input{InterruptID: "q1", Payload: []byte(`"yes"`)}))
	require.NoError(w.t, w.run.Sync(w.t.Context()))
	w.tool()
	require.NoError(w.t, w.run.End(w.t.Context(), publisher.RunEnd{Status: schema.StatusCompleted}))
}

func TestNATSTools_Fleet_SeeCheckpointsServiceEvents(t *testing.T) {
	t.Parallel()
	nc, line := startServe(t)
	observed, err := nc.SubscribeSync("waymark.checkpoints.>")
	require.NoError(t, err)
	pace, err := nc.SubscribeSync("waymark.checkpoints.>")
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	driveRun(t, nc, "roof", 7, pace)

	t.Run("a subscriber sees valid CloudEvents, from created to finalized", func(t *testing.T) {
		var types []string
		for {
			m, err := observed.NextMsg(startLimit)
			require.NoError(t, err, "seen so far: %v", types)
			e, err := schema.Decode(m.Header, m.Data)
			require.NoError(t, err)
			require.Equal(t, "roof", e.Subject)
			require.NotEmpty(t, e.ID)
			require.NotEmpty(t, e.Source)
			require.Equal(t, schema.ContentTypeJSON, e.DataContentType)
			_, err = time.Parse(time.RFC3339Nano, e.Time)
			require.NoError(t, err)
			_, err = schema.DecodeCheckpoint(e.Data)
			require.NoError(t, err)
			types = append(types, e.Name())
			if e.Name() == schema.CheckpointFinalized {
				break
			}
		}
		require.Equal(t, schema.CheckpointCreated, types[0])
		require.Contains(t, types, schema.CheckpointUpdated)
		require.GreaterOrEqual(t, len(types), 8)
	})

	t.Run("KV history shows the last five checkpoints as readable JSON", func(t *testing.T) {
		js, err := jetstream.New(nc)
		require.NoError(t, err)
		kv, err := js.KeyValue(t.Context(), schema.NamesOf(schema.DefaultFleet, schema.ShardOf("roof", kvstore.LoneShards)).CheckpointBucket())
		require.NoError(t, err)
		history, err := kv.History(t.Context(), "roof")
		require.NoError(t, err)
		require.Len(t, history, 5)
		last := int64(0)
		for _, entry := range history {
			var readable struct {
				Run    string `json:"run"`
				Status string `json:"status"`
				Turn   int    `json:"turn"`
				Counts struct {
					Events int64 `json:"events"`
				} `json:"counts"`
			}
			require.NoError(t, json.Unmarshal(entry.Value(), &readable))
			require.Equal(t, "roof", readable.Run)
			require.Greater(t, readable.Counts.Events, last, "each later checkpoint has seen more")
			require.Less(t, len(entry.Value()), 4<<10)
			last = readable.Counts.Events
		}
		require.Contains(t, string(history[4].Value()), `"status":"completed"`)
		require.Contains(t, string(history[4].Value()), `"turn":7`)
	})

	t.Run("micro discovery lists the service with its endpoints", func(t *testing.T) {
		reply, err := nc.Request("$SRV.INFO.waymark", nil, startLimit)
		require.NoError(t, err)
		var info micro.Info
		require.NoError(t, json.Unmarshal(reply.Data, &info))
		require.Equal(t, "waymark", info.Name)
		subjects := map[string]string{}
		for _, e := range info.Endpoints {
			subjects[e.Name] = e.Subject
			want := "waymark"
			if e.Name == schema.VerbRetry {
				want = "" // all replicas hear it
			}
			require.Equal(t, want, e.QueueGroup, e.Name)
		}
		for verb, subject := range map[string]string{
			schema.VerbRecover: "waymark.recover.default.*",
			schema.VerbGet:     "waymark.get.default.*",
			schema.VerbHistory: "waymark.history.default.*",
			schema.VerbList:    "waymark.list.default",
		} {
			require.Equal(t, subject, subjects[verb])
		}
	})

	t.Run("health and metrics answer on loopback", func(t *testing.T) {
		require.Regexp(t, `^http://127\.0\.0\.1:\d+$`, line.HTTP)
		client := http.Client{Timeout: startLimit, Transport: &http.Transport{DisableKeepAlives: true}}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, line.HTTP+"/readyz", http.NoBody)
		require.NoError(t, err)
		response, err := client.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusOK, response.StatusCode)
	})
}

func TestNoFoldWorker_ReadsAndTakeovers_Work(t *testing.T) {
	t.Parallel()
	nc, line := startServe(t, "--no-fold")
	require.False(t, line.Folding)
	fleet, err := publisher.Connect(t.Context(), publisher.Config{Conn: nc, Executor: "tools-test"})
	require.NoError(t, err)
	defer func() { require.NoError(t, fleet.Close(context.WithoutCancel(t.Context()))) }()
	run, err := fleet.Start(t.Context(), publisher.RunSpec{ID: "roof", Agent: "coder"})
	require.NoError(t, err)
	_, err = run.StartTurn(t.Context(), publisher.TurnSpec{Messages: []schema.Message{textMessage(schema.RoleUser, "go on")}})
	require.NoError(t, err)

	js, err := jetstream.New(nc)
	require.NoError(t, err)
	kv, err := js.KeyValue(t.Context(), schema.NamesOf(schema.DefaultFleet, schema.ShardOf("roof", kvstore.LoneShards)).CheckpointBucket())
	require.NoError(t, err)
	_, err = kv.Get(t.Context(), "roof")
	require.ErrorIs(t, err, jetstream.ErrKeyNotFound, "no worker folds")

	state, err := fleet.Get(t.Context(), "roof")
	require.NoError(t, err)
	require.Equal(t, int64(2), state.Head.Counts.Events)
	taken, err := fleet.Resume(t.Context(), "roof", publisher.ResumeSpec{})
	require.NoError(t, err)
	require.Equal(t, schema.Epoch(2), taken.Epoch())
}
