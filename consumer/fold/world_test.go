package fold_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// world is a fleet whose workers are tried from outside, and which hears the republished checkpoints.
type world struct {
	*foldtest.World
	heard chan *schema.Checkpoint
}

func newWorld(tb testing.TB) *world {
	tb.Helper()
	return newWorldOf(tb, kvstore.FleetConfig{Fleet: "default"})
}

func newWorldOf(tb testing.TB, fleet kvstore.FleetConfig) *world {
	tb.Helper()
	w := &world{foldtest.New(tb, fleet), make(chan *schema.Checkpoint, 1<<14)}
	sub, err := w.NC.Subscribe("waymark.checkpoints.default.0.*", func(m *nats.Msg) {
		if c, err := schema.DecodeCheckpoint(m.Data); err == nil {
			w.heard <- c
		}
	})
	require.NoError(tb, err)
	require.NoError(tb, w.NC.Flush())
	tb.Cleanup(func() { _ = sub.Unsubscribe() })
	return w
}

// FoldedTurn is run-1 with one turn, whose tool returned payload characters, folded up to at by a fold worker that has stopped.
func (w *world) FoldedTurn(payload int) (x *foldtest.Writer, at schema.StreamSequence, f *fold.Worker) {
	w.TB.Helper()
	f, stop := w.Fold(fold.Config{})
	x = w.Writer("run-1")
	x.Start()
	at = x.TurnOf(payload)
	w.Await("one turn", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
	stop()
	return x, at, f
}

// Await waits until a checkpoint satisfies the condition.
func (w *world) Await(what string, ok func(*schema.Checkpoint) bool) *schema.Checkpoint {
	w.TB.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case c := <-w.heard:
			if ok(c) {
				return c
			}
		case <-deadline:
			require.FailNow(w.TB, "no checkpoint in time", what)
		}
	}
}

// Limit sets the message size that a bucket accepts; larger messages are not stored, as on a full disk.
func (w *world) Limit(stream string, size int32) {
	w.TB.Helper()
	w.reconfigure(stream, func(c *jetstream.StreamConfig) { c.MaxMsgSize = size })
}

// Subjects sets the subjects of a bucket.
func (w *world) Subjects(stream string, subjects ...string) {
	w.TB.Helper()
	w.reconfigure(stream, func(c *jetstream.StreamConfig) { c.Subjects = subjects })
}

func (w *world) reconfigure(stream string, change func(*jetstream.StreamConfig)) {
	w.TB.Helper()
	s, err := w.JS.Stream(w.TB.Context(), stream)
	require.NoError(w.TB, err)
	config := s.CachedInfo().Config
	change(&config)
	_, err = w.JS.UpdateStream(w.TB.Context(), config)
	require.NoError(w.TB, err)
}

// AwaitPassed waits until the watermark has passed everything that was published.
func (w *world) AwaitPassed(at uint64) {
	w.TB.Helper()
	require.Eventually(w.TB, func() bool {
		mark, _, err := w.Shard.Checkpoints.Watermark(w.TB.Context())
		return err == nil && uint64(mark.Position.Stream) >= at
	}, time.Minute, time.Millisecond)
}
