package kvstore_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// benchRuns is the number of runs that take turns, and so the size of a batch.
const benchRuns = 256

// BenchmarkPut compares checkpoint puts with raw JetStream publishes of the same bytes: sync one at a time, async
// many at a time; raw into a plain stream that syncs always, like the log, and into one with the checkpoint bucket's
// asynchronous persistence.
func BenchmarkPut(b *testing.B) {
	s := newBench(b, natstest.SyncAlways())
	cp := checkpoint("run-0", 1)
	for i := range schema.WindowEvents {
		cp.Window = append(cp.Window, fmt.Sprintf("%016x", i))
	}
	value, err := schema.EncodeCheckpoint(cp)
	require.NoError(b, err)
	for name, mode := range map[string]jetstream.PersistModeType{
		"synced": jetstream.DefaultPersistMode, "async": jetstream.AsyncPersistMode,
	} {
		_, err := s.js.CreateStream(b.Context(), jetstream.StreamConfig{
			Name: "RAW_" + name, Subjects: []string{"raw." + name + ".*"}, MaxMsgsPerSubject: 5, PersistMode: mode,
		})
		require.NoError(b, err)
	}
	cps := s.shard.Checkpoints
	revs := make([]schema.Revision, benchRuns)
	at := schema.StreamSequence(0)
	item := func(i int) kvstore.Item {
		at++
		c := *cp
		c.Run, c.Position.Stream = fmt.Sprintf("run-%d", i), at
		return kvstore.Item{Checkpoint: &c, Revision: revs[i]}
	}
	for i, r := range cps.PutBatch(b.Context(), items(item)) {
		require.NoError(b, r.Err)
		revs[i] = r.Revision
	}

	b.Run("sync/checkpoint", func(b *testing.B) {
		b.SetBytes(int64(len(value)))
		for i := 0; b.Loop(); i++ {
			it := item(i % benchRuns)
			rev, err := cps.Put(b.Context(), it.Checkpoint, it.Revision)
			require.NoError(b, err)
			revs[i%benchRuns] = rev
		}
	})
	for _, name := range []string{"synced", "async"} {
		b.Run("sync/raw-"+name, func(b *testing.B) {
			b.SetBytes(int64(len(value)))
			for i := 0; b.Loop(); i++ {
				_, err := s.js.Publish(b.Context(), fmt.Sprintf("raw.%s.%d", name, i%benchRuns), value)
				require.NoError(b, err)
			}
		})
	}
	b.Run("batch/checkpoint", func(b *testing.B) {
		b.SetBytes(int64(len(value)) * benchRuns)
		for b.Loop() {
			for i, r := range cps.PutBatch(b.Context(), items(item)) {
				require.NoError(b, r.Err)
				revs[i] = r.Revision
			}
		}
		b.ReportMetric(float64(b.N)*benchRuns/b.Elapsed().Seconds(), "puts/s")
	})
	for _, name := range []string{"synced", "async"} {
		b.Run("batch/raw-"+name, func(b *testing.B) {
			b.SetBytes(int64(len(value)) * benchRuns)
			for b.Loop() {
				futures := make([]jetstream.PubAckFuture, benchRuns)
				for i := range futures {
					f, err := s.js.PublishMsgAsync(&nats.Msg{Subject: fmt.Sprintf("raw.%s.%d", name, i), Data: value})
					require.NoError(b, err)
					futures[i] = f
				}
				for _, f := range futures {
					select {
					case <-f.Ok():
					case err := <-f.Err():
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.N)*benchRuns/b.Elapsed().Seconds(), "puts/s")
		})
	}
}

func items(item func(int) kvstore.Item) []kvstore.Item {
	list := make([]kvstore.Item, benchRuns)
	for i := range list {
		list[i] = item(i)
	}
	return list
}

// BenchmarkGet reads one checkpoint among many.
func BenchmarkGet(b *testing.B) {
	s := newBench(b)
	putMany(b, s, 10_000)
	b.Run("direct", func(b *testing.B) {
		for b.Loop() {
			_, _, err := s.shard.Checkpoints.Get(b.Context(), "run-00042")
			require.NoError(b, err)
		}
	})
	b.Run("fresh", func(b *testing.B) {
		for b.Loop() {
			_, _, err := s.shard.Checkpoints.GetFresh(b.Context(), "run-00042")
			require.NoError(b, err)
		}
	})
}

// BenchmarkListLive reads one page of 100 out of many live runs, near their end: after the first 100,000 that the
// server lists in one answer.
func BenchmarkListLive(b *testing.B) {
	for _, n := range []int{10_000, 150_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := newBench(b)
			putManyLive(b, s, n)
			after := fmt.Sprintf("run-%05d", n*9/10)
			for b.Loop() {
				page, _, err := s.shard.Checkpoints.ListLive(b.Context(), after, 100)
				require.NoError(b, err)
				require.Len(b, page, 100)
			}
		})
	}
}

// BenchmarkLive enters and erases runs of the live index.
func BenchmarkLive(b *testing.B) {
	s := newBench(b, natstest.SyncAlways())
	runs := make([]string, benchRuns)
	for i := range runs {
		runs[i] = fmt.Sprintf("run-%d", i)
	}
	putMany(b, s, 10_000)
	for b.Loop() {
		marks := make([]kvstore.LiveAt, len(runs))
		for i, rev := range putLive(b, s, runs...) {
			marks[i] = kvstore.LiveAt{Run: runs[i], Revision: rev}
		}
		for i, r := range s.shard.Checkpoints.EraseLive(b.Context(), marks...) {
			require.NoError(b, r.Err)
			marks[i].Revision = r.Revision
		}
		require.NoError(b, s.shard.Checkpoints.PurgeLive(b.Context(), marks...))
	}
	b.ReportMetric(float64(b.N)*benchRuns/b.Elapsed().Seconds(), "runs/s")
}
