package service_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// grep returns the files below a directory with any of the needles.
func grep(tb testing.TB, dir string, needles map[string][]byte) (found []string) {
	tb.Helper()
	require.NoError(tb, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // the server replaces its files
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil //nolint:nilerr // the same
		}
		for name, needle := range needles {
			if bytes.Contains(text, needle) {
				found = append(found, strings.TrimPrefix(path, dir)+": "+name)
			}
		}
		return nil
	}))
	slices.Sort(found)
	return found
}

// needles are pieces of all messages of a run in the streams of its shard, as they are stored.
func (w *serviceWorld) needles(run string) map[string][]byte {
	w.TB.Helper()
	list := make(map[string][]byte)
	for stream, filter := range map[string]string{
		w.Names.EventStream():                 w.Names.EventSubject(run),
		"KV_" + w.Names.SegmentBucket():       "$KV." + w.Names.SegmentBucket() + "." + run + ".*",
		"KV_" + w.Names.CheckpointBucket():    "$KV." + w.Names.CheckpointBucket() + "." + run,
		"OBJ_" + schema.BlobBucket("default"): "$O." + schema.BlobBucket("default") + ".C." + schema.BlobID(run, "half"),
	} {
		s, err := w.JS.Stream(w.TB.Context(), stream)
		require.NoError(w.TB, err)
		for from := uint64(1); ; from++ {
			m, err := s.GetMsg(w.TB.Context(), from, jetstream.WithGetMsgSubject(filter))
			if err != nil {
				require.ErrorIs(w.TB, err, jetstream.ErrMsgNotFound)
				break
			}
			from = m.Sequence
			if n := len(m.Data); n > 64 {
				list[fmt.Sprintf("%s %d", stream, m.Sequence)] = m.Data[n/2-32 : n/2+32]
			}
		}
	}
	return list
}

// Neighbours use most of each block, before and after the run: the server compacts none of these.
func TestErase_MostlyLiveBlocks_NoByteLeft(t *testing.T) {
	t.Parallel()
	const canary = "passport-XK99CANARY"
	w, _ := erasing(t)
	seed := int64(1000)
	turns := func(x *writer, n, payload int) (at schema.StreamSequence) {
		for range n {
			seed++
			x.Turn++
			id := fmt.Sprintf("call-%d", x.Turn)
			x.Publish(&schema.TurnStartedData{Turn: x.Turn}, x.Turn)
			x.Publish(&schema.ToolCalledData{ToolCallID: id, Name: "read", Arguments: []byte(`{}`), Replay: schema.ReplayPure}, x.Turn)
			at = x.Publish(&schema.ToolReturnedData{ToolCallID: id, Result: foldtest.Noise(payload, seed)}, x.Turn)
			x.Publish(&schema.TurnEndedData{Turn: x.Turn}, x.Turn)
			w.awaitFolded(at)
		}
		_, err := w.JS.Publish(t.Context(), "$O."+schema.BlobBucket("default")+".C."+schema.BlobID(x.Run.Run, "half"), foldtest.Noise(100_000, -seed))
		require.NoError(t, err)
		return x.end(schema.StatusCompleted)
	}
	neighbour := func(i int) *writer {
		x := w.writer(fmt.Sprintf("kept-%d", i))
		x.Publish(&schema.RunStartedData{Agent: "agent-1", Executor: "executor-1", Task: string(foldtest.Noise(5000, int64(i)))}, 0)
		turns(x, 10, 100_000)
		return x
	}
	kept := []*writer{neighbour(0), neighbour(1)}
	x := w.writer("gone")
	x.Publish(&schema.RunStartedData{Agent: "agent-1", Executor: "executor-1", Task: canary, Labels: map[string]string{"customer": canary}}, 0)
	turns(x, 8, 20_000)
	kept = append(kept, neighbour(2), neighbour(3), neighbour(4))
	w.awaitFolded(schema.StreamSequence(kept[4].Last))
	needles := w.needles("gone")
	needles["canary"] = []byte(canary)
	require.GreaterOrEqual(t, len(needles), 5)
	before := grep(t, w.Server.StateDir(), needles)
	t.Log(strings.Join(before, "\n"))
	for name := range maps.Keys(needles) {
		require.Contains(t, strings.Join(before, "\n"), name, "the test must see it before")
	}

	receipt := w.erase("gone", false)
	w.requireNothingLeft(&receipt)
	require.Eventually(t, func() bool { return len(grep(t, w.Server.StateDir(), needles)) == 0 }, 5*time.Minute, 100*time.Millisecond,
		"%s", grep(t, w.Server.StateDir(), needles))
	for _, k := range kept {
		require.Equal(t, schema.StatusCompleted, w.head(k.Run.Run).Status)
	}
}

