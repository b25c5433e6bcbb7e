package archive_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/internal/archive"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// world is a fleet on a server, with the daemon's service.
type world struct {
	tb    testing.TB
	name  string
	nc    *nats.Conn
	js    jetstream.JetStream
	fleet *publisher.Fleet
}

func newWorld(tb testing.TB, fleet string) *world {
	tb.Helper()
	server := natstest.Start(tb)
	w := &world{tb: tb, name: fleet, nc: server.Conn(tb, nats.ReconnectBufSize(-1))}
	var err error
	w.js, err = jetstream.New(w.nc)
	require.NoError(tb, err)
	require.NoError(tb, kvstore.Provision(tb.Context(), w.js, kvstore.FleetConfig{Fleet: fleet, QuotaBytes: 256 << 20}))
	js, err := jetstream.New(server.Conn(tb, nats.ReconnectBufSize(-1)))
	require.NoError(tb, err)
	daemon, err := consumer.New(tb.Context(), consumer.Config{Fleet: fleet, Name: "service-1", Service: js}, time.Now, natstest.Logger(tb))
	require.NoError(tb, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(tb.Context()))
	done := make(chan error, 1)
	go func() { done <- daemon.Run(ctx) }()
	tb.Cleanup(func() {
		stop()
		require.NoError(tb, <-done)
	})
	<-daemon.Ready()
	w.fleet = w.executor("exec-1")
	return w
}

func (w *world) executor(name string) *publisher.Fleet {
	w.tb.Helper()
	f, err := publisher.Connect(w.tb.Context(), publisher.Config{Conn: w.nc, Fleet: w.name, Executor: name, Agent: "coder", InlineLimit: 4 << 10})
	require.NoError(w.tb, err)
	w.tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(w.tb, f.Close(ctx))
	})
	return f
}

func (w *world) start(id string) *publisher.Run {
	w.tb.Helper()
	r, err := w.fleet.Start(w.tb.Context(), publisher.RunSpec{ID: id, Task: "write it", Labels: map[string]string{"team": "a"}})
	require.NoError(w.tb, err)
	return r
}

// turn is one turn with one call.
func (w *world) turn(r *publisher.Run, id string, result any) {
	w.tb.Helper()
	turn, err := r.StartTurn(w.tb.Context(), publisher.TurnSpec{})
	require.NoError(w.tb, err)
	call := publisher.ToolCall{ID: id, Name: "read", Replay: schema.ReplayPure}
	said := schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("I read " + id), schema.CallPart(id, call.Name)}}
	_, err = turn.Answer(w.tb.Context(), publisher.Answer{Message: said, Calls: []publisher.ToolCall{call}})
	require.NoError(w.tb, err)
	_, err = turn.Tool(w.tb.Context(), call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		return publisher.Result(result)
	})
	require.NoError(w.tb, err)
}

// large is a result that goes to the blob store.
var large = strings.Repeat("a large result, ", 1<<10)

// eventful is a run with nearly everything that a run may have: blobs, a takeover, an accepted hand-off, a mark,
// refused events.
func (w *world) eventful(id string) {
	w.tb.Helper()
	ctx := w.tb.Context()
	r := w.start(id)
	w.turn(r, "c1", 1)
	w.turn(r, "c2", large)
	_, err := r.StartTurn(ctx, publisher.TurnSpec{Time: time.Now()}) // which the takeover interrupts
	require.NoError(w.tb, err)
	second := w.executor("exec-2")
	resumed, err := second.Resume(ctx, id, publisher.ResumeSpec{})
	require.NoError(w.tb, err)
	w.garbage(id)
	w.turn(resumed, "c3", large+"2")
	require.NoError(w.tb, resumed.Mark(ctx, "looked-at"))
	offer, err := resumed.Handoff("task_complete").ID("h1").NextAgent("tester").Offer(ctx)
	require.NoError(w.tb, err)
	child, err := second.AcceptHandoff(ctx, offer, publisher.RunSpec{ID: id + "-child", Task: "go on"})
	require.NoError(w.tb, err)
	require.NoError(w.tb, child.End(ctx, publisher.RunEnd{Status: schema.StatusCompleted}))
	require.NoError(w.tb, resumed.End(ctx, publisher.RunEnd{Status: schema.StatusCompleted, Summary: "done"}))
}

// garbage publishes messages that the fold refuses: no CloudEvent, and an event of a past epoch.
func (w *world) garbage(id string) {
	w.tb.Helper()
	subject := schema.NamesOf(w.name, 0).EventSubject(id)
	_, err := w.js.Publish(w.tb.Context(), subject, []byte("no event"))
	require.NoError(w.tb, err)
	old := schema.Writer{Fleet: w.name, Run: id, Executor: "exec-1", Epoch: 1, Last: 40}
	e, err := old.Event(&schema.ErrorRaisedData{Error: schema.Error{Type: "late"}}, 0, time.Unix(1_700_000_000, 0), 0)
	require.NoError(w.tb, err)
	header, body := e.Encode()
	_, err = w.js.PublishMsg(w.tb.Context(), &nats.Msg{Subject: subject, Header: header, Data: body})
	require.NoError(w.tb, err)
}

func (w *world) export(bases bool, runs ...string) ([]byte, *archive.Manifest) {
	w.tb.Helper()
	var b bytes.Buffer
	m, err := archive.Write(w.tb.Context(), &b, w.fleet, archive.Export{Fleet: w.name, Runs: runs, Bases: bases, Made: time.Now()})
	require.NoError(w.tb, err)
	return b.Bytes(), m
}

func opened(tb testing.TB, b []byte) *archive.Archive {
	tb.Helper()
	a, err := archive.Open(bytes.NewReader(b), archive.Limits{})
	require.NoError(tb, err)
	return a
}

func (w *world) importing(b []byte, change func(*archive.Target)) ([]archive.Imported, error) {
	w.tb.Helper()
	to := archive.Target{Fleet: w.name, Source: w.fleet}
	if change != nil {
		change(&to)
	}
	return archive.Import(w.tb.Context(), w.js, opened(w.tb, b), to)
}

// state reads a run, with its blobs.
func (w *world) state(id string) *schema.State {
	w.tb.Helper()
	s, err := w.fleet.Get(w.tb.Context(), id)
	require.NoError(w.tb, err)
	require.NoError(w.tb, w.fleet.Hydrate(w.tb.Context(), s))
	return s
}

// recordsOf are a fleet's records of a run.
func (w *world) recordsOf(id string) (records []schema.Record) {
	w.tb.Helper()
	require.NoError(w.tb, w.fleet.Events(w.tb.Context(), id, func(r schema.Record) error {
		r.Stream, r.Stored, r.Behind = 0, 0, 0
		records = append(records, r)
		return nil
	}))
	return records
}
