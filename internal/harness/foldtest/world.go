package foldtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// World is a provisioned fleet on a real server.
type World struct {
	TB     testing.TB
	Server *natstest.Server
	NC     *nats.Conn
	JS     jetstream.JetStream
	Fleet  kvstore.FleetConfig
	Shard  *kvstore.Shard
	Names  schema.Names
}

// New makes a world of shard 0 of the fleet default.
func New(tb testing.TB, fleet kvstore.FleetConfig) *World {
	tb.Helper()
	server := natstest.Start(tb)
	w := &World{
		TB: tb, Server: server, NC: server.Conn(tb), Fleet: fleet,
		Names: schema.NamesOf("default", 0),
	}
	w.JS = JetStream(tb, w.NC)
	w.Provision()
	w.Shard = w.Open("tester")
	return w
}

// JetStream is a client of JetStream on a connection.
func JetStream(tb testing.TB, nc *nats.Conn) jetstream.JetStream {
	tb.Helper()
	js, err := jetstream.New(nc)
	require.NoError(tb, err)
	return js
}

// Provision makes the fleet's streams and buckets, or those that are missing.
func (w *World) Provision() {
	w.TB.Helper()
	require.NoError(w.TB, kvstore.Provision(w.TB.Context(), w.JS, w.Fleet))
}

// Open opens the shard for a daemon.
func (w *World) Open(daemon string) *kvstore.Shard {
	w.TB.Helper()
	settings, _, err := kvstore.NewFleets(w.JS).Get(w.TB.Context(), "default")
	require.NoError(w.TB, err)
	shard, err := kvstore.OpenShard(w.JS, settings, 0, daemon)
	require.NoError(w.TB, err)
	return shard
}

// Logger writes to a test's own log, but for that of a fuzz test, which must not be written to from within.
func Logger(tb testing.TB) zerolog.Logger {
	tb.Helper()
	if _, fuzz := tb.(*testing.F); fuzz {
		return zerolog.Nop()
	}
	return natstest.Logger(tb)
}

// Fold starts a fold worker and returns it with the function that stops it and waits for its end.
func (w *World) Fold(cfg fold.Config) (*fold.Worker, func()) {
	w.TB.Helper()
	cfg.Fleet = "default"
	if cfg.Holder == "" {
		cfg.Holder = "worker-1"
	}
	if cfg.ReconcileEvery == 0 {
		cfg.ReconcileEvery = 50 * time.Millisecond
	}
	cfg.LeaseTTL = time.Second
	cfg.Reprovision = func(ctx context.Context) error { return kvstore.Provision(ctx, w.JS, w.Fleet) }
	nc := w.Server.Conn(w.TB)
	f, err := fold.New(cfg, nc, JetStream(w.TB, nc), w.Open(cfg.Holder), time.Now, Logger(w.TB))
	require.NoError(w.TB, err)
	return f, w.Run(f)
}

// Run runs a fold worker and returns the function that stops it and waits for its end.
func (w *World) Run(f *fold.Worker) func() {
	w.TB.Helper()
	ctx, cancel := context.WithCancel(w.TB.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		require.NoError(w.TB, <-done)
	})
	w.TB.Cleanup(stop)
	return stop
}

// Segments decodes all segments of the run that a checkpoint counts, checks their links, and returns their records.
func (w *World) Segments(c *schema.Checkpoint) []schema.Record {
	w.TB.Helper()
	var all []schema.Record
	before := schema.SegmentInfo{}
	for n := 1; n <= c.Segments.Count; n++ {
		stored, err := w.Shard.Segments.GetFresh(w.TB.Context(), c.Run, n)
		require.NoError(w.TB, err)
		require.LessOrEqual(w.TB, len(stored), schema.MaxSegment)
		info, frames, err := schema.DecodeSegment(stored)
		require.NoError(w.TB, err)
		require.Equal(w.TB, before.DigestAfter, info.DigestBefore)
		require.NoError(w.TB, schema.ReadFrames(frames, func(r schema.Record) bool {
			all = append(all, r)
			return true
		}))
		before = info
	}
	if c.Segments.Count > 0 {
		require.Equal(w.TB, before.Last, c.Segments.Last)
		require.Equal(w.TB, before.DigestAfter, c.Segments.Digest)
	}
	require.Len(w.TB, all, int(c.Segments.Events))
	return all
}

// LoseSegment takes a segment of a run out of its bucket, as damage does.
func (w *World) LoseSegment(run string, n int) {
	w.TB.Helper()
	stream, err := w.JS.Stream(w.TB.Context(), "KV_"+w.Names.SegmentBucket())
	require.NoError(w.TB, err)
	require.NoError(w.TB, stream.Purge(w.TB.Context(), jetstream.WithPurgeSubject("$KV."+w.Names.SegmentBucket()+"."+schema.SegmentKey(run, n))))
}

// Hasty is the configuration of a fold worker that seals early and purges at once.
func Hasty() fold.Config {
	return fold.Config{
		SealBytes: 2 << 10, SealMaxBytes: 8 << 10, SealEvents: 8, SealMaxEvents: 32,
		PurgeAfter: 20 * time.Millisecond, Synced: true, SweepEvery: 5 * time.Millisecond, Silence: time.Minute,
	}
}

// Log is the log of a run.
func (w *World) Log(run string) []schema.Record {
	w.TB.Helper()
	var all []schema.Record
	require.NoError(w.TB, eventlog.Read(w.TB.Context(), w.JS, w.Names, run, 1, func(rec schema.Record) error {
		all = append(all, rec)
		return nil
	}))
	return all
}

// AwaitPurged waits until the log of the run has nothing before its first event that is not sealed.
func (w *World) AwaitPurged(x *Writer) *schema.Checkpoint {
	w.TB.Helper()
	var c *schema.Checkpoint
	require.Eventually(w.TB, func() bool {
		var err error
		c, _, err = w.Shard.Checkpoints.GetFresh(w.TB.Context(), x.Run.Run)
		if err != nil || uint64(c.Position.Stream) != x.Last || c.Segments.Count == 0 {
			return false
		}
		for _, rec := range w.Log(x.Run.Run) {
			if rec.Stream <= c.Segments.Last.Stream && rec.Stream < c.Position.Stream {
				return false
			}
		}
		return true
	}, time.Minute, 10*time.Millisecond, "not purged")
	return c
}

// RequireWhole compares the rest of a run, segments and log, with its acknowledged events.
func (w *World) RequireWhole(x *Writer, c *schema.Checkpoint) {
	w.TB.Helper()
	require.Equal(w.TB, x.Model(), c.Head)
	all := w.Segments(c)
	for _, rec := range w.Log(x.Run.Run) {
		if rec.Stream > c.Segments.Last.Stream {
			all = append(all, rec)
		}
	}
	require.Len(w.TB, all, len(x.Acked))
	for i := range all {
		require.True(w.TB, all[i].Equal(&x.Acked[i]), "record %d", i)
	}
}
