package service_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func (w *serviceWorld) retry(run string) schema.RetryReply {
	w.TB.Helper()
	a, err := w.ask(schema.VerbRetry, run, []byte(nil))
	require.NoError(w.TB, err)
	return *decodeAs[schema.RetryReply](w.TB, a.first)
}

// foldedBy gives a service the fold worker of its only shard, which may begin later.
func foldedBy(f *atomic.Pointer[fold.Worker]) setup {
	return func(_ *kvstore.FleetConfig, c *serviceConfig) {
		c.Worker = func(int) service.Worker {
			if w := f.Load(); w != nil {
				return w
			}
			return nil
		}
	}
}

func TestRetry_ParkedRun_WorkerReportsOutcome(t *testing.T) {
	t.Parallel()
	var worker atomic.Pointer[fold.Worker]
	w := newServiceWorld(t, foldedBy(&worker))
	settings, _, err := kvstore.NewFleets(w.JS).Get(t.Context(), "default")
	require.NoError(t, err)
	w.serve(settings, service.Config{Name: "service-2"}) // it does not fold
	w.Limit("KV_"+w.Names.CheckpointBucket(), 3<<10)
	f, stop := w.Fold(fold.Config{})
	worker.Store(f)
	x := w.writer("large")
	x.Start()
	grow := func() {
		t.Helper()
		for i := range 12 {
			x.Publish(&schema.PhaseCompletedData{Phase: strings.Repeat("p", 250) + string(rune('a'+i))}, 0)
		}
		w.AwaitPassed(x.Last)
		require.Len(t, w.Parked(), 1)
	}
	grow()
	require.Equal(t, 1, w.Parked()[0].Tries)

	for tries := 2; tries < 5; tries++ { // its pause would be minutes by then
		got := w.retry("large")
		require.True(t, got.Tried)
		require.NotNil(t, got.Parked)
		require.Equal(t, tries, got.Parked.Tries)
		require.Contains(t, got.Parked.Why, "too large")
	}
	require.Equal(t, schema.CodeNotFound, w.refused(schema.VerbRetry, "unknown", []byte(nil)).Code)
	var many sync.WaitGroup
	for range 20 {
		many.Go(func() {
			reply, err := w.client.Request(schema.ServiceSubject(schema.VerbRetry, "default", "large"), nil, testTimeout)
			require.NoError(t, err)
			require.Contains(t, string(reply.Data), "too large", "each is answered, however many ask at once")
		})
	}
	many.Wait()

	w.Limit("KV_"+w.Names.CheckpointBucket(), -1)
	require.Equal(t, schema.RetryReply{Run: "large", Tried: true}, w.retry("large"))
	require.Eventually(t, func() bool { return len(w.Parked()) == 0 }, time.Minute, time.Millisecond)
	c, _, err := w.Shard.Checkpoints.GetFresh(t.Context(), "large")
	require.NoError(t, err)
	w.RequireWhole(x.Writer, c)
	require.Equal(t, schema.RetryReply{Run: "large"}, w.retry("large"), "it is parked no more")

	w.Limit("KV_"+w.Names.CheckpointBucket(), 3<<10)
	grow()
	stop()
	_, err = w.client.Request(schema.ServiceSubject(schema.VerbRetry, "default", "large"), nil, 300*time.Millisecond)
	require.ErrorIs(t, err, nats.ErrTimeout, "without a fold worker no replica answers")
	require.Zero(t, f.Stats().Failures.Load())
}
