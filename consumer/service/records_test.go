package service_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func (w *serviceWorld) records(run string, req schema.RecordsRequest) *schema.RecordsReply {
	w.TB.Helper()
	a, err := w.ask(schema.VerbRecords, run, req)
	require.NoError(w.TB, err)
	return decodeAs[schema.RecordsReply](w.TB, a.first)
}

func (w *serviceWorld) profile(run string, buckets int) *schema.ProfileReply {
	w.TB.Helper()
	a, err := w.ask(schema.VerbProfile, run, schema.ProfileRequest{Buckets: buckets})
	require.NoError(w.TB, err)
	return decodeAs[schema.ProfileReply](w.TB, a.first)
}

func (w *serviceWorld) awaitCheckpoint(run string, ok func(*schema.Checkpoint) bool) {
	w.TB.Helper()
	require.Eventually(w.TB, func() bool {
		c, _, err := w.Shard.Checkpoints.Get(w.TB.Context(), run)
		return err == nil && ok(c)
	}, testTimeout, 5*time.Millisecond)
}

// requirePage checks a page against the fold of the run's log from its first record.
func (w *serviceWorld) requirePage(log []schema.Record, reply *schema.RecordsReply, first, last int) {
	w.TB.Helper()
	require.Len(w.TB, reply.Records, last-first+1)
	require.EqualValues(w.TB, len(log), reply.Total)
	head := schema.NewHead("default", reply.Run)
	for i := range last {
		if i == first-1 {
			require.Equal(w.TB, head, reply.Before, "page from %d", first)
		}
		v := head.Apply(schema.NoKeys, &log[i])
		if i < first-1 {
			continue
		}
		got := &reply.Records[i-first+1]
		require.EqualValues(w.TB, i+1, got.Record)
		require.Equal(w.TB, log[i].Stream, got.Stream)
		require.Equal(w.TB, v.Kind.String(), got.Verdict)
		require.Equal(w.TB, v.Reason, got.Reason)
		require.Equal(w.TB, head.Turn, got.Turn)
		require.Equal(w.TB, head.Epoch, got.Epoch)
		e, err := got.Decode()
		require.NoError(w.TB, err)
		require.Equal(w.TB, v.Event.ContentHash(), e.ContentHash(), "the event is whole")
	}
}

// rewound is a run of two folded, sealed parts, with a rewind and a takeover between them, and with refused and duplicate events.
func rewound(t *testing.T) (*serviceWorld, []schema.Record) {
	t.Helper()
	w := newServiceWorld(t)
	_, stop := w.Fold(fold.Config{Holder: "worker", SealEvents: 8, SealMaxEvents: 16})
	defer stop()
	x := w.writer("run-1")
	x.Start()
	for range 12 {
		x.TurnOf(300)
	}
	w.rewind("run-1", "record:21", schema.ViewHead)
	w.recover("run-1", takeover("executor-2", "q-2"))
	reply, _ := w.get("run-1", schema.ViewHead)
	y := w.writer("run-1")
	y.Run.Executor, y.Run.Epoch, y.Turn = "executor-2", 3, reply.Head.Turn
	_, a := w.get("run-1", schema.ViewEvents)
	log := a.records(t)
	y.Last = uint64(log[len(log)-1].Stream)
	for range 9 {
		y.TurnOf(200)
	}
	y.Publish(&schema.ToolReturnedData{ToolCallID: "none", Result: []byte("1")}, y.Turn) // refused
	y.TurnOf(100)
	w.awaitCheckpoint("run-1", func(c *schema.Checkpoint) bool { return uint64(c.Position.Stream) == y.Last && c.Segments.Count > 6 })
	_, a = w.get("run-1", schema.ViewEvents)
	return w, a.records(t)
}

