package fold_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// awaitFolded waits until a fold worker has committed everything up to a place.
func awaitFolded(t *testing.T, f *fold.Worker, at uint64) {
	t.Helper()
	require.Eventually(t, func() bool { return f.Stats().Position.Load() >= at }, time.Minute, time.Millisecond)
}

// garbage publishes n messages that no fold accepts.
func (w *world) garbage(run string, n int) {
	w.TB.Helper()
	for i := range n {
		_, err := w.JS.PublishMsgAsync(&nats.Msg{Subject: w.Names.EventSubject(run), Data: fmt.Appendf(nil, "garbage %d", i)})
		require.NoError(w.TB, err)
	}
	<-w.JS.PublishAsyncComplete()
}

func TestFold_DeadLetters_InFlightTogetherAndBeforeTheWatermark(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 50
	w.garbage("run-1", n)
	require.NoError(t, w.JS.DeleteStream(t.Context(), schema.DeadLetterStream("default")))
	puts := make(chan *nats.Msg, 4*n)
	_, err := w.NC.ChanSubscribe(schema.DeadLetterSubjects("default"), puts) // instead of the stream
	require.NoError(t, err)
	require.NoError(t, w.NC.Flush())
	f, _ := w.Fold(fold.Config{})
	// batch returns the letters of one try, none of which is answered before the last one arrived.
	batch := func() (all []*nats.Msg) {
		for range n {
			select {
			case m := <-puts:
				require.Equal(t, fmt.Sprintf("garbage %d", len(all)), string(m.Data))
				all = append(all, m)
			case <-time.After(20 * time.Second):
				require.FailNow(t, "the next letter waits for an answer", "%d letters are under way", len(all))
			}
		}
		return all
	}
	ack := []byte(`{"stream":"S","seq":1}`)
	first := batch()
	for _, m := range first[1:] {
		require.NoError(t, m.Respond(ack))
	}
	passed := func() schema.StreamSequence {
		mark, _, err := w.Shard.Checkpoints.Watermark(t.Context())
		require.NoError(t, err)
		return mark.Position.Stream
	}
	require.Zero(t, passed(), "a letter is under way")
	require.NoError(t, first[0].Respond([]byte(`{"error":{"code":503,"err_code":10077,"description":"the disk failed"}}`)))
	// The term ends, as in a crash, and the next one stores all of them again.
	again := batch()
	require.Zero(t, passed(), "a letter was refused, so the watermark is not behind it")
	require.EqualValues(t, 1, f.Stats().Failures.Load())
	for i, m := range again {
		require.Equal(t, first[i].Header.Get(jetstream.MsgIDHeader), m.Header.Get(jetstream.MsgIDHeader), "the server tells it from a new one")
		require.NoError(t, m.Respond(ack))
	}
	awaitFolded(t, f, n)
	require.Zero(t, f.Stats().DeadLettersDropped.Load())
	require.Empty(t, puts)
}

func TestFold_FloodOfGarbage_FilesWhatItsRunMayAndCountsTheRest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 10 * fold.LettersOfRun
	w.garbage("flood", n)
	w.garbage("run-1", 1)
	f, _ := w.Fold(fold.Config{})
	awaitFolded(t, f, n+1)
	filed, dropped := f.Stats().DeadLetters.Load(), f.Stats().DeadLettersDropped.Load()
	require.EqualValues(t, n+1, filed+dropped)
	require.GreaterOrEqual(t, dropped, int64(fold.LettersOfRun), "some are allowed by the time that passed")
	require.GreaterOrEqual(t, filed, int64(fold.LettersOfRun+1))
	list := slices.DeleteFunc(fleettest.Letters(t, w.JS, "default"), func(l kvstore.DeadLetter) bool { return l.Run != "run-1" })
	require.Len(t, list, 1, "the letters of another run have their own quota")
	require.WithinDuration(t, time.Now(), list[0].Stored, time.Hour, "when the server stored the message")
	require.EqualValues(t, 0, f.Stats().Failures.Load())
}

func TestFold_DeadLetterTooLarge_ShardGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Limit(schema.DeadLetterStream("default"), 2<<10)
	_, err := w.JS.Publish(t.Context(), w.Names.EventSubject("run-1"), make([]byte, 4<<10))
	require.NoError(t, err)
	f, _ := w.Fold(fold.Config{})
	awaitFolded(t, f, 1)
	list := fleettest.Letters(t, w.JS, "default")
	require.Len(t, list, 1)
	require.Equal(t, 4<<10, list[0].Cut)

	// Not even its description fits.
	w.Limit(schema.DeadLetterStream("default"), 10)
	w.garbage("run-1", 1)
	awaitFolded(t, f, 2)
	require.EqualValues(t, 1, f.Stats().DeadLetters.Load())
	require.EqualValues(t, 1, f.Stats().DeadLettersDropped.Load())
	require.Zero(t, f.Stats().Failures.Load())
}
