package consumer

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
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/keyring"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// lifeWorld is a fleet whose folder folds in real time, and whose sweeps and clock are the test's own.
type lifeWorld struct {
	tb     testing.TB
	server *natstest.Server
	nc     *nats.Conn
	js     jetstream.JetStream
	shard  *kvstore.Shard
	names  schema.Names
	clock  *HandClock
	// begun is the server's time when the clock was at noon.
	begun time.Time
	// tick is how much time passes, by the clock, with each look of settled: a lease whose release was lost expires by it.
	tick   time.Duration
	roster *Roster
	hb     *Heartbeats
	folder *Folder
	stop   func()
	*sweeper
}

func newLifeWorld(tb testing.TB, change ...func(*nats.Conn)) *lifeWorld {
	tb.Helper()
	server := natstest.Start(tb)
	nc := server.Conn(tb)
	for _, f := range change {
		f(nc)
	}
	w := &lifeWorld{tb: tb, server: server, nc: nc, names: schema.NamesOf("default", 0), clock: NewHandClock(noon), begun: time.Now()}
	var err error
	w.js, err = jetstream.New(w.nc)
	require.NoError(tb, err)
	require.NoError(tb, kvstore.Provision(tb.Context(), w.js, kvstore.FleetConfig{Fleet: "default", QuotaBytes: 64 << 20}))
	settings, _, err := kvstore.NewFleets(w.js).Get(tb.Context(), "default")
	require.NoError(tb, err)
	w.shard, err = kvstore.OpenShard(w.js, settings, 0, "daemon-1")
	require.NoError(tb, err)
	log := natstest.Logger(tb)
	w.roster = NewRoster([]*kvstore.Shard{w.shard}, 0, w.clock.Now, log)
	w.hb = NewHeartbeats("default", w.nc, w.clock.Now, log)
	w.hb.setSteady(nil, w.clock.Now())
	w.run(w.roster.Run)
	w.stop = w.fold(w.config())
	w.sweeper = w.newSweeper()
	require.Eventually(tb, func() bool { return w.roster.Synced() && w.folder.Leads() }, time.Minute, time.Millisecond)
	return w
}

// config is that of a folder which leaves the sweeps to the test.
func (w *lifeWorld) config() FolderConfig {
	return FolderConfig{
		Fleet: "default", Holder: "daemon-1", LeaseTTL: time.Second, ReconcileEvery: 20 * time.Millisecond,
		Roster: w.roster, Heartbeats: w.hb, SweepEvery: time.Hour, Silence: 3 * time.Hour,
	}
}

// fold runs a folder and returns the function that stops it.
func (w *lifeWorld) fold(cfg FolderConfig) func() {
	w.tb.Helper()
	var err error
	w.folder, err = NewFolder(cfg, w.nc, w.js, w.shard, w.clock.Now, natstest.Logger(w.tb))
	require.NoError(w.tb, err)
	return w.run(w.folder.Run)
}

// run starts what ends with its context, and returns the function that ends it.
func (w *lifeWorld) run(f func(context.Context) error) func() {
	ctx, cancel := context.WithCancel(w.tb.Context())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		require.NoError(w.tb, <-done)
	})
	w.tb.Cleanup(stop)
	return stop
}

// newSweeper is what a folder begins its reign with, with the defaults.
func (w *lifeWorld) newSweeper() *sweeper {
	cfg := FolderConfig{Fleet: "default", Holder: "daemon-1", Roster: w.roster, Heartbeats: w.hb}.withDefaults()
	s := newSweeper(cfg.sweep(), w.folder.keys, w.js, w.shard, new(SweepStats), w.clock.Now, zerolog.Nop())
	s.served = func(context.Context) (time.Time, error) { return w.begun.Add(w.clock.Now().Sub(noon)), nil }
	return s
}

// skip lets time go by at once, with a sweep that notices it and two that go by it.
func (w *lifeWorld) skip(d time.Duration) {
	w.tb.Helper()
	w.clock.Forward(d)
	require.NoError(w.tb, w.sweep(w.tb.Context()))
	w.pass(2, nil)
}

// pass lets so many seconds go by, with a sweep each, and calls each every second.
func (w *lifeWorld) pass(seconds int, each func()) {
	w.tb.Helper()
	for range seconds {
		w.clock.Forward(time.Second)
		if each != nil {
			each()
		}
		require.NoError(w.tb, w.sweep(w.tb.Context()))
	}
}

// lifeRun is a run that the test writes.
type lifeRun struct {
	w    *lifeWorld
	out  schema.Writer
	last schema.StreamSequence
}

// begin starts a run.
func (w *lifeWorld) begin(run, executor, instance string) *lifeRun {
	w.tb.Helper()
	r := &lifeRun{w: w, out: schema.Writer{Fleet: "default", Run: run, Executor: executor, Epoch: 1}}
	r.own(&schema.RunStartedData{Agent: "agent-1", Executor: executor, Instance: instance})
	return r
}

// own publishes an event of the executor and waits until it is folded.
func (r *lifeRun) own(data schema.Data) {
	r.w.tb.Helper()
	r.publish(data)
	r.folded()
}

