package service_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// orphan publishes a run that its executor left, so many seconds ago, and adds it to the live runs.
func (w *serviceWorld) orphan(id, executor string, ago int, change ...func(*schema.RunStartedData)) *writer {
	w.TB.Helper()
	x := w.writer(id)
	d := &schema.RunStartedData{Agent: "agent-1", Executor: executor}
	for _, c := range change {
		c(d)
	}
	x.Publish(d, 0)
	x.TurnOf(10)
	x.Publish(&schema.RunInterruptedData{Reason: "shutdown"}, 0)
	head := x.Model()
	live := schema.LiveOf(&head)
	live.Since = schema.FormatTime(time.Unix(1_700_000_000-int64(ago), 0))
	w.feed(w.liveRuns, live)
	return x
}

// told updates the live runs with a run's present state.
func (w *serviceWorld) told(run string) {
	w.TB.Helper()
	got, _ := w.get(run, schema.ViewHead)
	w.feed(w.liveRuns, schema.LiveOf(&got.Head))
}

// follow lets a replica's live runs follow the live index from now on.
func (w *serviceWorld) follow(live *liveness.LiveRuns) {
	if w.watched[live] {
		return
	}
	w.watched[live] = true
	ctx, cancel := context.WithCancel(w.TB.Context())
	done := make(chan error, 1)
	go func() { done <- live.Run(ctx) }()
	w.TB.Cleanup(func() {
		cancel()
		require.NoError(w.TB, <-done)
	})
}

// feed puts a run into the live index, and waits until a replica's live runs have it. The replica follows the index
// from then on.
func (w *serviceWorld) feed(live *liveness.LiveRuns, l schema.Live) {
	w.TB.Helper()
	w.follow(live)
	_, err := w.Shard.Checkpoints.PutLive(w.TB.Context(), kvstore.LivePut{Live: l})
	require.NoError(w.TB, err)
	require.Eventually(w.TB, func() bool {
		known, ok := live.Get(l.Run)
		return ok && known.Same(&l)
	}, time.Minute, time.Millisecond)
}

func claimFor(executor string) schema.ClaimRequest {
	return schema.ClaimRequest{Executor: executor, Instance: "start-1", RequestID: rand.Text()}
}

func (w *serviceWorld) claim(req schema.ClaimRequest) *schema.ClaimReply {
	w.TB.Helper()
	a, err := w.ask(schema.VerbClaim, "", req)
	require.NoError(w.TB, err)
	return decodeAs[schema.ClaimReply](w.TB, a.first)
}

func TestClaim_Order_OwnRunsThenOldest(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.orphan("young", "executor-1", 10)
	w.orphan("old", "executor-1", 100)
	w.orphan("mine", "executor-2", 5)
	var got []string
	for left := 3; left > 0; left-- {
		r := w.claim(claimFor("executor-2"))
		require.EqualValues(t, 2, r.Epoch)
		require.Equal(t, left, r.Claimable, "this one included")
		if left > 1 {
			require.Zero(t, r.RetryAfterMS, "there is more")
		} else {
			require.GreaterOrEqual(t, r.RetryAfterMS, int64(1000))
		}
		got = append(got, r.Run)
	}
	require.Equal(t, []string{"mine", "old", "young"}, got)
	r := w.claim(claimFor("executor-2"))
	require.Empty(t, r.Run)
	require.Zero(t, r.Claimable)
	require.GreaterOrEqual(t, r.RetryAfterMS, int64(1000))
	require.Less(t, r.RetryAfterMS, int64(2000))
	s := w.svc.Stats()
	require.EqualValues(t, 3, s.ClaimsGiven.Load())
	require.EqualValues(t, 4, s.Claims.Load())
}

