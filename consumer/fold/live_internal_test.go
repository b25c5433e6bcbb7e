package fold

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// entry is the run's entry as stored.
func (r *lifeRun) entry() kvstore.LiveEntry {
	r.w.TB.Helper()
	e, err := r.w.Shard.Checkpoints.LiveOf(r.w.TB.Context(), r.Out.Run)
	require.NoError(r.w.TB, err)
	return e
}

// erased waits until the run's entry is deleted.
func (r *lifeRun) erased() {
	r.w.TB.Helper()
	require.Eventually(r.w.TB, func() bool {
		e, err := r.w.Shard.Checkpoints.LiveOf(r.w.TB.Context(), r.Out.Run)
		_, known := r.w.liveRuns.Get(r.Out.Run)
		return e.Live == nil && (err == nil || errors.Is(err, kvstore.ErrNotFound)) && !known
	}, time.Minute, time.Millisecond)
}

func TestLiveIndex_EveryEvent_EqualsHead(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	began := r.entry()
	require.Equal(t, "i1", began.Live.Instance)
	r.Own(&schema.TurnStartedData{Turn: 1})
	r.Own(&schema.TurnEndedData{Turn: 1})
	require.Equal(t, began, r.entry(), "it is put when it changes, and not with every event")
	r.Own(&schema.RunWaitingData{InterruptID: "q1", Reason: "human_input", ExpiresAt: "2027-01-01T00:00:00Z"})
	waits := r.entry()
	require.Greater(t, waits.Revision, began.Revision)
	head := r.Checkpoint()
	require.Len(t, head.Interrupts, 1)
	require.NotEmpty(t, head.Interrupts[0].ExpiresAt)
	require.Equal(t, head.Interrupts[0].ExpiresAt, waits.Live.ExpiresAt)
	r.Own(&schema.RunEndedData{Status: "completed"})
	_, known := w.liveRuns.Get("run-1")
	require.False(t, known)
	mark := r.entry()
	require.Nil(t, mark.Live)
	require.NoError(t, mark.Err)
	r.erased()
	r.Control(&schema.RunResumedData{Executor: "executor-2", Instance: "i2", Reason: "reopen", RequestID: "q1"})
	again := r.entry()
	require.Greater(t, again.Revision, mark.Revision)
	require.Equal(t, "executor-2", again.Live.Executor)
}

func TestLiveIndex_EndedRunWithOpenOffer_Stays(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	r.Own(&schema.HandoffOfferedData{HandoffID: "h1", Kind: "transfer", Reason: "task_complete", NextAgent: "agent-2"})
	r.Own(&schema.RunEndedData{Status: "completed"})
	l, known := w.liveRuns.Get("run-1")
	require.True(t, known)
	require.Equal(t, []string{"agent-2"}, l.Offers)
	r.Control(&schema.HandoffDeclinedData{HandoffID: "h1", By: "me"})
	r.erased()
}

func TestLiveIndex_RunEndsWithAHeldCall_KeepsItUntilThatIsSettled(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	r.Own(&schema.TurnStartedData{Turn: 1})
	r.Own(&schema.ToolCalledData{ToolCallID: "c1", Occurrence: 1, Name: "pay", Replay: schema.ReplayHold})
	require.Empty(t, r.entry().Live.Attention, "it may still return")
	r.Own(&schema.RunEndedData{Status: "failed", Error: &schema.Error{Type: "x", Message: "y"}})
	require.Len(t, r.Checkpoint().HeldCalls(), 1)
	l, known := w.liveRuns.Get("run-1")
	require.True(t, known)
	require.Equal(t, schema.StatusFailed, l.Status)
	require.NotEmpty(t, l.Attention)
	r.Control(&schema.ToolSettledData{ToolCallID: "c1", Occurrence: 1, How: schema.SettledAbandoned, By: "me"})
	r.erased()
}

func TestLiveIndex_RunEndsInItsFirstBatch_NoEntry(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	w.stop()
	r := w.unwritten("run-1")
	r.Publish(&schema.RunStartedData{Agent: "agent-1", Executor: "executor-1"})
	r.Publish(&schema.RunEndedData{Status: "completed"})
	w.stop = w.fold(w.config())
	r.Folded()
	_, err := w.Shard.Checkpoints.LiveOf(t.Context(), "run-1")
	require.ErrorIs(t, err, kvstore.ErrNotFound)
}

func TestLiveIndex_RunOfEarlierTermEnds_Removed(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	w.stop()
	w.stop = w.fold(w.config())
	r.Own(&schema.RunEndedData{Status: "completed"})
	r.erased()
}

