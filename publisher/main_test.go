package publisher_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// world is a server with a provisioned fleet.
type world struct {
	tb     testing.TB
	server *natstest.Server
	nc     *nats.Conn
	js     jetstream.JetStream
	names  schema.Names
	config kvstore.FleetConfig
}

func newWorld(tb testing.TB, opts ...natstest.Option) *world {
	tb.Helper()
	return newWorldWith(tb, kvstore.FleetConfig{Fleet: "default", QuotaBytes: 256 << 20}, opts...)
}

func newWorldWith(tb testing.TB, fleet kvstore.FleetConfig, opts ...natstest.Option) *world {
	tb.Helper()
	w := &world{tb: tb, server: natstest.Start(tb, opts...), names: schema.NamesOf("default", 0), config: fleet}
	w.nc = w.server.Conn(tb, nats.ReconnectBufSize(-1))
	js, err := jetstream.New(w.nc)
	require.NoError(tb, err)
	w.js = js
	require.NoError(tb, kvstore.Provision(tb.Context(), js, fleet))
	return w
}

// fleet connects an executor. changes may be nil.
func (w *world) fleet(changes ...func(*publisher.Config)) *publisher.Fleet {
	w.tb.Helper()
	cfg := publisher.Config{Conn: w.nc, Executor: "exec-1", Agent: "coder", PublishTimeout: 10 * time.Second, TryTimeout: 300 * time.Millisecond, VerifyTimeout: 4 * time.Second, FullPatience: -1}
	for _, change := range changes {
		change(&cfg)
	}
	f, err := publisher.Connect(w.tb.Context(), cfg)
	for began := time.Now(); errors.Is(err, publisher.ErrUnavailable) && time.Since(began) < patience; { // the test's RequestTimeout is short
		f, err = publisher.Connect(w.tb.Context(), cfg)
	}
	require.NoError(w.tb, err)
	publisher.SetOutwait(f, 0) // only the tests of it wait
	w.tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(w.tb, f.Close(ctx))
	})
	return f
}

// serve starts the recovery service.
func (w *world) serve() {
	w.tb.Helper()
	w.serveOn(w.server.Conn(w.tb, nats.ReconnectBufSize(-1)))
}

func (w *world) serveOn(nc *nats.Conn) {
	w.tb.Helper()
	js, err := jetstream.New(nc)
	require.NoError(w.tb, err)
	daemon, err := consumer.New(w.tb.Context(), consumer.Config{Fleet: "default", Name: "service-1", Service: js}, time.Now, natstest.Logger(w.tb))
	require.NoError(w.tb, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- daemon.Run(ctx) }()
	w.tb.Cleanup(func() {
		cancel()
		require.NoError(w.tb, <-done)
	})
	select {
	case <-daemon.Ready():
	case err := <-done:
		require.NoError(w.tb, err, "the service ended early")
	}
}

// log returns the run's records as the server has them.
func (w *world) log(run string) []schema.Record {
	w.tb.Helper()
	var all []schema.Record
	require.NoError(w.tb, eventlog.Read(w.tb.Context(), w.js, w.names, run, 1, func(rec schema.Record) error {
		all = append(all, rec)
		return nil
	}))
	return all
}

// fold returns what the run's log adds up to, for comparison with a handle's own fold.
func (w *world) fold(run string) *schema.State {
	w.tb.Helper()
	s := schema.NewState("default", run)
	for _, rec := range w.log(run) {
		s.Apply(schema.NoKeys, &rec)
	}
	s.Settle()
	return s
}

// requireSameFold checks that a handle's fold is the log's, and that every event of the log was accepted.
func (w *world) requireSameFold(run *publisher.Run) *schema.State {
	w.tb.Helper()
	want := w.fold(run.ID())
	w.requireFold(want, run)
	return want
}

func (w *world) requireFold(want *schema.State, run *publisher.Run) {
	w.tb.Helper()
	require.Equal(w.tb, want, run.State())
	require.Zero(w.tb, want.Head.Counts.DeadLetters, "the log has events that the fold refuses")
	require.Empty(w.tb, publisher.IllegalCalls(run))
}

// control publishes a control event, as the daemon or an operator does.
func (w *world) control(run string, epoch schema.Epoch, data schema.Data) {
	w.tb.Helper()
	e, err := schema.NewControl("default", "operator", run, epoch, "n"+time.Now().Format("150405.000000000"), data, time.Now())
	require.NoError(w.tb, err)
	w.put(e)
}

// put publishes an event as it is.
func (w *world) put(e *schema.Event) {
	w.tb.Helper()
	header, body := e.Encode()
	_, err := w.js.PublishMsg(w.tb.Context(), &nats.Msg{Subject: w.names.EventSubject(e.Subject), Header: header, Data: body}, jetstream.WithMsgID(e.ID))
	require.NoError(w.tb, err)
}

func start(tb testing.TB, f *publisher.Fleet, id string) *publisher.Run {
	tb.Helper()
	run, err := f.Start(tb.Context(), publisher.RunSpec{ID: id, Task: "write it"})
	require.NoError(tb, err)
	return run
}

func user(text string) schema.Message {
	return schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(text)}}
}

func assistant(parts ...schema.Part) schema.Message {
	return schema.Message{Role: schema.RoleAssistant, Parts: parts}
}

func raw(s string) []byte { return []byte(s) }

func names(recs []schema.Record) []string {
	var list []string
	for _, rec := range recs {
		e, err := schema.Decode(rec.Header, rec.Body)
		if err != nil {
			list = append(list, "?")
			continue
		}
		list = append(list, e.Name())
	}
	return list
}

// limit sets the quota of the event stream, smaller than the smallest that a fleet can be provisioned with.
func (w *world) limit(bytes int64) {
	w.tb.Helper()
	s, err := w.js.Stream(w.tb.Context(), w.names.EventStream())
	require.NoError(w.tb, err)
	cfg := s.CachedInfo().Config
	cfg.MaxBytes = bytes
	_, err = w.js.UpdateStream(w.tb.Context(), cfg)
	require.NoError(w.tb, err)
}

// questionOf is the id of the event that asks a question now.
func questionOf(tb testing.TB, f *publisher.Fleet, run, interrupt string) string {
	tb.Helper()
	head, err := f.Head(tb.Context(), run)
	require.NoError(tb, err)
	i := slices.IndexFunc(head.Interrupts, func(o schema.OpenInterrupt) bool { return o.InterruptID == interrupt })
	require.NotEqual(tb, -1, i, "run %s does not wait for %s", run, interrupt)
	return head.Interrupts[i].Position.ID
}

// attempt is the epoch of an open call.
func attempt(tb testing.TB, f *publisher.Fleet, run string, key schema.CallKey) schema.Epoch {
	tb.Helper()
	head, err := f.Head(tb.Context(), run)
	require.NoError(tb, err)
	i := head.FindOpen(key.Turn, key.ToolCallID, key.Occurrence)
	require.NotEqual(tb, -1, i, "run %s has no open call %v", run, key)
	return head.OpenCalls[i].Epoch
}