func (r *lifeRun) publish(data schema.Data) {
	r.w.tb.Helper()
	r.publishAt(data, r.w.clock.Now())
}

// publishAt publishes an event of an executor by whose clock it is at.
func (r *lifeRun) publishAt(data schema.Data, at time.Time) {
	r.w.tb.Helper()
	e, err := r.out.Event(data, 0, at, 0)
	require.NoError(r.w.tb, err)
	require.NoError(r.w.tb, r.out.Commit(e))
	r.send(e)
}

// control publishes a control event, as the service would, and waits until it is folded.
func (r *lifeRun) control(data schema.Data) {
	r.w.tb.Helper()
	epoch := r.out.Epoch
	if d, ok := data.(*schema.RunResumedData); ok {
		c := r.checkpoint()
		d.From = schema.From{Epoch: c.Epoch, Sequence: c.Sequence, Digest: c.Digest}
		epoch++
		r.out.Epoch, r.out.Last, r.out.Executor = epoch, 0, d.Executor
	}
	e, err := schema.NewControl("default", "service-1", r.out.Run, epoch, rand.Text(), data, r.w.clock.Now())
	require.NoError(r.w.tb, err)
	require.NoError(r.w.tb, r.w.folder.keys.Sign(r.w.tb.Context(), e, r.checkpoint().Digest))
	r.send(e)
	r.folded()
}

func (r *lifeRun) send(e *schema.Event) {
	r.w.tb.Helper()
	header, body := e.Encode()
	msg := &nats.Msg{Subject: r.w.names.EventSubject(r.out.Run), Header: header, Data: body}
	ack, err := r.w.js.PublishMsg(r.w.tb.Context(), msg, jetstream.WithMsgID(e.ID))
	require.NoError(r.w.tb, err)
	r.last = schema.StreamSequence(ack.Sequence)
}

// checkpoint is the run's, fresh.
func (r *lifeRun) checkpoint() *schema.Checkpoint {
	r.w.tb.Helper()
	c, _, err := r.w.shard.Checkpoints.GetFresh(r.w.tb.Context(), r.out.Run)
	require.NoError(r.w.tb, err)
	return c
}

// folded waits until what was sent is checkpointed and the roster knows of it.
func (r *lifeRun) folded() {
	r.w.tb.Helper()
	r.settled(func(c *schema.Checkpoint) bool { return c.Position.Stream >= r.last })
}

// settled waits for a checkpoint that is as wanted, and for the roster to know of it.
func (r *lifeRun) settled(ok func(*schema.Checkpoint) bool) *schema.Checkpoint {
	r.w.tb.Helper()
	var c *schema.Checkpoint
	require.Eventually(r.w.tb, func() bool {
		r.w.clock.Forward(r.w.tick)
		var err error
		c, _, err = r.w.shard.Checkpoints.GetFresh(r.w.tb.Context(), r.out.Run)
		if err != nil || !ok(c) {
			return false
		}
		l, known := r.w.roster.Get(r.out.Run)
		want := schema.LiveOf(&c.Head)
		return known == c.Live() && (!known || l.Same(&want))
	}, time.Minute, 10*time.Millisecond)
	return c
}

// becomes waits until the run has the status.
func (r *lifeRun) becomes(status schema.Status) *schema.Checkpoint {
	r.w.tb.Helper()
	return r.settled(func(c *schema.Checkpoint) bool { return c.Status == status })
}

// stays is for a run that nothing was published for.
func (r *lifeRun) stays(status schema.Status) {
	r.w.tb.Helper()
	require.Zero(r.w.tb, r.w.stats.Orphaned.Load()+r.w.stats.Expired.Load()+r.w.stats.RacesLost.Load())
	require.Equal(r.w.tb, status, r.checkpoint().Status)
}

// lastData is the data of the run's last event.
func lastData[T any](r *lifeRun) *T {
	r.w.tb.Helper()
	stream, err := r.w.js.Stream(r.w.tb.Context(), r.w.names.EventStream())
	require.NoError(r.w.tb, err)
	m, err := stream.GetLastMsgForSubject(r.w.tb.Context(), r.w.names.EventSubject(r.out.Run))
	require.NoError(r.w.tb, err)
	e, err := schema.Decode(m.Header, m.Data)
	require.NoError(r.w.tb, err)
	require.True(r.w.tb, e.IsControl())
	data := new(T)
	require.NoError(r.w.tb, json.Unmarshal(e.Data, data))
	return data
}

// keyed gives a connection a key after it was made, for a server that asks for none: a fleet that it makes has that key.
func keyed(tb testing.TB) func(*nats.Conn) {
	tb.Helper()
	pair, err := nkeys.CreateUser()
	require.NoError(tb, err)
	public, err := pair.PublicKey()
	require.NoError(tb, err)
	return func(nc *nats.Conn) { nc.Opts.Nkey, nc.Opts.SignatureCB = public, pair.Sign }
}

// keyless is the ring of a fleet without keys.
func keyless() *keyring.Ring {
	return keyring.New("default", func(context.Context) ([]schema.FleetKey, error) { return nil, nil }, nil, nil)
}