func TestLiveIndex_WrongEntriesAtTakeover_Repaired(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	kv, err := w.JS.KeyValue(t.Context(), w.Names.CheckpointBucket())
	require.NoError(t, err)
	put := func(run, value string) {
		t.Helper()
		_, err := kv.PutString(t.Context(), schema.LiveKeyPrefix+run, value)
		require.NoError(t, err)
	}
	good, junk, older, wrong := w.begin("good", "e1", "i1"), w.begin("junk", "e1", "i1"), w.begin("older", "e1", "i1"), w.begin("wrong", "e1", "i1")
	newer, ended, left := w.begin("newer", "e1", "i1"), w.begin("ended", "e1", "i1"), w.begin("left", "e1", "i1")
	before := ended.entry()
	ended.Own(&schema.RunEndedData{Status: "completed"})
	left.Own(&schema.RunEndedData{Status: "completed"})
	w.stop()
	kept := good.entry()
	put("junk", "junk")
	put("older", "")
	put("newer", `{"format":99}`)
	value, err := json.Marshal(before.Live)
	require.NoError(t, err)
	put("ended", string(value))
	other := *wrong.entry().Live
	other.Status, other.Executor = schema.StatusOrphaned, "e2"
	value, err = json.Marshal(&other)
	require.NoError(t, err)
	put("wrong", string(value))
	other.Run = "unknown"
	value, err = json.Marshal(&other)
	require.NoError(t, err)
	put("unknown", string(value))
	again := w.begin2(t)

	cfg := w.config()
	cfg.LiveRuns, cfg.SweepEvery = again, time.Millisecond
	w.stop = w.fold(cfg)
	for _, r := range []*lifeRun{junk, older, wrong} {
		r.Folded()
		e := r.entry()
		require.Equal(t, "e1", e.Live.Executor, r.Out.Run)
		require.Equal(t, schema.StatusRunning, e.Live.Status)
	}
	w.liveRuns = again
	for _, r := range []*lifeRun{ended, left, w.unwritten("unknown")} {
		r.erased()
	}
	require.Equal(t, kept, good.entry())
	require.ErrorIs(t, newer.entry().Err, schema.ErrFormat, "a later version knows better")
	require.Equal(t, liveness.Counts{Live: 4}, again.Counts())
}

// A server that is killed can bring back a deleted entry while the worker folds.
func TestLiveIndex_ConnectionLost_EntriesRepaired(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	before, err := json.Marshal(r.entry().Live)
	require.NoError(t, err)
	r.Own(&schema.RunEndedData{Status: "completed"})
	r.erased()
	w.Server.Restart(t)
	kv, err := w.JS.KeyValue(t.Context(), w.Names.CheckpointBucket())
	require.NoError(t, err)
	_, err = kv.PutString(t.Context(), schema.LiveKeyPrefix+"run-1", string(before))
	require.NoError(t, err)
	r.erased()
}

// begin2 is another table of live runs, as in another daemon.
func (w *lifeWorld) begin2(tb testing.TB) *liveness.LiveRuns {
	tb.Helper()
	r := liveness.NewLiveRuns([]*kvstore.Shard{w.Shard}, 0, w.Clock.Now, noLog)
	w.Go(r.Run)
	require.Eventually(tb, r.Synced, time.Minute, time.Millisecond)
	return r
}

// paused is a term of a worker that the system paused after it had folded the log. Another worker has the lease.
func (w *lifeWorld) paused() *term {
	w.TB.Helper()
	require.Eventually(w.TB, func() bool {
		_, _, err := w.Shard.Checkpoints.Watermark(w.TB.Context())
		return err == nil
	}, time.Minute, 10*time.Millisecond, "the current term has begun")
	worker, err := New(w.config(), w.NC, w.JS, w.Shard, w.Clock.Now, noLog)
	require.NoError(w.TB, err)
	s, err := worker.begin(w.TB.Context())
	require.NoError(w.TB, err)
	return s
}

// fetch folds what the log has of the run after its checkpoint into the paused term.
func (r *lifeRun) fetch(s *term) *run {
	r.w.TB.Helper()
	got, err := s.load(r.w.TB.Context(), r.Out.Run, &eventlog.Arrived{})
	require.NoError(r.w.TB, err)
	require.NoError(r.w.TB, eventlog.Read(r.w.TB.Context(), r.w.JS, r.w.Names, r.Out.Run, got.head.Position.Stream+1, func(rec schema.Record) error {
		p := schema.Prepare(schema.NoKeys, &rec)
		got.take(&p, rec.Size(), &s.cfg)
		return nil
	}))
	return got
}

