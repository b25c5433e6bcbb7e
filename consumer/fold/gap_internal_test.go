package fold

import (
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// logged is a run that is written without the worker's knowledge, by compare-and-set or without.
type logged struct {
	*lifeRun
	model schema.Head
}

func (w *lifeWorld) logged(run string) *logged {
	w.TB.Helper()
	r := &logged{w.unwritten(run), schema.NewHead("default", run)}
	r.write(true, &schema.RunStartedData{Agent: "agent-1", Executor: "executor-1"})
	return r
}

func (r *logged) write(compared bool, data schema.Data) {
	r.w.TB.Helper()
	e, err := r.Out.Event(data, 0, r.w.Clock.Now(), 0)
	require.NoError(r.w.TB, err)
	require.NoError(r.w.TB, r.Out.Commit(e))
	r.put(compared, e)
}

func (r *logged) put(compared bool, e *schema.Event) {
	r.w.TB.Helper()
	header, body := e.Encode()
	opts := []jetstream.PublishOpt{jetstream.WithMsgID(e.ID)}
	if compared {
		opts = append(opts, jetstream.WithExpectLastSequencePerSubject(uint64(r.Last)))
	}
	ack, err := r.w.JS.PublishMsg(r.w.TB.Context(), &nats.Msg{Subject: r.w.Names.EventSubject(r.Out.Run), Header: header, Data: body}, opts...)
	require.NoError(r.w.TB, err)
	r.Last = schema.StreamSequence(ack.Sequence)
	rec := schema.NewRecord(r.Last, header, body)
	r.model.Apply(schema.NoKeys, &rec)
}

// term is a term of a worker that reads the messages of the test.
func (w *lifeWorld) term() *term {
	w.TB.Helper()
	worker, err := New(w.config(), w.NC, w.JS, w.Shard, w.Clock.Now, noLog)
	require.NoError(w.TB, err)
	s, err := worker.begin(w.TB.Context())
	require.NoError(w.TB, err)
	return s
}

// reading folds the run's log into a paused term. Before each of its messages, it asks whether to skip it.
func (r *logged) reading(s *term, skips func(i int) bool) *batch {
	r.w.TB.Helper()
	reader, err := eventlog.Follow(r.w.TB.Context(), r.w.NC, r.w.JS, r.w.Names, eventlog.FollowFrom{Run: r.Out.Run})
	require.NoError(r.w.TB, err)
	defer reader.Close(r.w.TB.Context(), r.w.JS)
	b := &batch{touched: make(map[string]*run)}
	for i, n := 0, int(reader.Pending()); i < n; i++ {
		got, err := reader.Next(r.w.TB.Context())
		require.NoError(r.w.TB, err)
		if skips(i) {
			continue
		}
		a := &message{Arrived: got, run: r.Out.Run, size: got.Record.Size(), prepared: schema.Prepare(schema.NoKeys, &got.Record)}
		require.NoError(r.w.TB, s.take(r.w.TB.Context(), b, a))
	}
	return b
}

// skipping folds the run's log like a consumer of a damaged replica: without some of its messages.
func (r *logged) skipping(s *term, left ...int) *batch {
	r.w.TB.Helper()
	return r.reading(s, func(i int) bool { return slices.Contains(left, i) })
}

// Only one replica's copy is damaged: the missing events were acknowledged, and the leader has them.
func TestWorker_ReplicaOmitsEvents_FoldsFromLeader(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		compared bool
		left     []int
	}{
		{"events of an executor that compares", true, []int{1, 2, 5}},
		{"a control event, which has no sequence", true, []int{3}},
		{"events of an executor that does not compare", false, []int{1, 2, 5}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newLifeWorld(t)
			w.stop()
			r := w.logged("run-1")
			r.write(c.compared, &schema.CheckpointMarkedData{Name: "here"})
			r.write(c.compared, &schema.CheckpointMarkedData{Name: "here"})
			e, err := schema.NewControl("default", "service-1", "run-1", 1, "n1", &schema.RunCancelRequestedData{By: "alice"}, w.Clock.Now())
			require.NoError(t, err)
			r.put(true, e)
			for range 3 {
				r.write(c.compared, &schema.CheckpointMarkedData{Name: "there"})
			}
			s := w.term()
			b := r.skipping(s, c.left...)
			got := b.touched["run-1"]
			require.Equal(t, r.model, got.head)
			require.True(t, got.head.Complete())
			require.Empty(t, b.dead)
			require.EqualValues(t, 7, got.tailEvents)
		})
	}
}

