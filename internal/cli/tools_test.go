package cli

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/serve"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
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
	end, err := natsconn.Discover(t.Context(), dir)
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

// driveRun publishes a run that begins and ends.
func driveRun(t *testing.T, nc *nats.Conn, run string) {
	t.Helper()
	fleet, err := publisher.Connect(t.Context(), publisher.Config{Conn: nc, Executor: "tools-test"})
	require.NoError(t, err)
	defer func() { require.NoError(t, fleet.Close(context.WithoutCancel(t.Context()))) }()
	r, err := fleet.Start(t.Context(), publisher.RunSpec{ID: run, Agent: "coder"})
	require.NoError(t, err)
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
	require.NoError(w.t, w.fleet.Input(w.t.Context(), w.run.ID(), publisher.Input{InterruptID: "q1", EventID: questionOf(w.t, w.fleet, w.run.ID(), "q1"), Payload: []byte(`"yes"`)}))
	require.NoError(w.t, w.run.Sync(w.t.Context()))
	w.tool()
	require.NoError(w.t, w.run.End(w.t.Context(), publisher.RunEnd{Status: schema.StatusCompleted}))
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