func TestClaim_AgentAndLabels_Filter(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	labels := func(team string) func(*schema.RunStartedData) {
		return func(d *schema.RunStartedData) { d.Labels = map[string]string{"team": team, "x": "y"} }
	}
	w.orphan("other-agent", "executor-1", 100, labels("a"), func(d *schema.RunStartedData) { d.Agent = "agent-2" })
	w.orphan("other-team", "executor-1", 90, labels("b"))
	w.orphan("unlabelled", "executor-1", 80)
	w.orphan("wanted", "executor-1", 10, labels("a"))
	req := claimFor("executor-2")
	req.Agents, req.Labels = []string{"agent-3", "agent-1"}, map[string]string{"team": "a"}
	r := w.claim(req)
	require.Equal(t, "wanted", r.Run)
	require.Equal(t, 1, r.Claimable)
	req.RequestID = "another"
	require.Empty(t, w.claim(req).Run)
}

// A claim is a takeover: it names the instance, fences the old executor, and a recover of the same request returns
// the rest.
func TestClaim_ThenRecover_ContinuesEpoch(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.orphan("run-1", "executor-1", 10)
	req := claimFor("executor-2")
	given := w.claim(req)
	require.EqualValues(t, 2, given.Epoch)
	reply, a := w.recover("run-1", schema.RecoverRequest{
		Executor: req.Executor, Instance: req.Instance, RequestID: req.RequestID, Reason: "claim", View: schema.ViewEvents,
	})
	require.EqualValues(t, 2, reply.Epoch)
	require.Equal(t, "executor-2", reply.Head.Executor)
	require.Equal(t, "start-1", reply.Head.Instance)
	require.Equal(t, 1, reply.Head.Stalled)
	require.Len(t, a.records(t), len(x.Acked)+1)
	require.EqualValues(t, 1, w.svc.Stats().Takeovers.Load())
}

func TestClaim_Repeated_SameRun(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	for i := range 8 {
		w.orphan(fmt.Sprintf("run-%d", i), "executor-1", 100-i)
	}
	req := claimFor("executor-2")
	first := w.claim(req)
	require.Equal(t, first, w.claim(req))
	same := req
	same.Executor = "executor-3"
	require.NotEqual(t, first.Run, w.claim(same).Run, "another executor's request")
	require.EqualValues(t, 2, w.svc.Stats().Takeovers.Load())
}

// The reply was lost, and another replica answers the repeat: before and after its live runs have the takeover.
func TestClaim_RepeatedAtOtherReplica_SameRun(t *testing.T) {
	t.Parallel()
	for _, told := range []bool{false, true} {
		t.Run(fmt.Sprintf("live runs told %v", told), func(t *testing.T) {
			t.Parallel()
			w := newServiceWorld(t)
			settings, _, err := kvstore.NewFleets(w.JS).Get(t.Context(), "default")
			require.NoError(t, err)
			runs := []string{"run-1", "run-2", "run-3", "run-4"}
			for i, run := range runs {
				w.orphan(run, "executor-1", 100-i)
			}
			req := claimFor("executor-2")
			first := w.claim(req)
			w.stop()
			second, _ := w.serve(settings, serviceConfig{Name: "service-2"})
			for i, run := range runs {
				head := w.headAt(run, 6)
				live := schema.LiveOf(&head)
				live.Since = schema.FormatTime(time.Unix(1_700_000_000-int64(100-i), 0))
				w.feed(w.liveRuns, live)
			}
			if told {
				w.told(first.Run)
			}
			again := w.claim(req)
			require.Equal(t, first.Run, again.Run)
			require.Equal(t, first.Epoch, again.Epoch)
			require.Zero(t, second.Stats().Takeovers.Load())
		})
	}
}

// headAt is the head after the first n events of a run.
func (w *serviceWorld) headAt(run string, n int) schema.Head {
	w.TB.Helper()
	_, a := w.get(run, schema.ViewEvents)
	h := schema.NewHead("default", run)
	for _, rec := range a.records(w.TB)[:n] {
		h.Apply(schema.NoKeys, &rec)
	}
	return h
}

func TestClaim_RepeatedConcurrently_TakesOneRun(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	for i := range 8 {
		w.orphan(fmt.Sprintf("run-%d", i), "executor-1", 100-i)
	}
	req := claimFor("executor-2")
	replies := make([]*schema.ClaimReply, 8)
	var wg sync.WaitGroup
	for i := range replies {
		wg.Go(func() { replies[i] = w.claim(req) })
	}
	wg.Wait()
	for _, r := range replies {
		require.Equal(t, replies[0], r)
	}
	require.EqualValues(t, 1, w.svc.Stats().Takeovers.Load())
}

