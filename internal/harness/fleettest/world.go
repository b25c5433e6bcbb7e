package fleettest

import (
	"context"
	"crypto/rand"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// World is the fleet "default", of one shard, on its own server. The test provides the fold worker.
type World struct {
	TB     testing.TB
	Server *natstest.Server
	NC     *nats.Conn
	JS     jetstream.JetStream
	Shard  *kvstore.Shard
	Names  schema.Names
	Clock  *HandClock
	// Tick is how much time passes, by the clock, with each look of [Run.Settled]: a lease whose release was lost expires by it.
	Tick time.Duration
	// Live has the runs that the tested daemon takes for live ones.
	Live interface {
		Get(run string) (schema.Live, bool)
	}
	keys *keyring.Ring
}

// New makes the fleet, on a connection that change may modify. The clock is set to [Noon].
func New(tb testing.TB, change ...func(*nats.Conn)) *World {
	tb.Helper()
	server := natstest.Start(tb)
	nc := server.Conn(tb)
	for _, f := range change {
		f(nc)
	}
	w := &World{TB: tb, Server: server, NC: nc, Names: schema.NamesOf("default", 0), Clock: NewHandClock(Noon)}
	var err error
	w.JS, err = jetstream.New(w.NC)
	require.NoError(tb, err)
	require.NoError(tb, kvstore.Provision(tb.Context(), w.JS, kvstore.FleetConfig{Fleet: "default", QuotaBytes: 64 << 20}))
	settings, _, err := kvstore.NewFleets(w.JS).Get(tb.Context(), "default")
	require.NoError(tb, err)
	w.Shard, err = kvstore.OpenShard(w.JS, settings, 0, "daemon-1")
	require.NoError(tb, err)
	w.keys, err = kvstore.NewKeyring(w.JS, "default")
	require.NoError(tb, err)
	return w
}

// Go starts a function that ends with its context, and returns a function that ends it.
func (w *World) Go(f func(context.Context) error) func() {
	ctx, cancel := context.WithCancel(w.TB.Context())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		require.NoError(w.TB, <-done)
	})
	w.TB.Cleanup(stop)
	return stop
}

// Unwritten is a run of the executor that the test writes. Nothing of it is in the log yet.
func (w *World) Unwritten(run, executor string) *Run {
	return &Run{w: w, Out: schema.Writer{Fleet: "default", Run: run, Executor: executor, Epoch: 1}}
}

// Begin starts a run, and waits until it is folded.
func (w *World) Begin(run, executor, instance string) *Run {
	w.TB.Helper()
	r := w.Unwritten(run, executor)
	r.Own(&schema.RunStartedData{Agent: "agent-1", Executor: executor, Instance: instance})
	return r
}

// Run is a run that a test writes.
type Run struct {
	w    *World
	Out  schema.Writer
	Last schema.StreamSequence
}

// Own publishes an event of the executor and waits until it is folded.
func (r *Run) Own(data schema.Data) {
	r.w.TB.Helper()
	r.Publish(data)
	r.Folded()
}

// Publish publishes an event of the executor.
func (r *Run) Publish(data schema.Data) {
	r.w.TB.Helper()
	r.PublishAt(data, r.w.Clock.Now())
}

// PublishAt publishes an event of an executor by whose clock it is at.
func (r *Run) PublishAt(data schema.Data, at time.Time) {
	r.w.TB.Helper()
	e, err := r.Out.Event(data, 0, at, 0)
	require.NoError(r.w.TB, err)
	require.NoError(r.w.TB, r.Out.Commit(e))
	r.Send(e)
}

// Control publishes a control event, as the service would, and waits until it is folded.
func (r *Run) Control(data schema.Data) {
	r.w.TB.Helper()
	epoch := r.Out.Epoch
	if d, ok := data.(*schema.RunResumedData); ok {
		c := r.Checkpoint()
		d.From = schema.From{Epoch: c.Epoch, Sequence: c.Sequence, Digest: c.Digest}
		epoch++
		r.Out.Epoch, r.Out.Last, r.Out.Executor = epoch, 0, d.Executor
	}
	e, err := schema.NewControl("default", "service-1", r.Out.Run, epoch, rand.Text(), data, r.w.Clock.Now())
	require.NoError(r.w.TB, err)
	require.NoError(r.w.TB, r.w.keys.Sign(r.w.TB.Context(), e, r.Checkpoint().Digest))
	r.Send(e)
	r.Folded()
}