func TestLiveIndex_WorkerPausedBeforeErase_KeepsReopenedRun(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	w.stop()
	r.Publish(&schema.RunEndedData{Status: "completed"})
	old := w.paused()
	ended := r.fetch(old)
	entries, err := old.live.end(t.Context(), []*run{ended})
	require.NoError(t, err)
	require.Len(t, entries, 1)
	c := ended.checkpoint(old.incarnation, 0)
	for _, res := range w.Shard.Checkpoints.PutBatch(t.Context(), []kvstore.Item{{Checkpoint: c, Revision: ended.revision}}) {
		require.NoError(t, res.Err)
	}

	// The worker is paused here; another one takes the shard over, and the run is reopened.
	w.stop = w.fold(w.config())
	r.Control(&schema.RunResumedData{Executor: "executor-2", Reason: "reopen", RequestID: "q1"})
	stands := r.entry()

	require.NoError(t, old.live.erase(t.Context(), entries))
	require.Equal(t, stands, r.entry())
	l, known := w.liveRuns.Get("run-1")
	require.True(t, known)
	require.Equal(t, schema.StatusRunning, l.Status)
}

func TestLiveIndex_WorkerPausedBeforePut_SkipsEndedRun(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	w.stop()
	old := w.paused()
	got := r.fetch(old)
	got.live = nil // the term put it itself
	require.NoError(t, old.live.put(t.Context(), []*run{got}))
	r.Publish(&schema.RunWaitingData{InterruptID: "q1", Reason: "human_input"})
	got = r.fetch(old)

	w.stop = w.fold(w.config())
	r.Own(&schema.RunEndedData{Status: "completed"})

	require.ErrorIs(t, old.live.put(t.Context(), []*run{got}), errSuperseded)
	_, known := w.liveRuns.Get("run-1")
	require.False(t, known)
}

func TestLiveRuns_BucketRecreated_FollowNewBucket(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	w.stop()
	cfg := w.config()
	cfg.Reprovision = func(ctx context.Context) error {
		return kvstore.Provision(ctx, w.JS, kvstore.FleetConfig{Fleet: "default", QuotaBytes: 64 << 20})
	}
	w.stop = w.fold(cfg)
	r := w.begin("run-1", "executor-1", "i1")
	stale := fleettest.Orphan("stale", "executor-1", 5)
	_, err := w.Shard.Checkpoints.PutLive(t.Context(), kvstore.LivePut{Live: stale})
	require.NoError(t, err)
	known := func(run string) func() bool {
		return func() bool { _, ok := w.liveRuns.Get(run); return ok && w.liveRuns.Synced() }
	}
	require.Eventually(t, known("stale"), time.Minute, time.Millisecond)

	w.Tick = 10 * time.Millisecond
	w.Server.Restart(t)
	s := w.begin("run-2", "executor-1", "i1")
	require.Eventually(t, func() bool { return !known("stale")() && known("run-1")() }, time.Minute, time.Millisecond, "the worker compares the entries again")
	_, err = w.Shard.Checkpoints.PutLive(t.Context(), kvstore.LivePut{Live: stale})
	require.NoError(t, err)
	require.Eventually(t, known("stale"), time.Minute, time.Millisecond)

	require.NoError(t, w.JS.DeleteStream(t.Context(), "KV_"+w.Names.CheckpointBucket()))
	require.Eventually(t, func() bool {
		w.Clock.Forward(w.Tick)
		return !known("stale")() && known("run-1")() && known("run-2")()
	}, time.Minute, time.Millisecond)
	_, total := w.liveRuns.Claimable(w.Clock.Now(), liveness.Want{})
	require.Zero(t, total)
	r.Own(&schema.RunEndedData{Status: "completed"})
	s.Own(&schema.RunWaitingData{InterruptID: "q1", Reason: "human_input"})
	require.Equal(t, liveness.Counts{Live: 1}, w.liveRuns.Counts())
}

// listenTo collects what comes on a subject.
func (w *lifeWorld) listenTo(subject string) chan *nats.Msg {
	w.TB.Helper()
	msgs := make(chan *nats.Msg, 64)
	sub, err := w.NC.ChanSubscribe(subject, msgs)
	require.NoError(w.TB, err)
	require.NoError(w.TB, w.NC.Flush())
	w.TB.Cleanup(func() { _ = sub.Unsubscribe() })
	return msgs
}

func next(tb testing.TB, msgs chan *nats.Msg) *nats.Msg {
	tb.Helper()
	select {
	case m := <-msgs:
		return m
	case <-time.After(time.Minute):
		require.FailNow(tb, "nothing came")
		return nil
	}
}