// Each page of a run that was rewound, taken over, sealed and purged equals the fold from the first record.
func TestRecords_SealedRunWithARewind_EachPageIsThatOfTheFold(t *testing.T) {
	t.Parallel()
	w, log := rewound(t)
	n := len(log)
	for first := 1; first <= n; first += 5 {
		last := min(first+9, n)
		w.requirePage(log, w.records("run-1", schema.RecordsRequest{From: int64(first), Limit: 10}), first, last)
		w.requirePage(log, w.records("run-1", schema.RecordsRequest{Through: int64(last), Limit: last - first + 1}), first, last)
	}
	w.requirePage(log, w.records("run-1", schema.RecordsRequest{Limit: 3}), n-2, n)
	w.requirePage(log, w.records("run-1", schema.RecordsRequest{}), 1, n)
	require.Empty(t, w.records("run-1", schema.RecordsRequest{From: int64(n) + 1}).Records)
	rejected, left := 0, 0
	for _, r := range w.records("run-1", schema.RecordsRequest{}).Records {
		if r.Verdict == schema.Rejected.String() {
			rejected++
		}
		if r.LeftBehind {
			left++
		}
	}
	require.Equal(t, 1, rejected)
	require.Equal(t, 28, left, "records 22 to 49")
	// The state of a run at each of its records, with keyframes too.
	head := schema.NewHead("default", "run-1")
	for i := range log {
		head.Apply(schema.NoKeys, &log[i])
		reply, _ := w.at("run-1", schema.ViewHead, fmt.Sprintf("record:%d", i+1))
		require.Equal(t, head, reply.Head, "record %d", i+1)
	}
}

func TestRecords_LargeContent_IsLeftOutAndNamed(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 3, 200_000)
	brief := w.records("run-1", schema.RecordsRequest{Brief: true})
	require.Len(t, brief.Records, len(x.Acked))
	for _, r := range brief.Records {
		e, err := r.Decode()
		require.NoError(t, err)
		data, err := schema.ParseData(e)
		require.NoError(t, err)
		if d, ok := data.(*schema.ToolReturnedData); ok {
			require.Equal(t, []schema.LeftOut{{Path: "/result", Size: 200_002}}, r.LeftOut)
			require.NotEmpty(t, d.ToolCallID, "what is not content stays")
		} else {
			require.Empty(t, r.LeftOut)
		}
	}
	// A page that does not fit has fewer records: the newest, or the first of the requested ones.
	some := w.records("run-1", schema.RecordsRequest{MaxBytes: 250_000})
	require.Less(t, len(some.Records), len(x.Acked))
	require.EqualValues(t, len(x.Acked), some.Records[len(some.Records)-1].Record)
	w.requirePage(x.Acked, some, int(some.Records[0].Record), len(x.Acked))
	some = w.records("run-1", schema.RecordsRequest{From: 2, MaxBytes: 250_000})
	require.Less(t, len(some.Records), len(x.Acked)-1)
	w.requirePage(x.Acked, some, 2, 1+len(some.Records))
	// A record that does not fit by itself has no data.
	some = w.records("run-1", schema.RecordsRequest{MaxBytes: 16_000, From: 4, Limit: 1})
	require.Empty(t, some.Records[0].LeftOut[0].Path, "all of the data")
	require.Less(t, len(some.Records[0].Event), 1000)
}

func TestRecords_WrongRequest_NamesTheMember(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.aRun("run-1", 1, 10)
	for path, req := range map[string]schema.RecordsRequest{
		"/from": {From: -1}, "/through": {Through: -1}, "/limit": {Limit: schema.MaxRecords + 1}, "/max_bytes": {MaxBytes: 1},
	} {
		e := w.refused(schema.VerbRecords, "run-1", req)
		require.Equal(t, schema.CodeBadRequest, e.Code)
		require.Contains(t, e.Message, path)
	}
	e := w.refused(schema.VerbRecords, "run-1", schema.RecordsRequest{From: 1, Through: 2})
	require.Contains(t, e.Message, "/through")
	require.Contains(t, w.refused(schema.VerbProfile, "run-1", schema.ProfileRequest{Buckets: schema.MaxBuckets + 1}).Message, "/buckets")
	require.Equal(t, schema.CodeNotFound, w.refused(schema.VerbRecords, "none", schema.RecordsRequest{}).Code)
	require.Equal(t, schema.CodeNotFound, w.refused(schema.VerbProfile, "none", schema.ProfileRequest{}).Code)
}

// The records of a damaged segment are read from the log. If the log no longer has them, only pages that need them are refused.
func TestRecords_DamagedSegment_OthersAreRead(t *testing.T) {
	t.Parallel()
	w, x := pointWorld(t, func(w *serviceWorld, x *writer) { w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, true)) })
	w.flipSegment(x, 2)
	w.requirePage(x.Acked, w.records("run-1", schema.RecordsRequest{From: 22, Limit: 5}), 22, 26)
	e := w.refused(schema.VerbRecords, "run-1", schema.RecordsRequest{From: 9, Limit: 2})
	require.Equal(t, schema.CodeDamaged, e.Code)

	w, x = pointWorld(t, func(w *serviceWorld, x *writer) { w.checkpointAt(x, 38, w.sealByHand(x, 30, 7, false)) })
	w.flipSegment(x, 2)
	w.requirePage(x.Acked, w.records("run-1", schema.RecordsRequest{From: 9, Limit: 20}), 9, 28)
}

