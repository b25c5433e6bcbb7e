package fold_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/schema"
)

// One log is folded three times: with room for every tail, for some, for none.
func TestSeal_FromMemoryOrLog_SameSegments(t *testing.T) {
	if testing.Short() {
		t.Skip("short: the runs are folded and sealed twice")
	}
	t.Parallel()
	const runs = 5
	folded := func(room int64) (stored [][]byte, read int) {
		w := newWorld(t)
		writers := make([]*foldtest.Writer, runs)
		for i := range writers {
			writers[i] = w.Writer(fmt.Sprintf("run-%d", i))
			writers[i].Start()
		}
		for n := range 12 {
			for i, x := range writers {
				x.TurnOf(600 * (1 + (i+n)%4))
			}
		}
		var at schema.StreamSequence
		for _, x := range writers {
			at = x.Publish(&schema.RunEndedData{Status: "completed"}, 0)
		}
		f, stop := w.Fold(fold.Config{SealBytes: 8 << 10, SealMaxBytes: 12 << 10, BatchEvents: 40, TailMemory: room})
		w.Await("all", func(c *schema.Checkpoint) bool { return c.Position.Stream >= at })
		stop()
		for _, x := range writers {
			c, _, err := w.Shard.Checkpoints.GetFresh(t.Context(), x.Run.Run)
			require.NoError(t, err)
			require.Len(t, w.Segments(c), len(x.Acked))
			for n := 1; n <= c.Segments.Count; n++ {
				b, err := w.Shard.Segments.GetFresh(t.Context(), x.Run.Run, n)
				require.NoError(t, err)
				stored = append(stored, timeless(t, b))
			}
		}
		return stored, int(f.Stats().SealedFromLog.Load())
	}
	memory, read := folded(0)
	require.Zero(t, read)
	require.Greater(t, len(memory), 2*runs)
	log, read := folded(-1)
	require.Len(t, log, read)
	require.Equal(t, memory, log)
	both, some := folded(24 << 10)
	require.Positive(t, some)
	require.Less(t, some, len(both))
	require.Equal(t, memory, both)
}

// timeless is a segment without the server's times of storage, because the compared logs are from different moments.
func timeless(t *testing.T, stored []byte) []byte {
	t.Helper()
	info, frames, err := schema.DecodeSegment(stored)
	require.NoError(t, err)
	var bare []byte
	require.NoError(t, schema.ReadFrames(frames, func(rec schema.Record) bool {
		require.NotZero(t, rec.Stored)
		rec.Stored, rec.Behind = 0, 0
		bare = schema.AppendFrame(bare, &rec)
		return true
	}))
	again, err := schema.EncodeSegment(info, nil, bare)
	require.NoError(t, err)
	return again
}
