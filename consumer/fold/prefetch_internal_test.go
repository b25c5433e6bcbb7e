package fold

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// Otherwise a gap would be folded over permanently.
func TestWorker_StoppedAfterSkippedChunk_FoldsNothingLater(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	linger := time.NewTimer(time.Hour)
	defer linger.Stop()
	s := (&Worker{cfg: Config{Fleet: "default", Holder: "worker-1"}.withDefaults()}).newTerm()
	barrier := func(pending uint64) *chunk {
		l := &chunk{ready: make(chan struct{})}
		l.messages = []message{{Arrived: eventlog.Arrived{Pending: pending}, run: schema.BarrierRun}}
		return l
	}
	for range 200 {
		in := make(chan *chunk, 2)
		first, second := barrier(1), barrier(2)
		close(second.ready)
		in <- first
		in <- second
		b := &batch{}
		require.NoError(t, s.gather(ctx, b, in, linger))
		require.Zero(t, b.behind, "the second lot was folded and the first was not")
	}
}

// The chunk that a batch skipped comes before it.
func TestWorker_Stopped_TakesNoFurtherBatch(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := (&Worker{cfg: Config{Fleet: "default", Holder: "worker-1"}.withDefaults()}).newTerm()
	for range 200 {
		in := make(chan *chunk, 1)
		l := &chunk{ready: make(chan struct{}), messages: []message{{Arrived: eventlog.Arrived{Pending: 7}, run: schema.BarrierRun}}}
		close(l.ready)
		in <- l
		require.NoError(t, s.fold(ctx, in))
		require.Len(t, in, 1)
	}
}

// Catching up costs a put of every run per batch.
func TestBatch_FarBehindLog_LargerAndBoundedInBytes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		size         int
		pending      uint64
		events, left int
	}{
		{"caught up", 1, 0, 10, 40},
		{"another batch behind", 1, 10, 10, 40},
		{"more than another batch behind", 1, 11, 40, 10},
		{"far behind, large events", 100, 1000, 20, 30},
	} {
		t.Run(c.name, func(t *testing.T) {
			linger := time.NewTimer(time.Hour)
			defer linger.Stop()
			cfg := Config{Fleet: "default", Holder: "worker-1", BatchEvents: 10, BatchBytes: 2000, Linger: time.Hour}
			s := (&Worker{cfg: cfg.withDefaults(), now: time.Now}).newTerm()
			in := make(chan *chunk, 50)
			for range cap(in) {
				a := message{Arrived: eventlog.Arrived{Pending: c.pending}, run: "no run", size: c.size}
				a.prepared = schema.Prepare(schema.NoKeys, &a.Record)
				l := &chunk{ready: make(chan struct{}), messages: []message{a}}
				close(l.ready)
				in <- l
			}
			b := new(batch)
			require.NoError(t, s.gather(t.Context(), b, in, linger))
			require.Equal(t, c.events, b.events)
			require.Len(t, in, c.left)
		})
	}
}
