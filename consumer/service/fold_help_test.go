package service_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// foldWorld is a provisioned fleet on a real server, with an ear on the republished checkpoints.
type foldWorld struct {
	tb     testing.TB
	server *natstest.Server
	nc     *nats.Conn
	js     jetstream.JetStream
	fleet  kvstore.FleetConfig
	shard  *kvstore.Shard
	names  schema.Names
	heard  chan *schema.Checkpoint
}

func newFoldWorld(tb testing.TB) *foldWorld {
	tb.Helper()
	return newFoldWorldOf(tb, kvstore.FleetConfig{Fleet: "default"})
}

// newFoldWorldOf makes a world of shard 0 of the fleet default.
func newFoldWorldOf(tb testing.TB, fleet kvstore.FleetConfig) *foldWorld {
	tb.Helper()
	server := natstest.Start(tb)
	w := &foldWorld{
		tb: tb, server: server, nc: server.Conn(tb), fleet: fleet,
		names: schema.NamesOf("default", 0), heard: make(chan *schema.Checkpoint, 1<<14),
	}
	w.js = newJS(tb, w.nc)
	w.provision()
	w.shard = w.open("tester")
	sub, err := w.nc.Subscribe("waymark.checkpoints.default.0.*", func(m *nats.Msg) {
		if c, err := schema.DecodeCheckpoint(m.Data); err == nil {
			w.heard <- c
		}
	})
	require.NoError(tb, err)
	require.NoError(tb, w.nc.Flush())
	tb.Cleanup(func() { _ = sub.Unsubscribe() })
	return w
}

func newJS(tb testing.TB, nc *nats.Conn) jetstream.JetStream {
	tb.Helper()
	js, err := jetstream.New(nc)
	require.NoError(tb, err)
	return js
}

func (w *foldWorld) provision() {
	w.tb.Helper()
	require.NoError(w.tb, kvstore.Provision(w.tb.Context(), w.js, w.fleet))
}

func (w *foldWorld) open(daemon string) *kvstore.Shard {
	w.tb.Helper()
	settings, _, err := kvstore.NewFleets(w.js).Get(w.tb.Context(), "default")
	require.NoError(w.tb, err)
	shard, err := kvstore.OpenShard(w.js, settings, 0, daemon)
	require.NoError(w.tb, err)
	return shard
}

// loggerOf writes to a test's own log, but for that of a fuzz test, which must not be written to from within.
func loggerOf(tb testing.TB) zerolog.Logger {
	tb.Helper()
	if _, fuzz := tb.(*testing.F); fuzz {
		return zerolog.Nop()
	}
	return natstest.Logger(tb)
}

// fold starts a fold worker and returns it with the function that stops it and waits for its end.
func (w *foldWorld) fold(cfg fold.Config) (*fold.Worker, func()) {
	w.tb.Helper()
	cfg.Fleet = "default"
	if cfg.Holder == "" {
		cfg.Holder = "worker-1"
	}
	if cfg.ReconcileEvery == 0 {
		cfg.ReconcileEvery = 50 * time.Millisecond
	}
	cfg.LeaseTTL = time.Second
	cfg.Reprovision = func(ctx context.Context) error { return kvstore.Provision(ctx, w.js, w.fleet) }
	nc := w.server.Conn(w.tb)
	f, err := fold.New(cfg, nc, newJS(w.tb, nc), w.open(cfg.Holder), time.Now, loggerOf(w.tb))
	require.NoError(w.tb, err)
	return f, w.run(f)
}

// run runs a fold worker and returns the function that stops it and waits for its end.
func (w *foldWorld) run(f *fold.Worker) func() {
	w.tb.Helper()
	ctx, cancel := context.WithCancel(w.tb.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		require.NoError(w.tb, <-done)
	})
	w.tb.Cleanup(stop)
	return stop
}

// foldedTurn is run-1 with one turn, whose tool returned payload characters, folded up to at by a fold worker that has stopped.
func (w *foldWorld) foldedTurn(payload int) (x *writer, at schema.StreamSequence, f *fold.Worker) {
	w.tb.Helper()
	f, stop := w.fold(fold.Config{})
	x = w.writer("run-1")
	x.start()
	at = x.turnOf(payload)
	w.await("one turn", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
	stop()
	return x, at, f
}

// await waits until a checkpoint satisfies the condition.
func (w *foldWorld) await(what string, ok func(*schema.Checkpoint) bool) *schema.Checkpoint {
	w.tb.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case c := <-w.heard:
			if ok(c) {
				return c
			}
		case <-deadline:
			require.FailNow(w.tb, "no checkpoint in time", what)
		}
	}
}

// writer publishes the events of one run by compare-and-set, as an executor would, and keeps what was acknowledged.
type writer struct {
	w     *foldWorld
	run   schema.Writer
	last  uint64
	acked []schema.Record
	turn  int32
}