// The daemon is killed at each of the messages that it overwrites, and in the turn of each stream. What the next one does
// follows from stored data.
func TestErase_KilledWhileOverwriting_NextDaemonFinishes(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]struct {
		prefix string
		nth    int
	}{
		"first message": {"$JS.API.STREAM.MSG.DELETE.", 1},
		"third message": {"$JS.API.STREAM.MSG.DELETE.", 3},
		"in the log":    {"waymark.events.default.0." + schema.BarrierRun, 5},
		"segments":      {"$KV.WAYMARK_SEGMENTS_default_0._.ballast", 30},
		"checkpoints":   {"$KV.WAYMARK_CHECKPOINTS_default_0._.ballast", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const canary = "passport-XK99CANARY"
			w, stop := erasing(t)
			x := w.writer("gone")
			x.Publish(&schema.RunStartedData{Agent: "agent-1", Executor: "executor-1", Task: canary}, 0)
			x.TurnOf(3000)
			w.awaitFolded(x.end(schema.StatusCompleted))
			stop()
			d := &foldtest.Tap{Prefixes: []string{at.prefix}}
			killed, seen := make(chan struct{}), 0
			d.Set(func(string) {
				if seen++; seen == at.nth {
					d.Dead.Store(true)
					close(killed)
				}
			})
			cfg := eraseSoon()
			cfg.Holder = "worker-2"
			_, end := w.FoldTapped(cfg, d)
			_, err := w.ask(schema.VerbErase, "gone", schema.EraseRequest{By: "tester"})
			require.NoError(t, err)
			<-killed
			end()
			a, err := w.ask(schema.VerbErase, "gone", schema.EraseRequest{By: "tester"})
			require.NoError(t, err)
			var reply schema.EraseReply
			require.NoError(t, json.Unmarshal(a.first, &reply))
			require.False(t, reply.Done)

			w.Fold(eraseSoon())
			receipt := w.erase("gone", false)
			w.requireNothingLeft(&receipt)
			require.Eventually(t, func() bool { return len(grep(t, w.Server.StateDir(), map[string][]byte{"": []byte(canary)})) == 0 }, 5*time.Minute, 100*time.Millisecond)
			stream, err := w.JS.Stream(t.Context(), "KV_"+w.Names.CheckpointBucket())
			require.NoError(t, err)
			info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("$KV.*._.ballast"))
			require.NoError(t, err)
			require.Empty(t, info.State.Subjects)
		})
	}
}

// Executors that wait fill the log, so there is no room for ballast. The run is removed at once all the same.
func TestErase_FullLog_RemovesAtOnceOverwritesLater(t *testing.T) {
	t.Parallel()
	w, _ := erasingIn(t, newServiceWorld(t, func(f *kvstore.FleetConfig, _ *serviceConfig) {
		f.QuotaBytes, f.ReserveBytes = fullQuota, fullReserve
	}))
	x := w.writer("gone")
	x.Publish(&schema.RunStartedData{Agent: "agent-1", Executor: "executor-1", Task: "text"}, 0)
	w.awaitFolded(x.end(schema.StatusCompleted))
	// The last event of a run stays in the log: these leave no room for the bytes that overwrite, 256 KiB at a time.
	var live []string
	for room := int64(fullQuota); room > 200<<10; {
		run := fmt.Sprintf("live-%d", len(live))
		live = append(live, run)
		last := w.writer(run).Publish(&schema.RunStartedData{Agent: "agent-1", Executor: "executor-1", Task: strings.Repeat("x", int(min(room-100<<10, 500<<10)))}, 0)
		w.awaitFolded(last)
		u := w.usage()
		room = u.Limit - u.Bytes
	}
	ask := func(req schema.EraseRequest) (reply schema.EraseReply) {
		a, err := w.ask(schema.VerbErase, "gone", req)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(a.first, &reply))
		return reply
	}
	require.Eventually(t, func() bool {
		w.fillLog() // the worker seals and removes the filler's events
		return ask(schema.EraseRequest{By: "tester"}).Waits != ""
	}, time.Minute, 10*time.Millisecond)
	checked := ask(schema.EraseRequest{Check: true})
	require.True(t, checked.Left.None(), "%+v", checked.Left)
	require.False(t, checked.Done)
	require.Empty(t, checked.GoneBy)
	require.Contains(t, checked.Waits, "stream "+w.Names.EventStream()+": storage full")

	stream, err := w.JS.Stream(t.Context(), w.Names.EventStream())
	require.NoError(t, err)
	for _, run := range append(live, "filler") {
		require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject(w.Names.EventSubject(run))))
	}
	w.erase("gone", false)
	require.Empty(t, ask(schema.EraseRequest{Check: true}).Waits)
}
