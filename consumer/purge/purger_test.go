package purge_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/purge"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// noon is the time of the tests' purgers.
var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// world is a shard with an ended run that is folded and sealed, without a daemon.
type world struct {
	js    jetstream.JetStream
	shard *kvstore.Shard
	last  schema.StreamSequence
}

func newWorld(t *testing.T, events ...schema.Data) *world {
	t.Helper()
	w := &world{js: natstest.Start(t).JetStream(t)}
	require.NoError(t, kvstore.Provision(t.Context(), w.js, kvstore.FleetConfig{Fleet: "default", QuotaBytes: 64 << 20}))
	settings, _, err := kvstore.NewFleets(w.js).Get(t.Context(), "default")
	require.NoError(t, err)
	w.shard, err = kvstore.OpenShard(w.js, settings, 0, "test")
	require.NoError(t, err)
	run := schema.Writer{Fleet: "default", Run: "run-1", Executor: "executor-1", Epoch: 1}
	for _, data := range events {
		e, err := run.Event(data, 0, noon, 0)
		require.NoError(t, err)
		header, body := e.Encode()
		ack, err := w.js.PublishMsg(t.Context(), &nats.Msg{Subject: w.shard.Names.EventSubject("run-1"), Header: header, Data: body})
		require.NoError(t, err)
		w.last = schema.StreamSequence(ack.Sequence)
		require.NoError(t, run.Commit(e))
	}
	d, err := consumer.New(t.Context(), consumer.Config{
		Fleet: "default", Name: "daemon", Service: w.js, Fold: w.js, Alone: true, Worker: fold.Config{PurgeAfter: -1},
	}, time.Now, natstest.Logger(t))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	require.Eventually(t, func() bool {
		c, _, err := w.shard.Checkpoints.GetFresh(t.Context(), "run-1")
		return err == nil && c.Segments.Count > 0 && c.Segments.Last == c.Position && c.Position.Stream == w.last
	}, time.Minute, time.Millisecond)
	stop()
	require.NoError(t, <-done)
	return w
}

// purger has the whole run in its queue.
func (w *world) purger(t *testing.T, now func() time.Time) *purge.Purger {
	t.Helper()
	incarnation, err := w.shard.Incarnation(t.Context())
	require.NoError(t, err)
	p, err := purge.New(t.Context(), purge.Config{Holder: "daemon", After: time.Minute, Every: time.Second}, purge.Deps{
		Conn: w.js.Conn(), JS: w.js, Shard: w.shard, Stats: new(purge.Stats), Now: now, Log: natstest.Logger(t),
		Folded: func() schema.StreamSequence { return w.last }, Erased: func(string) {},
	}, incarnation, false)
	require.NoError(t, err)
	require.NoError(t, p.Sealing(t.Context(), "run-1", 1, w.last, 1000))
	return p
}

func TestPurger_OnlyEventIsTheLogsFirst_IsDoneWithTheRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &schema.RunEndedData{Status: "completed"})
	require.EqualValues(t, 1, w.last)
	left, err := purge.PurgeQueued(t.Context(), w.purger(t, func() time.Time { return noon }))
	require.NoError(t, err)
	require.Zero(t, left, "there is nothing to wait for")
}

// A proof is used within its time, counted up to the purge itself.
func TestPurger_ProofIsTooOldAtItsPurge_IsNotUsed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &schema.RunStartedData{Agent: "coder", Executor: "executor-1"}, &schema.TurnStartedData{Turn: 1}, &schema.RunEndedData{Status: "completed"})
	kept := func() int {
		list, err := w.shard.Checkpoints.History(t.Context(), "run-1")
		require.NoError(t, err)
		return len(list)
	}
	// One batch put one checkpoint; the same is put again, so that there are more.
	c, rev, err := w.shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	_, err = w.shard.Checkpoints.Put(t.Context(), c, rev)
	require.NoError(t, err)
	require.Greater(t, kept(), 1)
	// The process is paused after the last step before the purge.
	p := w.purger(t, func() time.Time {
		if kept() == 1 {
			return noon.Add(purge.ProofTrust + time.Second)
		}
		return noon
	})
	require.ErrorIs(t, purge.PurgeOnce(t.Context(), p, "run-1", w.last), purge.ErrSlowProof)
	require.Equal(t, 1, kept())
	require.NoError(t, purge.PurgeOnce(t.Context(), p, "run-1", w.last))
}