// stamp gives what the writer has acknowledged what the server says of it, as far as the log still has it.
func (x *writer) stamp() {
	x.w.tb.Helper()
	at := map[schema.StreamSequence]schema.Record{}
	names := schema.NamesOf(x.run.Fleet, x.w.names.Shard)
	require.NoError(x.w.tb, eventlog.Read(x.w.tb.Context(), x.w.js, names, x.run.Run, 1, func(rec schema.Record) error {
		at[rec.Stream] = rec
		return nil
	}))
	for i := range x.acked {
		if rec, there := at[x.acked[i].Stream]; there {
			x.acked[i].Stored, x.acked[i].Behind = rec.Stored, rec.Behind
		}
	}
}

func (w *foldWorld) writer(run string) *writer {
	return &writer{w: w, run: schema.Writer{Fleet: "default", Run: run, Executor: "executor-1", Epoch: 1}}
}

func (x *writer) publish(d schema.Data, turn int32) schema.StreamSequence {
	x.w.tb.Helper()
	e, err := x.run.Event(d, turn, time.Unix(1_700_000_000+int64(x.run.Last), 0), 0)
	require.NoError(x.w.tb, err)
	require.NoError(x.w.tb, x.run.Commit(e))
	return x.send(e)
}

func (x *writer) send(e *schema.Event) schema.StreamSequence {
	x.w.tb.Helper()
	header, body := e.Encode()
	msg := &nats.Msg{Subject: x.w.names.EventSubject(x.run.Run), Header: header, Data: body}
	ack, err := x.w.js.PublishMsg(x.w.tb.Context(), msg, jetstream.WithMsgID(e.ID),
		jetstream.WithExpectLastSequencePerSubject(x.last))
	require.NoError(x.w.tb, err)
	x.last = ack.Sequence
	x.acked = append(x.acked, schema.NewRecord(schema.StreamSequence(ack.Sequence), header, body))
	return schema.StreamSequence(ack.Sequence)
}

func (x *writer) start() schema.StreamSequence {
	return x.publish(&schema.RunStartedData{Agent: "agent-1", Executor: "executor-1"}, 0)
}

// turnOf publishes one turn with one tool call; payload is the size of its result.
func (x *writer) turnOf(payload int) schema.StreamSequence {
	x.turn++
	id := fmt.Sprintf("call-%d", x.turn)
	x.publish(&schema.TurnStartedData{Turn: x.turn, Messages: []schema.Message{{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("go on")}}}}, x.turn)
	x.publish(&schema.ToolCalledData{ToolCallID: id, Name: "read", Arguments: []byte(`{"path":"a"}`), Replay: schema.ReplayPure}, x.turn)
	x.publish(&schema.ToolReturnedData{ToolCallID: id, Result: noise(payload, int64(x.turn))}, x.turn)
	return x.publish(&schema.TurnEndedData{Turn: x.turn, Messages: []schema.Message{{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("done")}}}}, x.turn)
}

// noise is a JSON string of n characters that does not compress well.
func noise(n int, seed int64) []byte {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	b := make([]byte, n+2)
	x := uint64(seed)*0x9e3779b97f4a7c15 + 1 //nolint:gosec // a seed
	for i := 1; i <= n; i++ {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = letters[x%64]
	}
	b[0], b[n+1] = '"', '"'
	return b
}

// model folds what was acknowledged, without any of the machinery under test but the pure fold.
func (x *writer) model() schema.Head {
	h := schema.NewHead("default", x.run.Run)
	for i := range x.acked {
		h.Apply(schema.NoKeys, &x.acked[i])
	}
	return h
}

// segments decodes all segments of the run that a checkpoint counts, checks their links, and returns their records.
func (w *foldWorld) segments(c *schema.Checkpoint) []schema.Record {
	w.tb.Helper()
	var all []schema.Record
	before := schema.SegmentInfo{}
	for n := 1; n <= c.Segments.Count; n++ {
		stored, err := w.shard.Segments.GetFresh(w.tb.Context(), c.Run, n)
		require.NoError(w.tb, err)
		require.LessOrEqual(w.tb, len(stored), schema.MaxSegment)
		info, frames, err := schema.DecodeSegment(stored)
		require.NoError(w.tb, err)
		require.Equal(w.tb, before.DigestAfter, info.DigestBefore)
		require.NoError(w.tb, schema.ReadFrames(frames, func(r schema.Record) bool {
			all = append(all, r)
			return true
		}))
		before = info
	}
	if c.Segments.Count > 0 {
		require.Equal(w.tb, before.Last, c.Segments.Last)
		require.Equal(w.tb, before.DigestAfter, c.Segments.Digest)
	}
	require.Len(w.tb, all, int(c.Segments.Events))
	return all
}

// loseSegment takes a segment of a run out of its bucket, as damage does.
func (w *foldWorld) loseSegment(run string, n int) {
	w.tb.Helper()
	stream, err := w.js.Stream(w.tb.Context(), "KV_"+w.names.SegmentBucket())
	require.NoError(w.tb, err)
	require.NoError(w.tb, stream.Purge(w.tb.Context(), jetstream.WithPurgeSubject("$KV."+w.names.SegmentBucket()+"."+schema.SegmentKey(run, n))))
}