// Fifty executors claim at once, from two replicas that know the same runs: each run is given once, with one new
// epoch.
func TestClaim_Racing_EachRunOnce(t *testing.T) {
	t.Parallel()
	loose := func(_ *kvstore.FleetConfig, c *serviceConfig) { c.ClaimRate, c.ClaimBurst = 1000, 1000 }
	w := newServiceWorld(t, loose)
	settings, _, err := kvstore.NewFleets(w.JS).Get(t.Context(), "default")
	require.NoError(t, err)
	first := w.liveRuns
	second, _ := w.serve(settings, serviceConfig{Name: "service-2", ClaimRate: 1000, ClaimBurst: 1000})
	const runs, claimers = 20, 50
	for i := range runs {
		x := w.orphan(fmt.Sprintf("run-%02d", i), "executor-1", 100-i)
		head := x.Model()
		w.feed(first, schema.LiveOf(&head))
	}
	var mu sync.Mutex
	given := map[string]string{}
	var wg sync.WaitGroup
	for i := range claimers {
		wg.Go(func() {
			executor := fmt.Sprintf("claimer-%d", i)
			for {
				r := w.claim(claimFor(executor))
				if r.Run == "" && r.Claimable == 0 {
					return
				}
				if r.Run == "" {
					continue // other claims are active
				}
				mu.Lock()
				defer mu.Unlock()
				require.Empty(t, given[r.Run], "run %s was given twice", r.Run)
				require.EqualValues(t, 2, r.Epoch)
				given[r.Run] = executor
				return
			}
		})
	}
	wg.Wait()
	require.Len(t, given, runs)
	for run, executor := range given {
		got, _ := w.get(run, schema.ViewHead)
		require.EqualValues(t, 2, got.Head.Epoch)
		require.Equal(t, executor, got.Head.Executor)
		require.Zero(t, got.Head.Counts.DeadLetters)
	}
	a, b := w.svc.Stats(), second.Stats()
	require.EqualValues(t, runs, a.Takeovers.Load()+b.Takeovers.Load())
	require.EqualValues(t, runs, a.ClaimsGiven.Load()+b.ClaimsGiven.Load())
	t.Logf("%d runs, %d claims, %d lost to another", runs, a.Claims.Load()+b.Claims.Load(), a.ClaimsLost.Load()+b.ClaimsLost.Load())
}

func TestClaim_StaleCandidate_Skipped(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.orphan("taken", "executor-1", 100)
	back := w.orphan("back", "executor-1", 90)
	w.orphan("ended", "executor-1", 80)
	w.orphan("free", "executor-1", 10)
	gone := w.headAt("free", 6)
	gone.Run = "gone"
	live := schema.LiveOf(&gone)
	live.Since = schema.FormatTime(time.Unix(0, 0))
	w.feed(w.liveRuns, live)
	w.recover("taken", takeover("executor-3", "req-1"))
	back.Publish(&schema.TurnStartedData{Turn: back.Turn + 1}, back.Turn+1)
	x, _ := w.recover("ended", takeover("executor-3", "req-2"))
	require.EqualValues(t, 2, x.Epoch)
	r := w.claim(claimFor("executor-2"))
	require.NotEmpty(t, r.Run)
	got, _ := w.get(r.Run, schema.ViewHead)
	require.Equal(t, "executor-2", got.Head.Executor)
	require.Contains(t, []string{"free", "back"}, r.Run)
	require.GreaterOrEqual(t, w.svc.Stats().ClaimsLost.Load(), int64(2))
}

func TestClaim_LosesEveryRace_ToldToRetry(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	for i := range 20 {
		id := fmt.Sprintf("run-%02d", i)
		w.orphan(id, "executor-1", 100-i)
		w.recover(id, takeover("executor-3", "req-1"))
	}
	r := w.claim(claimFor("executor-2"))
	require.Empty(t, r.Run)
	require.Positive(t, r.RetryAfterMS)
	require.Positive(t, r.Claimable)
	require.EqualValues(t, 8, w.svc.Stats().ClaimsLost.Load(), "tries are bounded")
	require.Empty(t, w.claim(claimFor("executor-2")).Run)
	require.EqualValues(t, 16, w.svc.Stats().ClaimsLost.Load(), "and go on where they ended")
}