// Events that the leader lacks too are a gap, and no reason to drop later events.
func TestWorker_GapConfirmedByLeader_Reported(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	w.stop()
	r := w.logged("run-1")
	r.Out.Last++ // never published
	for range 3 {
		r.write(false, &schema.CheckpointMarkedData{Name: "behind"})
	}
	s := w.term()
	b := r.skipping(s)
	got := b.touched["run-1"]
	require.Equal(t, r.model, got.head)
	require.EqualValues(t, 1, got.head.Counts.Gaps)
	require.Len(t, b.dead, 3)
	require.Equal(t, gapAt(&got.head), got.confirmed, "it is not asked for again")
}

// fourEvents are the log of run-1, which no worker has folded.
func fourEvents(t *testing.T) (*lifeWorld, *logged) {
	t.Helper()
	w := newLifeWorld(t)
	w.stop()
	r := w.logged("run-1")
	for range 3 {
		r.write(true, &schema.CheckpointMarkedData{Name: "here"})
	}
	return w, r
}

// A checkpoint is ahead of the watermark after a crash between the two puts. The next term loads it with the first
// event that it reads. Before it reads the others, it seals the tail, and adopts a segment of another range that the
// earlier term stored and did not count.
func TestSeal_SegmentAdoptedBeforeItsEventsAreRead_CountsEachOnce(t *testing.T) {
	t.Parallel()
	w, r := fourEvents(t)
	first := w.term()
	first.cfg.SealEvents = 2
	b := r.skipping(first)
	x := b.touched["run-1"]
	require.Len(t, x.cuts, 2)
	require.NoError(t, first.sealer.seal(t.Context(), x))
	x.segments = schema.SegmentIndex{} // the checkpoint is that of a batch before
	x.tailEvents, x.tailBytes = 4, x.tailBytes+1
	require.NoError(t, first.store(t.Context(), b.touched))

	s := w.term()
	s.cfg.IdleSealBytes, s.mark.RebuildTo, s.distrust = 1, 0, false
	require.Zero(t, s.mark.Position.Stream, "the crash came before the watermark")
	r.reading(s, func(i int) bool {
		if i == 1 {
			require.NoError(t, s.sealIdle(t.Context()))
		}
		return false
	})
	got := s.cache.get("run-1")
	require.True(t, got.refolded, "it adopted the segments")
	require.Equal(t, r.model, got.head)
	require.Equal(t, 2, got.segments.Count)
}

// A term that folds a run again knows that the checkpoint of another worker had more events. They are not missing once
// it has them, also if it gets them from the segments that the other worker has just stored.
func TestSeal_SegmentAdoptedWithEventsThatWereMissing_RunIsComplete(t *testing.T) {
	t.Parallel()
	w, r := fourEvents(t)
	other := w.term()
	other.cfg.SealEvents = 2
	b := r.skipping(other)
	require.NoError(t, other.store(t.Context(), b.touched))

	s := w.term()
	s.cfg.IdleSealBytes, s.cfg.IdleSealAfter, s.mark.RebuildTo = 1, -1, r.Last
	r.reading(s, func(i int) bool {
		if i == 3 {
			require.NotEmpty(t, s.cache.get("run-1").lost)
			require.NoError(t, other.sealer.seal(t.Context(), b.touched["run-1"]))
			require.NoError(t, s.sealIdle(t.Context()))
		}
		return false
	})
	got := s.cache.get("run-1")
	require.Equal(t, 2, got.segments.Count, "it adopted the segments")
	require.Equal(t, r.model, got.head)
	require.Empty(t, got.lost)
}