// A profile that is continued as its run grows equals one that is made at once.
func TestProfile_RunGoesOn_IsContinued(t *testing.T) {
	t.Parallel()
	w, log := rewound(t)
	want := func(n int) (p schema.Profile) {
		head := schema.NewHead("default", "run-1")
		for i := range n {
			v := head.Apply(schema.NoKeys, &log[i])
			p.Apply(&head, &v)
		}
		return p
	}
	all := want(len(log))
	service.ReadProfilesBy(w.svc, 7)
	reply := w.profile("run-1", 0)
	require.Equal(t, all.Buckets(schema.MaxBuckets), reply.Buckets)
	require.Equal(t, all.Total(), reply.Total)
	require.True(t, reply.Complete)
	require.EqualValues(t, 2, reply.Total.Takeovers)
	require.EqualValues(t, 22, reply.Total.Calls)
	few := w.profile("run-1", 10)
	require.LessOrEqual(t, len(few.Buckets), 10)
	require.Equal(t, all.Total(), few.Total)

	w.recover("run-1", takeover("executor-3", "q-3"))
	again := w.profile("run-1", 0)
	require.EqualValues(t, len(log)+1, again.Records)
	require.EqualValues(t, 3, again.Total.Takeovers)
	require.Equal(t, reply.Total.Calls, again.Total.Calls, "nothing is counted twice")
}

// A profile is built again if the log of its run lost events after the profile was cached.
func TestProfile_RunIsAnotherOne_IsMadeAgain(t *testing.T) {
	t.Parallel()
	w := newDamagedWorld(t)
	x := w.aRun("run-1", 3, 10)
	require.EqualValues(t, 3, w.profile("run-1", 0).Total.Calls)
	for _, rec := range x.Acked[9:] {
		w.deleteMsg(rec.Stream)
	}
	got := w.profile("run-1", 0)
	require.EqualValues(t, 9, got.Records)
	require.EqualValues(t, 2, got.Total.Calls)
}

// A removed run has no pages and no profile, even if they were cached.
func TestRecords_RemovedRun_AreRefused(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.Fold(fold.Config{Holder: "worker"})
	x := w.aRun("run-1", 2, 10)
	x.Publish(&schema.RunEndedData{Status: string(schema.StatusCompleted)}, 0)
	w.awaitCheckpoint("run-1", func(c *schema.Checkpoint) bool { return c.Status.Terminal() })
	require.NotEmpty(t, w.profile("run-1", 0).Buckets)
	_, err := w.ask(schema.VerbErase, "run-1", schema.EraseRequest{By: "ann", Reason: strings.Repeat("r", 3)})
	require.NoError(t, err)
	for _, verb := range []string{schema.VerbRecords, schema.VerbProfile} {
		require.Equal(t, schema.CodeErased, w.refused(verb, "run-1", struct{}{}).Code)
	}
}

// As many requests for one long profile as there are workers leave workers for other requests.
func TestProfile_BusyAndAskedForByMany_OthersAreAnswered(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t, func(_ *kvstore.FleetConfig, cfg *service.Config) { cfg.Workers, cfg.Timeout = 4, testTimeout })
	w.aRun("run-1", 1, 10)
	release := service.HoldProfile(w.svc, "run-1")
	replies, err := w.client.SubscribeSync(w.client.NewInbox())
	require.NoError(t, err)
	for range 8 {
		require.NoError(t, w.client.PublishRequest(schema.ServiceSubject(schema.VerbProfile, "default", "run-1"), replies.Subject, []byte("{}")))
	}
	for range 6 { // two wait
		m, err := replies.NextMsg(testTimeout)
		require.NoError(t, err)
		require.Contains(t, string(m.Data), schema.CodeOverloaded)
	}
	reply, _ := w.get("run-1", schema.ViewHead)
	require.Equal(t, "run-1", reply.Head.Run)
	release()
	for range 2 {
		m, err := replies.NextMsg(testTimeout)
		require.NoError(t, err)
		require.Empty(t, m.Header.Get(schema.HeaderErrorCode), "who waited is answered: %s", m.Data)
	}
	require.NotEmpty(t, w.profile("run-1", 0).Buckets)
}