func TestClaim_QuarantinedRun_OnlyByName(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.orphan("run-1", "executor-1", 10)
	for i := range 3 {
		r := w.claim(claimFor("executor-2"))
		require.Equal(t, "run-1", r.Run, "claim %d", i+1)
		x.Run = schema.Writer{Fleet: "default", Run: "run-1", Executor: "executor-2", Epoch: r.Epoch}
		reply, _ := w.get("run-1", schema.ViewHead)
		x.Last = uint64(reply.Head.Position.Stream)
		x.Publish(&schema.RunInterruptedData{Reason: "preempted"}, 0)
		w.told("run-1")
	}
	require.Empty(t, w.claim(claimFor("executor-2")).Run)
	req := takeover("executor-2", "req-1")
	req.Reason = "claim"
	e := w.refused(schema.VerbRecover, "run-1", req)
	require.Equal(t, schema.CodeQuarantined, e.Code)
	require.Contains(t, e.Hint, "waymark release run-1")
	req.Reason = "request"
	reply, _ := w.recover("run-1", req)
	require.Zero(t, reply.Head.Stalled)
}

func TestClaim_AboveRate_ToldToSlowDown(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.stop()
	clock := fleettest.NewHandClock(time.Unix(1_700_000_000, 0))
	log := natstest.Logger(t)
	w.liveRuns = liveness.NewLiveRuns(w.shards, 0, clock.Now, log)
	nc := w.Server.Conn(t)
	svc, err := service.New(serviceConfig{Fleet: "default", Name: "service-1", ClaimRate: 10, ClaimBurst: 3, Timeout: testTimeout}, nc, foldtest.JetStream(t, nc), w.shards, w.liveRuns, clock.Now, log)
	require.NoError(t, err)
	w.start(svc)
	for i := range 12 {
		w.orphan(fmt.Sprintf("run-%02d", i), "executor-1", 100-i)
	}
	for range 3 {
		require.NotEmpty(t, w.claim(claimFor("executor-2")).Run, "the burst")
	}
	for i := range 5 {
		r := w.claim(claimFor("executor-2"))
		require.Empty(t, r.Run)
		require.Equal(t, 9, r.Claimable)
		place := int64(i+1) * 100
		require.GreaterOrEqual(t, r.RetryAfterMS, place, "each has a place of its own")
		require.LessOrEqual(t, r.RetryAfterMS, place+place/2, "with some jitter")
	}
	require.EqualValues(t, 5, svc.Stats().ClaimsLimited.Load())
	clock.Forward(100 * time.Millisecond)
	require.NotEmpty(t, w.claim(claimFor("executor-2")).Run)
	require.Empty(t, w.claim(claimFor("executor-2")).Run)
	for range 1000 {
		require.LessOrEqual(t, w.claim(claimFor("executor-2")).RetryAfterMS, int64(45_000), "the line is bounded")
	}
}

func TestClaim_Invalid_Refused(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.orphan("run-1", "executor-1", 10)
	req := func(change func(*schema.ClaimRequest)) schema.ClaimRequest {
		r := claimFor("executor-2")
		change(&r)
		return r
	}
	many := make([]string, 300)
	for i := range many {
		many[i] = "agent"
	}
	labels := map[string]string{}
	for i := range 40 {
		labels[fmt.Sprint(i)] = "x"
	}
	for _, c := range []struct {
		req  any
		says string
	}{
		{req(func(r *schema.ClaimRequest) { r.Executor = "" }), "/executor"},
		{req(func(r *schema.ClaimRequest) { r.Instance = "a.b" }), "/instance"},
		{req(func(r *schema.ClaimRequest) { r.RequestID = "" }), "/request_id"},
		{req(func(r *schema.ClaimRequest) { r.Agents = []string{"ok", "not ok"} }), "/agents/1"},
		{req(func(r *schema.ClaimRequest) { r.Agents = many }), "/agents"},
		{req(func(r *schema.ClaimRequest) { r.Labels = labels }), "/labels"},
		{[]byte(`{"executor":`), "request at"},
	} {
		e := w.refused(schema.VerbClaim, "", c.req)
		require.Equal(t, schema.CodeBadRequest, e.Code)
		require.Contains(t, e.Message, c.says)
	}
	require.Zero(t, w.svc.Stats().Takeovers.Load())
	req2 := takeover("executor-2", "req-1")
	req2.Instance = "a b"
	require.Contains(t, w.refused(schema.VerbRecover, "run-1", req2).Message, "/instance")
}