func TestNotices_ForeignEventInRun_ReachesExecutor(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	msgs := w.listenTo(schema.NoticeSubject("default", "*"))
	r := w.begin("run-1", "executor-1", "i1")
	r.Own(&schema.RunWaitingData{InterruptID: "q1", Reason: "human_input"})
	r.Control(&schema.RunCancelRequestedData{By: "me"})
	r.Control(&schema.RunInputData{InterruptID: "q1", By: "me"})
	r.Control(&schema.RunInputData{InterruptID: "q1", By: "me"}) // refused: the notice goes to its sender
	r.Control(&schema.RunResumedData{Executor: "executor-2", Reason: "request", RequestID: "q1"})
	r.Control(&schema.RunOrphanedData{Executor: "executor-2"})
	require.Eventually(t, func() bool { return w.worker.stats.Notices.Load() == 6 }, time.Minute, time.Millisecond)
	require.NoError(t, w.NC.Publish(schema.NoticeSubject("default", "end"), nil))
	for _, want := range []struct{ executor, name string }{
		{"executor-1", schema.RunCancelRequested},
		{"executor-1", schema.RunInput},
		{"service-1", schema.EventRefused},
		{"executor-1", schema.RunResumed},
		{"executor-2", schema.RunResumed}, // it may have lost its own request
		{"executor-2", schema.RunOrphaned},
	} {
		m := next(t, msgs)
		require.Equal(t, schema.NoticeSubject("default", want.executor), m.Subject)
		var n schema.Notice
		require.NoError(t, json.Unmarshal(m.Data, &n))
		require.Equal(t, "run-1", n.Run)
		require.Equal(t, want.name, n.Name)
		require.NotZero(t, n.Position.Stream)
		require.NotEmpty(t, n.Position.ID)
	}
	require.Equal(t, schema.NoticeSubject("default", "end"), next(t, msgs).Subject)
}

// The instructions in the checkpoint use the fold worker's number of claims.
func TestCheckpoint_FewerClaimsThanByDefault_InstructionsSayQuarantined(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	w.stop()
	cfg := w.config()
	cfg.MaxClaims = 1
	w.stop = w.fold(cfg)
	r := w.begin("run-1", "executor-1", "i1")
	r.Control(&schema.RunResumedData{Executor: "executor-1", Reason: "claim", RequestID: "q1"})
	r.Control(&schema.RunOrphanedData{Executor: "executor-1"})
	require.Eventually(t, func() bool { return w.worker.stats.Quarantined.Load() == 1 }, time.Minute, time.Millisecond)
	c, _, err := w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	require.Equal(t, schema.QuarantinedText, c.Overview.Recovery.Lines[0])
}

func TestQuarantine_Reached_AnnouncedOnce(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	msgs := w.listenTo(schema.ObservedSubject("default", schema.RunQuarantined, "*"))
	r := w.begin("run-1", "executor-1", "i1")
	r.Own(&schema.TurnStartedData{Turn: 4})
	r.Own(&schema.ToolCalledData{ToolCallID: "c1", Name: "pay", Replay: schema.ReplayHold})
	r.Own(&schema.ErrorRaisedData{Error: schema.Error{Type: "net", Message: "no route to bank"}})
	claim := func(reason, request string) {
		t.Helper()
		r.Control(&schema.RunResumedData{Executor: "executor-1", Reason: reason, RequestID: request})
		r.Control(&schema.RunOrphanedData{Executor: "executor-1"})
	}
	claim("claim", "q1")
	claim("claim", "q2")
	r.Control(&schema.RunResumedData{Executor: "executor-1", Reason: "claim", RequestID: "q3"})
	require.Empty(t, msgs)
	require.Zero(t, w.worker.stats.Quarantined.Load(), "the third claim has a chance")
	r.Control(&schema.RunOrphanedData{Executor: "executor-1"})
	m := next(t, msgs)
	e, err := schema.Decode(m.Header, m.Data)
	require.NoError(t, err)
	require.Equal(t, "run-1", e.Subject)
	require.Equal(t, schema.RunQuarantined, e.Name())
	var data quarantined
	require.NoError(t, json.Unmarshal(e.Data, &data))
	require.Equal(t, quarantined{
		Claims: 3, Status: schema.StatusOrphaned, Turn: 4, OpenCalls: 1, LastError: &schema.Error{Type: "net", Message: "no route to bank"},
	}, data)
	require.Equal(t, liveness.Counts{Live: 1, Quarantined: 1}, w.liveRuns.Counts())

	w.stop()
	w.stop = w.fold(w.config())
	r.Control(&schema.RunOrphanedData{Executor: "executor-1"}) // again: it changes nothing
	require.Eventually(t, func() bool { return w.worker.stats.Notices.Load() == 1 }, time.Minute, time.Millisecond)
	require.Zero(t, w.worker.stats.Quarantined.Load(), "another fold worker does not say it again")
	claim("request", "q4")
	claim("claim", "q5")
	claim("claim", "q6")
	require.Equal(t, liveness.Counts{Live: 1, Claimable: 1}, w.liveRuns.Counts(), "a takeover by name starts the count again")
	claim("claim", "q7")
	next(t, msgs)
	require.Equal(t, int64(1), w.worker.stats.Quarantined.Load())
	require.Empty(t, msgs)
}