// Send puts an event into the log.
func (r *Run) Send(e *schema.Event) {
	r.w.TB.Helper()
	header, body := e.Encode()
	msg := &nats.Msg{Subject: r.w.Names.EventSubject(r.Out.Run), Header: header, Data: body}
	ack, err := r.w.JS.PublishMsg(r.w.TB.Context(), msg, jetstream.WithMsgID(e.ID))
	require.NoError(r.w.TB, err)
	r.Last = schema.StreamSequence(ack.Sequence)
}

// Checkpoint is the run's, fresh.
func (r *Run) Checkpoint() *schema.Checkpoint {
	r.w.TB.Helper()
	c, _, err := r.w.Shard.Checkpoints.GetFresh(r.w.TB.Context(), r.Out.Run)
	require.NoError(r.w.TB, err)
	return c
}

// Folded waits until the sent events are checkpointed and the live runs include them.
func (r *Run) Folded() {
	r.w.TB.Helper()
	r.Settled(func(c *schema.Checkpoint) bool { return c.Position.Stream >= r.Last })
}

// Settled waits for a checkpoint that is as wanted, and for the live runs to include it.
func (r *Run) Settled(ok func(*schema.Checkpoint) bool) *schema.Checkpoint {
	r.w.TB.Helper()
	var c *schema.Checkpoint
	require.Eventually(r.w.TB, func() bool {
		r.w.Clock.Forward(r.w.Tick)
		var err error
		c, _, err = r.w.Shard.Checkpoints.GetFresh(r.w.TB.Context(), r.Out.Run)
		if err != nil || !ok(c) {
			return false
		}
		l, known := r.w.Live.Get(r.Out.Run)
		want := schema.LiveOf(&c.Head)
		return known == c.InLiveIndex() && (!known || l.Same(&want))
	}, time.Minute, 10*time.Millisecond)
	return c
}

// Becomes waits until the run has the status.
func (r *Run) Becomes(status schema.Status) *schema.Checkpoint {
	r.w.TB.Helper()
	return r.Settled(func(c *schema.Checkpoint) bool { return c.Status == status })
}

// LastData is the data of the run's last event.
func LastData[T any](r *Run) *T {
	r.w.TB.Helper()
	stream, err := r.w.JS.Stream(r.w.TB.Context(), r.w.Names.EventStream())
	require.NoError(r.w.TB, err)
	m, err := stream.GetLastMsgForSubject(r.w.TB.Context(), r.w.Names.EventSubject(r.Out.Run))
	require.NoError(r.w.TB, err)
	e, err := schema.Decode(m.Header, m.Data)
	require.NoError(r.w.TB, err)
	require.True(r.w.TB, e.IsControl())
	data := new(T)
	require.NoError(r.w.TB, json.Unmarshal(e.Data, data))
	return data
}

// Keyed gives a connection a key after it was made, for a server that asks for none: a fleet that it makes has that key.
func Keyed(tb testing.TB) func(*nats.Conn) {
	tb.Helper()
	pair, err := nkeys.CreateUser()
	require.NoError(tb, err)
	public, err := pair.PublicKey()
	require.NoError(tb, err)
	return func(nc *nats.Conn) { nc.Opts.Nkey, nc.Opts.SignatureCB = public, pair.Sign }
}

// Orphan is a run that became claimable so many seconds before [Noon].
func Orphan(run, executor string, ago int) schema.Live {
	return schema.Live{
		Format: schema.LiveFormat, Run: run, Agent: "agent-1", Executor: executor, Status: schema.StatusOrphaned, Epoch: 1,
		Labels: map[string]string{"team": "a"}, Since: schema.FormatTime(Noon.Add(-time.Duration(ago) * time.Second)),
	}
}
