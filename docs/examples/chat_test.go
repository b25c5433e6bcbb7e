package examples_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/docs/examples"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// talk is the model of a chat: it says which message it answers, and keeps the latest request of each run.
type talk struct{ latest map[string][]schema.Message }

func (m *talk) model(_ context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
	m.latest[request.Run] = request.Messages
	return said("Answer to " + *request.Messages[len(request.Messages)-1].Parts[0].Content), nil
}

// oneTurn is a process that serves the chat until it is free: it answers the messages that are there, and ends.
// It claims the run, or takes it over by its name, which is faster.
func (w *world) oneTurn(t *testing.T, executor string, loop publisher.Loop, take ...string) (run string) {
	t.Helper()
	f, err := publisher.Connect(t.Context(), publisher.Config{Conn: w.server.Conn(t, nats.ReconnectBufSize(-1)), Executor: executor})
	require.NoError(t, err)
	outcomes := make(chan string, 1)
	e, err := f.NewExecutor(publisher.ExecutorSpec{
		Loops: map[string]publisher.Loop{"chat": loop}, WaitDetached: true, Capacity: 1 - 2*len(take),
		OnOutcome: func(run string, outcome publisher.Outcome, err error) {
			outcomes <- fmt.Sprint(run, " ", outcome)
		},
	})
	require.NoError(t, err)
	ctx, end := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- e.Serve(ctx) }()
	for _, id := range take {
		run, err := f.Resume(t.Context(), id, publisher.ResumeSpec{})
		require.NoError(t, err)
		require.NoError(t, e.Adopt(run))
	}
	select {
	case run = <-outcomes:
	case <-time.After(patience):
		require.Fail(t, "the chat was not answered")
	}
	end()
	require.NoError(t, <-served)
	require.NoError(t, f.Close(context.Background()))
	f.Conn().Close()
	return run
}

// checkpoint is the size of the run's checkpoint, and of what the next executor reads.
func (w *world) size(t *testing.T, js jetstream.JetStream, f *publisher.Fleet) (checkpoint, read int) {
	t.Helper()
	names := schema.NamesOf("default", schema.ShardOf("r1", 8))
	bucket, err := js.KeyValue(t.Context(), names.CheckpointBucket())
	require.NoError(t, err)
	entry, err := bucket.Get(t.Context(), "r1")
	require.NoError(t, err)
	require.NoError(t, f.Events(t.Context(), "r1", func(rec schema.Record) error {
		read += rec.Size()
		return nil
	}))
	return len(entry.Value()), read
}

// A chat of days: each message is one turn, by a process of its own. Behind the last message that a run takes it goes on
// in another one.
func TestChat_MessageByMessage_EachAnsweredOnceByAnotherProcess(t *testing.T) {
	t.Parallel()
	turns := 50
	if testbin.Full(t) {
		turns = 2000
	}
	w := newWorld(t)
	js := w.server.JetStream(t)
	user := w.fleet("ann", nil)
	m := &talk{map[string][]schema.Message{}}
	chat := examples.Chat(m.model, int32(turns))
	_, err := user.Submit(t.Context(), publisher.RunSpec{ID: "r1", Agent: "chat", Task: "Hello 1"})
	require.NoError(t, err)
	for turn := 1; turn <= turns; turn++ {
		if turn > 1 {
			require.NoError(t, user.Signal(t.Context(), "r1", publisher.SignalSpec{ID: fmt.Sprint("m", turn), Name: "says", Payload: fmt.Appendf(nil, `"Hello %d"`, turn)}))
		}
		take := []string{"r1"}
		require.Equal(t, "r1 waiting", w.oneTurn(t, fmt.Sprint("ex-", turn%2), chat, take[:min(1, turn/25)]...))
		if turn%(turns/10) == 0 {
			checkpoint, read := w.size(t, js, user)
			t.Logf("turn %d: a checkpoint of %d bytes, a takeover reads %d", turn, checkpoint, read)
			require.Less(t, checkpoint, 256<<10)
		}
	}
	head, err := user.Head(t.Context(), "r1")
	require.NoError(t, err)
	require.EqualValues(t, turns, head.Turn)
	require.Equal(t, schema.StatusWaiting, head.Status)
	require.Zero(t, head.Counts.DeadLetters)
	require.Empty(t, head.Signals)
	request := m.latest["r1"]
	require.Len(t, request, 2*turns, "the system prompt, and a message and an answer of each turn")
	for turn := 1; turn <= turns; turn++ {
		require.True(t, strings.HasSuffix(*request[2*turn-1].Parts[0].Content, fmt.Sprint("Hello ", turn)), "each message once, in order")
	}
	require.NoError(t, user.Signal(t.Context(), "r1", publisher.SignalSpec{ID: "last", Name: "says", Payload: []byte(`"One more"`)}))
	require.Equal(t, "r1 completed", w.oneTurn(t, "ex-1", chat))
	head, err = user.Head(t.Context(), "r1")
	require.NoError(t, err)
	child := head.Handoffs[0].ChildRun
	require.Equal(t, child+" waiting", w.oneTurn(t, "ex-2", chat))
	require.Contains(t, *m.latest[child][2].Parts[0].Content, "One more")
}
