package consumer

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// logged is a run that is written behind the folder's back, by compare-and-set or without.
type logged struct {
	*lifeRun
	model schema.Head
}

func (w *lifeWorld) logged(run string) *logged {
	w.tb.Helper()
	r := &logged{&lifeRun{w: w, out: schema.Writer{Fleet: "default", Run: run, Executor: "executor-1", Epoch: 1}}, schema.NewHead("default", run)}
	r.write(true, &schema.RunStartedData{Agent: "agent-1", Executor: "executor-1"})
	return r
}

func (r *logged) write(compared bool, data schema.Data) {
	r.w.tb.Helper()
	e, err := r.out.Event(data, 0, r.w.clock.Now(), 0)
	require.NoError(r.w.tb, err)
	require.NoError(r.w.tb, r.out.Commit(e))
	r.put(compared, e)
}

func (r *logged) put(compared bool, e *schema.Event) {
	r.w.tb.Helper()
	header, body := e.Encode()
	opts := []jetstream.PublishOpt{jetstream.WithMsgID(e.ID)}
	if compared {
		opts = append(opts, jetstream.WithExpectLastSequencePerSubject(uint64(r.last)))
	}
	ack, err := r.w.js.PublishMsg(r.w.tb.Context(), &nats.Msg{Subject: r.w.names.EventSubject(r.out.Run), Header: header, Data: body}, opts...)
	require.NoError(r.w.tb, err)
	r.last = schema.StreamSequence(ack.Sequence)
	rec := schema.NewRecord(r.last, header, body)
	r.model.Apply(schema.NoKeys, &rec)
}

// reign is that of a folder that reads what the test brings it.
func (w *lifeWorld) reign() *reignState {
	w.tb.Helper()
	folder, err := NewFolder(w.config(), w.nc, w.js, w.shard, w.clock.Now, noLog)
	require.NoError(w.tb, err)
	lease, err := kvstore.NewLease(w.js, kvstore.LeaseConfig{Name: kvstore.FoldLease(w.names), Holder: "reading"})
	require.NoError(w.tb, err)
	s, err := folder.begin(w.tb.Context(), lease)
	require.NoError(w.tb, err)
	return s
}

// skipping folds the run's log into a paused reign as a consumer of a damaged replica would bring it: without some of its messages.
func (r *logged) skipping(s *reignState, left ...int) *batch {
	r.w.tb.Helper()
	reader, err := eventlog.Follow(r.w.tb.Context(), r.w.nc, r.w.js, r.w.names, eventlog.FollowFrom{Run: r.out.Run})
	require.NoError(r.w.tb, err)
	defer reader.Close(r.w.tb.Context(), r.w.js)
	b := &batch{touched: make(map[string]*run), signs: make(map[sign]struct{})}
	for i, n := 0, int(reader.Pending()); i < n; i++ {
		got, err := reader.Next(r.w.tb.Context())
		require.NoError(r.w.tb, err)
		if len(left) > 0 && left[0] == i {
			left = left[1:]
			continue
		}
		a := &arrival{Arrived: got, run: r.out.Run, size: got.Record.Size(), prepared: schema.Prepare(schema.NoKeys, &got.Record)}
		require.NoError(r.w.tb, s.take(r.w.tb.Context(), b, a, s.now()))
	}
	return b
}

// Nothing but one replica's copy is damaged: what it leaves out was acknowledged, and the leader has it.
func TestWhatAReplicaLeavesOutIsFoldedFromTheLeader(t *testing.T) {
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
			e, err := schema.NewControl("default", "service-1", "run-1", 1, "n1", &schema.RunCancelRequestedData{By: "alice"}, w.clock.Now())
			require.NoError(t, err)
			r.put(true, e)
			for range 3 {
				r.write(c.compared, &schema.CheckpointMarkedData{Name: "there"})
			}
			s := w.reign()
			b := r.skipping(s, c.left...)
			got := b.touched["run-1"]
			require.Equal(t, r.model, got.head)
			require.True(t, got.head.Complete())
			require.Empty(t, b.dead)
			require.EqualValues(t, len(c.left), s.stats.HolesFilled.Load())
			require.EqualValues(t, 7, got.tailEvents)
		})
	}
}

// What the leader has not either is a hole, and no reason to leave out what is behind it.
func TestAHoleThatTheLeaderConfirmsIsSaid(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	w.stop()
	r := w.logged("run-1")
	r.out.Last++ // never published
	for range 3 {
		r.write(false, &schema.CheckpointMarkedData{Name: "behind"})
	}
	s := w.reign()
	b := r.skipping(s)
	got := b.touched["run-1"]
	require.Equal(t, r.model, got.head)
	require.EqualValues(t, 1, got.head.Counts.Gaps)
	require.Len(t, b.dead, 3)
	require.Zero(t, s.stats.HolesFilled.Load())
	require.Equal(t, standsAt(&got.head), got.confirmed, "it is not asked for again")
}