// The event stream is gone for a moment, so it is unknown whether the takeover was stored. The repeat gets another run;
// if it was stored, the live runs name it.
func TestClaim_TakeoverUnknown_RepeatGetsAnotherRun(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.orphan("run-1", "executor-1", 100)
	w.orphan("run-2", "executor-1", 10)
	stream, err := w.JS.Stream(t.Context(), w.Names.EventStream())
	require.NoError(t, err)
	cfg := stream.CachedInfo().Config
	// A stream without the subject does not acknowledge what is published there.
	deaf := cfg
	deaf.Subjects = []string{strings.TrimSuffix(w.Names.EventSubject("x"), "x") + "nothing"}
	_, err = w.JS.UpdateStream(t.Context(), deaf)
	require.NoError(t, err)
	req := claimFor("executor-2")
	e := w.refused(schema.VerbClaim, "", req)
	require.Equal(t, schema.CodeUnavailable, e.Code, e.Message)
	_, err = w.JS.UpdateStream(t.Context(), cfg)
	require.NoError(t, err)
	require.Equal(t, "run-2", w.claim(req).Run)
	require.EqualValues(t, 1, w.svc.Stats().Takeovers.Load())
	got, _ := w.get("run-1", schema.ViewHead)
	require.True(t, got.Head.Status.Claimable())
}

// The whole way: a fold worker writes the live index, the live runs follow it, and a run whose claimer left is given
// to another executor.
func TestClaim_LiveIndex_Followed(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.Fold(fold.Config{})
	w.follow(w.liveRuns)
	claimable := func(want int) {
		t.Helper()
		require.Eventually(t, func() bool {
			_, total := w.liveRuns.Claimable(time.Now(), liveness.Want{Executor: "x"})
			return w.liveRuns.Synced() && total == want
		}, time.Minute, 5*time.Millisecond)
	}
	x := w.aRun("run-1", 1, 10)
	w.aRun("busy", 1, 10)
	x.Publish(&schema.RunInterruptedData{Reason: "shutdown"}, 0)
	claimable(1)
	for epoch := schema.Epoch(2); epoch <= 4; epoch++ {
		req := claimFor(fmt.Sprintf("executor-%d", epoch))
		r := w.claim(req)
		require.Equal(t, "run-1", r.Run)
		require.Equal(t, epoch, r.Epoch)
		reply, _ := w.recover("run-1", schema.RecoverRequest{Executor: req.Executor, RequestID: req.RequestID, Reason: "claim"})
		require.Equal(t, epoch, reply.Epoch)
		claimable(0)
		x.resume(reply, req.Executor)
		x.TurnOf(10)
		x.Publish(&schema.RunInterruptedData{Reason: "shutdown"}, 0)
		claimable(1)
	}
	// A run that waits needs no executor until it is answered.
	reply := w.claim(claimFor("executor-5"))
	require.EqualValues(t, 5, reply.Epoch)
	got, _ := w.get("run-1", schema.ViewHead)
	x.Run = schema.Writer{Fleet: "default", Run: "run-1", Executor: "executor-5", Epoch: 5}
	x.Last = uint64(got.Head.Position.Stream)
	x.wait("w1", yesOrNo)
	x.Publish(&schema.RunInterruptedData{Reason: "waiting"}, 0)
	claimable(0)
	w.control(schema.VerbInput, "run-1", answerTo("w1", `{"ok":true}`))
	claimable(1)
	require.EqualValues(t, 6, w.claim(claimFor("executor-6")).Epoch)
}
