package backup_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/verify"
	"github.com/waymarkio/waymark/internal/copy/backup"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestMain(m *testing.M) { natstest.Main(m) }

const fleet = "alpha"

// world is a fleet on a server.
type world struct {
	tb       testing.TB
	nc       *nats.Conn
	js       jetstream.JetStream
	settings schema.FleetSettings
}

// onServer is a server without a fleet.
func onServer(tb testing.TB, nc *nats.Conn) *world {
	tb.Helper()
	js, err := jetstream.New(nc)
	require.NoError(tb, err)
	return &world{tb: tb, nc: nc, js: js}
}

func empty(tb testing.TB) *world {
	tb.Helper()
	return onServer(tb, natstest.Start(tb).Conn(tb))
}

func newWorld(tb testing.TB, shards int) *world {
	tb.Helper()
	w := empty(tb)
	w.provision(kvstore.FleetConfig{Fleet: fleet, Shards: shards, QuotaBytes: 256 << 20})
	return w
}

func (w *world) provision(cfg kvstore.FleetConfig) {
	w.tb.Helper()
	require.NoError(w.tb, kvstore.Provision(w.tb.Context(), w.js, cfg))
	w.load()
}

// load reads the fleet's settings.
func (w *world) load() {
	w.tb.Helper()
	var err error
	w.settings, _, err = kvstore.NewFleets(w.js).Get(w.tb.Context(), fleet)
	require.NoError(w.tb, err)
}

func (w *world) shard(i int) *kvstore.Shard {
	w.tb.Helper()
	s, err := kvstore.OpenShard(w.js, w.settings, i, "tester")
	require.NoError(w.tb, err)
	return s
}

// fold folds all shards, seals often and purges at once, until the function that it returns is called.
func (w *world) fold() (stop func()) {
	w.tb.Helper()
	ctx, cancel := context.WithCancel(w.tb.Context())
	daemon, err := consumer.New(ctx, consumer.Config{
		Fleet: fleet, Name: "daemon-1", Service: w.js, Fold: w.js, Alone: true,
		Worker: fold.Config{
			SealBytes: 8 << 10, SealEvents: 12, PurgeAfter: time.Millisecond, Synced: true,
			ReconcileEvery: 20 * time.Millisecond, LeaseTTL: time.Second, SafeAfter: time.Second, Silence: time.Hour,
		},
	}, time.Now, natstest.Logger(w.tb))
	require.NoError(w.tb, err)
	done := make(chan error, 1)
	go func() { done <- daemon.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(w.tb, <-done)
	})
	w.tb.Cleanup(stop)
	return stop
}

// writer publishes a run as an executor would, and keeps what was acknowledged.
type writer struct {
	w     *world
	run   schema.Writer
	names schema.Names
	last  uint64
	turn  int32

	mu    sync.Mutex
	acked []schema.Record
}

func (w *world) writer(run string) *writer {
	return &writer{
		w: w, run: schema.Writer{Fleet: fleet, Run: run, Executor: "exec-1", Epoch: 1},
		names: schema.NamesOf(fleet, schema.ShardOf(run, w.settings.Shards)),
	}
}

func (x *writer) publish(ctx context.Context, d schema.Data) error {
	e, err := x.run.Event(d, x.turn, time.Now(), 0)
	if err != nil {
		return err
	}
	header, body := e.Encode()
	ack, err := x.w.js.PublishMsg(ctx, &nats.Msg{Subject: x.names.EventSubject(x.run.Run), Header: header, Data: body},
		jetstream.WithMsgID(e.ID), jetstream.WithExpectLastSequencePerSubject(x.last))
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.last = ack.Sequence
	x.acked = append(x.acked, schema.NewRecord(schema.StreamSequence(ack.Sequence), header, body))
	return x.run.Commit(e)
}

func (x *writer) start(ctx context.Context) error {
	return x.publish(ctx, &schema.RunStartedData{Agent: "coder", Executor: "exec-1"})
}

// oneTurn publishes a turn of four events with a tool's result of so many bytes.
func (x *writer) oneTurn(ctx context.Context, payload int) error {
	x.turn++
	id := fmt.Sprintf("call-%d", x.turn)
	result := make([]byte, payload+2)
	for i := range result {
		result[i] = 'a' + byte((int(x.turn)*31+i*i)%23)
	}
	result[0], result[len(result)-1] = '"', '"'
	for _, d := range []schema.Data{
		&schema.TurnStartedData{Turn: x.turn, Messages: []schema.Message{{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("go on")}}}},
		&schema.ToolCalledData{ToolCallID: id, Name: "read", Arguments: []byte(`{"path":"a"}`), Replay: schema.ReplayPure},
		&schema.ToolReturnedData{ToolCallID: id, Result: result},
		&schema.TurnEndedData{Turn: x.turn, Messages: []schema.Message{{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("done")}}}},
	} {
		if err := x.publish(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// acknowledged are the records so far.
func (x *writer) acknowledged() []schema.Record {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clip(x.acked)
}

// upTo is the fold of the acknowledged records up to a position, and the number of records.
func (x *writer) upTo(cut schema.StreamSequence) (schema.Head, int) {
	h, n := schema.NewHead(fleet, x.run.Run), 0
	records := x.acknowledged()
	for i := range records {
		if records[i].Stream <= cut {
			h.Apply(schema.NoKeys, &records[i])
			n++
		}
	}
	return h, n
}

func (w *world) take(dir string, on func(string, uint64)) (*backup.Manifest, error) {
	w.tb.Helper()
	return backup.Take(w.tb.Context(), w.js, backup.Config{Fleet: fleet, Dir: dir, Actor: "tester", Now: time.Now, OnStream: on})
}

// takeWhile takes a backup. do is called when a try begins to read the segments, with the number of the try.
func (w *world) takeWhile(dir string, do func(try int)) (m *backup.Manifest, tries int, err error) {
	w.tb.Helper()
	m, err = w.take(dir, func(stream string, _ uint64) {
		if stream == "KV_"+schema.NamesOf(fleet, 0).SegmentBucket() {
			tries++
			do(tries)
		}
	})
	return m, tries, err
}

func target(tb testing.TB) string {
	tb.Helper()
	return filepath.Join(tb.TempDir(), "backup")
}

// requireRun asserts that a run in w is x's published run up to the cut, without damage.
func (w *world) requireRun(x *writer, cut schema.StreamSequence) (records int) {
	w.tb.Helper()
	want, n := x.upTo(cut)
	v, err := verify.Run(w.tb.Context(), w.js, w.shard(x.names.Shard), fleet, x.run.Run)
	require.NoError(w.tb, err)
	require.Empty(w.tb, v.Findings, "run %s", x.run.Run)
	require.Equal(w.tb, want.Digest, v.Digest, "run %s: digest", x.run.Run)
	require.Equal(w.tb, want.Position, v.Position, "run %s: the place of its last event", x.run.Run)
	require.EqualValues(w.tb, n, v.Records, "run %s", x.run.Run)
	return n
}
