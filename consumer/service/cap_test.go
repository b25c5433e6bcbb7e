package service_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// capWorld is a world with a fold worker and replicas that obey limits.
type capWorld struct {
	*serviceWorld
	limits []schema.Limit
}

func fast(_ *kvstore.FleetConfig, c *serviceConfig) { c.ClaimRate, c.ClaimBurst = 1e6, 1e6 }

func newCapWorld(t *testing.T, limits ...schema.Limit) *capWorld {
	t.Helper()
	w := &capWorld{newServiceWorld(t, fast), limits}
	w.Fold(fold.Config{})
	w.liveRuns.SetLimits(limits)
	w.follow(w.liveRuns)
	return w
}

// atWork is a limit of all runs.
func atWork(n int) schema.Limit { return schema.Limit{AtWork: n} }

// waiting publishes a run that an executor gave back, with labels of pairs.
func (w *capWorld) waiting(run string, labels map[string]string) *writer {
	w.TB.Helper()
	x := w.writer(run)
	x.Publish(&schema.RunStartedData{Agent: "agent-1", Executor: "executor-1", Labels: labels}, 0)
	x.Publish(&schema.RunInterruptedData{Reason: "shutdown"}, 0)
	return x
}

// known waits until live runs have the state of the runs in the log.
func (w *capWorld) known(live *liveness.LiveRuns, runs ...string) {
	w.TB.Helper()
	for _, run := range runs {
		head := w.logged(run)
		require.Eventually(w.TB, func() bool {
			l, ok := live.Get(run)
			return live.Synced() && (head.Status.Terminal() && !ok || ok && l.Epoch == head.Epoch && l.Status == head.Status)
		}, time.Minute, time.Millisecond, run)
	}
}

// logged is a run's head by the log.
func (w *capWorld) logged(run string) schema.Head {
	w.TB.Helper()
	h := schema.NewHead("default", run)
	for _, rec := range w.Log(run) {
		h.Apply(schema.NoKeys, &rec)
	}
	return h
}

// replica starts another replica on a connection through a tap, and returns it with its live runs.
func (w *capWorld) replica(name string, tap *foldtest.Tap) (*service.Service, *liveness.LiveRuns) {
	w.TB.Helper()
	nc := w.Server.Conn(w.TB, nats.SetCustomDialer(tap), nats.MaxReconnects(0), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	js := foldtest.JetStream(w.TB, nc)
	shards, log := []*kvstore.Shard{w.openOn(js, name)}, natstest.Logger(w.TB)
	live := liveness.NewLiveRuns(shards, 0, time.Now, log)
	live.SetLimits(w.limits)
	svc, err := service.New(serviceConfig{Fleet: "default", Name: name, ClaimRate: 1e6, ClaimBurst: 1e6, Timeout: testTimeout, Grace: time.Millisecond}, nc, js, shards, live, time.Now, log)
	require.NoError(w.TB, err)
	ctx, cancel := context.WithCancel(w.TB.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = live.Run(ctx) })
	wg.Go(func() { _ = svc.Run(ctx) }) // a killed one returns an error
	w.TB.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return svc, live
}

// most replays the logs of the runs in the order in which their events were stored, from a position on, and returns the
// most runs of a limit's share that were at work together.
func (w *capWorld) most(l schema.Limit, from schema.StreamSequence, runs []string) int {
	w.TB.Helper()
	var all []schema.Record
	of := make(map[schema.StreamSequence]string)
	for _, run := range runs {
		log := w.Log(run)
		require.Contains(w.TB, fmt.Sprint(log[0].Header), "run.started", "the log of %s is whole", run)
		for _, rec := range log {
			of[rec.Stream] = run
		}
		all = append(all, log...)
	}
	slices.SortFunc(all, func(a, b schema.Record) int { return int(a.Stream) - int(b.Stream) })
	heads, shares := make(map[string]*schema.Head), make(map[string]map[string]bool)
	most := 0
	for i := range all {
		run := of[all[i].Stream]
		if heads[run] == nil {
			h := schema.NewHead("default", run)
			heads[run] = &h
		}
		heads[run].Apply(schema.NoKeys, &all[i])
		live := schema.LiveOf(heads[run])
		scope, ok := l.Of(&live)
		if !ok {
			continue
		}
		share := scope.Flags()
		if shares[share] == nil {
			shares[share] = make(map[string]bool)
		}
		delete(shares[share], run)
		if live.AtWork(0) {
			shares[share][run] = true
		}
		if all[i].Stream >= from {
			most = max(most, len(shares[share]))
		}
	}
	return most
}

// Two hundred claimers, two limits and two replicas, one of which dies before or after each of its writes in turn.
// Executors complete runs, give them back, or die.
func TestCap_ReplicasDieAtAnyStep_NeverOneMoreAtWork(t *testing.T) {
	t.Parallel()
	all, each := atWork(4), schema.Limit{Each: "team", AtWork: 2}
	w := newCapWorld(t, all, each)
	total, claimers := 150, 200
	if testing.Short() {
		total, claimers = 40, 50
		t.Log("short: 40 runs instead of 150")
	}
	runs := make([]string, total)
	var from schema.StreamSequence
	for i := range runs {
		runs[i] = fmt.Sprintf("run-%03d", i)
		from = schema.StreamSequence(w.waiting(runs[i], map[string]string{"team": fmt.Sprint("team-", i%3)}).Last)
	}
	w.known(w.liveRuns, runs...)
	ctx, done := context.WithCancel(t.Context())
	defer done()
	var wg sync.WaitGroup
	var left, kills atomic.Int64
	left.Store(int64(total))
	wg.Go(func() { // the second replica
		for n := int64(0); ctx.Err() == nil; n++ {
			tap := &foldtest.Tap{Prefixes: []string{"$KV." + schema.LeaseBucket + ".places.", "waymark.events."}, After: n%2 == 1}
			var writes atomic.Int64
			died := make(chan struct{})
			tap.Set(func(string) {
				if writes.Add(1) == 1+n/2%6 {
					tap.Dead.Store(true)
					close(died)
				}
			})
			w.replica(fmt.Sprint("service-2-", n), tap)
			select {
			case <-died:
				kills.Add(1)
			case <-ctx.Done():
			}
		}
	})
	var mu sync.Mutex
	held := make(map[string]schema.Epoch)
	holds := func(run string, epoch schema.Epoch) bool {
		mu.Lock()
		defer mu.Unlock()
		return held[run] == epoch
	}
	wg.Go(func() { // the sweeper: runs that no executor knows of are orphaned
		seen := make(map[string]schema.Epoch)
		for pause.For(ctx, 100*time.Millisecond) == nil {
			for _, run := range runs {
				h := w.logged(run)
				if h.Status == schema.StatusRunning && h.Epoch > 1 && !holds(run, h.Epoch) {
					if seen[run] == h.Epoch {
						_ = service.Write(ctx, w.svc, run, &schema.RunOrphanedData{Executor: h.Executor, Unheld: true}) // the next round tries again
					}
					seen[run] = h.Epoch
				}
			}
		}
	})
	for i := range claimers {
		wg.Go(func() {
			executor := fmt.Sprintf("claimer-%d", i)
			for n := 0; left.Load() > 0 && ctx.Err() == nil; n++ {
				reply := w.ofAny(ctx, claimFor(executor))
				if reply.Run == "" {
					_ = pause.For(ctx, min(time.Duration(reply.RetryAfterMS)*time.Millisecond, 300*time.Millisecond)) // the loop ends with ctx
					continue
				}
				mu.Lock()
				held[reply.Run] = reply.Epoch
				mu.Unlock()
				switch (i + n) % 4 {
				case 0:
					w.writes(reply, executor)
					mu.Lock()
					delete(held, reply.Run) // it dies
					mu.Unlock()
				case 1:
					w.writes(reply, executor, &schema.RunInterruptedData{Reason: "preempted"})
				default:
					if w.writes(reply, executor, &schema.RunEndedData{Status: string(schema.StatusCompleted)}) && left.Add(-1) == 0 {
						done()
					}
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, left.Load(), "every run has ended")
	require.LessOrEqual(t, w.most(all, from+1, runs), 4)
	require.LessOrEqual(t, w.most(each, from+1, runs), 2)
	require.Equal(t, 4, w.most(all, from+1, runs), "the limit was reached")
	t.Logf("%d runs ended, %d replicas were killed", total, kills.Load())
}

// ofAny claims, and repeats the request until a replica answers.
func (w *capWorld) ofAny(ctx context.Context, req schema.ClaimRequest) *schema.ClaimReply {
	body, _ := json.Marshal(req) // plain fields
	reply := new(schema.ClaimReply)
	for ctx.Err() == nil {
		within, cancel := context.WithTimeout(ctx, 2*time.Second)
		m, err := w.client.RequestWithContext(within, schema.ServiceSubject(schema.VerbClaim, "default", ""), body)
		cancel()
		if err == nil && m.Header.Get(schema.HeaderErrorCode) == "" && json.Unmarshal(m.Data, reply) == nil {
			break
		}
	}
	return reply
}

// writes publishes a turn, and then other events, of an executor that claimed a run, and reports whether it still had the run.
func (w *capWorld) writes(of *schema.ClaimReply, executor string, more ...schema.Data) bool {
	h := w.logged(of.Run)
	if h.Epoch != of.Epoch || h.Executor != executor || h.Status != schema.StatusRunning {
		return false
	}
	x := schema.Writer{Fleet: "default", Run: of.Run, Executor: executor, Epoch: of.Epoch, Last: h.Sequence}
	last := uint64(h.Position.Stream)
	for i, d := range append([]schema.Data{&schema.TurnStartedData{Turn: h.Turn + 1}, &schema.TurnEndedData{Turn: h.Turn + 1}}, more...) {
		turn := h.Turn + 1
		if i > 1 {
			turn = 0
		}
		e, err := x.Event(d, turn, time.Now(), 0)
		if err != nil || x.Commit(e) != nil {
			return false
		}
		header, body := e.Encode()
		ack, err := w.JS.PublishMsg(w.TB.Context(), &nats.Msg{Subject: w.Names.EventSubject(of.Run), Header: header, Data: body}, jetstream.WithExpectLastSequencePerSubject(last))
		if err != nil {
			return false
		}
		last = ack.Sequence
	}
	return true
}

// other starts a second replica that knows the runs.
func (w *capWorld) other(runs ...string) *service.Service {
	w.TB.Helper()
	svc, live := w.replica("service-2", new(foldtest.Tap))
	w.known(live, runs...)
	return svc
}

// full requires that an attempt finds no place for a run.
func full(tb testing.TB, err error, run string) {
	tb.Helper()
	require.ErrorContains(tb, err, "run "+run+" waits for a place: limit")
}

// none requires that no run is given to an executor.
func (w *capWorld) none(executor string) {
	w.TB.Helper()
	reply := w.claim(claimFor(executor))
	require.Empty(w.TB, reply.Run)
	require.Positive(w.TB, reply.RetryAfterMS)
}

// places are the stored places of a run's share in a limit.
func (w *capWorld) places(run string, l schema.Limit) (list []string) {
	w.TB.Helper()
	live, ok := w.liveRuns.Get(run)
	require.True(w.TB, ok)
	for _, s := range w.liveRuns.SharesOf(&live) {
		if s.Same(&l) {
			stored, _, err := kvstore.NewPlaces(w.JS, "default").Get(w.TB.Context(), s.Key)
			require.NoError(w.TB, err)
			for _, p := range stored {
				list = append(list, p.Run)
			}
		}
	}
	return list
}

func TestCap_TakeoverInFlight_KeepsItsPlace(t *testing.T) {
	t.Parallel()
	w := newCapWorld(t, atWork(1))
	w.waiting("run-1", nil)
	w.waiting("run-2", nil)
	w.known(w.liveRuns, "run-1", "run-2")
	other := w.other("run-1", "run-2")
	publish, err := service.Place(t.Context(), w.svc, "run-1")
	require.NoError(t, err)
	_, err = service.Place(t.Context(), other, "run-2")
	full(t, err, "run-2")
	require.NoError(t, publish())
	_, err = service.Place(t.Context(), other, "run-2")
	full(t, err, "run-2")
	require.Equal(t, []string{"run-1"}, w.places("run-1", atWork(1)))
}

func TestCap_AnotherEventComesFirst_PlaceIsTakenAgain(t *testing.T) {
	t.Parallel()
	w := newCapWorld(t, atWork(1))
	for _, run := range []string{"run-1", "run-2"} {
		w.waiting(run, nil)
	}
	w.known(w.liveRuns, "run-1", "run-2")
	other := w.other("run-1", "run-2")
	refused, err := service.Place(t.Context(), w.svc, "run-1")
	require.NoError(t, err)
	require.NoError(t, service.Write(t.Context(), w.svc, "run-1", &schema.SignalSentData{SignalID: "s", Name: "n", By: "ann"}))
	require.ErrorContains(t, refused(), "came first")
	again, err := service.Place(t.Context(), w.svc, "run-1")
	require.NoError(t, err)
	_, err = service.Place(t.Context(), other, "run-2")
	full(t, err, "run-2")
	require.NoError(t, service.Write(t.Context(), w.svc, "run-1", &schema.SignalSentData{SignalID: "s2", Name: "n", By: "ann"}))
	require.ErrorContains(t, again(), "came first")

	// No takeover can follow the place's position any more: the place is given away.
	publish, err := service.Place(t.Context(), other, "run-2")
	require.NoError(t, err)
	_, err = service.Place(t.Context(), w.svc, "run-1")
	full(t, err, "run-1")
	require.NoError(t, publish())
}

// A replica died between the place and the takeover.
func TestCap_RunWithAPlace_IsGivenThoughTheShareIsFull(t *testing.T) {
	t.Parallel()
	w := newCapWorld(t, atWork(1))
	w.waiting("run-older", nil)
	w.waiting("run-placed", nil)
	w.known(w.liveRuns, "run-older", "run-placed")
	_, err := service.Place(t.Context(), w.other("run-older", "run-placed"), "run-placed")
	require.NoError(t, err)
	require.Equal(t, "run-placed", w.claim(claimFor("executor-2")).Run)
	w.none("executor-3")
}

func TestCap_AnotherShareIsFull_PlaceIsRemovedUnlessShared(t *testing.T) {
	t.Parallel()
	all, each := schema.Limit{Scope: schema.Scope{Agent: "agent-1"}, AtWork: 1}, schema.Limit{Each: "team", AtWork: 5}
	w := newCapWorld(t, all, each)
	team := func(i int) map[string]string { return map[string]string{"team": fmt.Sprint(i)} }
	first := 0 // a team whose share comes before that of all
	for shares := w.liveRuns.SharesOf(&schema.Live{Agent: "agent-1", Labels: team(first)}); shares[0].Each == ""; first++ {
		shares = w.liveRuns.SharesOf(&schema.Live{Agent: "agent-1", Labels: team(first + 1)})
	}
	w.waiting("run-1", team(first))
	w.waiting("run-2", team(first))
	w.known(w.liveRuns, "run-1", "run-2")
	require.Equal(t, "run-1", w.claim(claimFor("executor-2")).Run)
	_, err := service.Place(t.Context(), w.svc, "run-2")
	full(t, err, "run-2")
	require.Equal(t, []string{"run-1"}, w.places("run-2", each))

	// A replica that does not know the other limit yet has a takeover in flight.
	w.limits = []schema.Limit{each}
	publish, err := service.Place(t.Context(), w.other("run-2"), "run-2")
	require.NoError(t, err)
	_, err = service.Place(t.Context(), w.svc, "run-2")
	full(t, err, "run-2")
	require.Equal(t, []string{"run-1", "run-2"}, w.places("run-2", each))
	require.NoError(t, publish())
}

func TestCap_RunsByName_CountAndAreNotRefused(t *testing.T) {
	t.Parallel()
	w := newCapWorld(t, atWork(1))
	started := w.writer("run-started")
	started.Start()
	waiting := w.waiting("run-2", nil)
	w.known(w.liveRuns, "run-started", "run-2")
	w.none("executor-2")
	by := takeover("executor-2", "req-1")
	by.Reason = schema.TakeoverClaim
	refused := w.refused(schema.VerbRecover, "run-2", by)
	require.Equal(t, []any{schema.CodeConflict, "run run-2 waits for a place: limit --all, 1 at work"}, []any{refused.Code, refused.Message})
	reply, _ := w.recover("run-2", takeover("executor-2", "req-2"))
	require.EqualValues(t, 2, reply.Epoch)

	// More are at work than the limit allows, without a place. Each is given to another executor when its own dies.
	for _, run := range []string{"run-started", "run-2"} {
		require.NoError(t, service.Write(t.Context(), w.svc, run, &schema.RunOrphanedData{Executor: "x"}))
	}
	w.waiting("run-3", nil)
	w.known(w.liveRuns, "run-started", "run-2", "run-3")
	got := []string{w.claim(claimFor("executor-3")).Run, w.claim(claimFor("executor-4")).Run}
	require.ElementsMatch(t, []string{"run-started", "run-2"}, got)
	w.none("executor-5")
	head := w.logged("run-2")
	waiting.resume(&schema.RecoverReply{Epoch: 3, NextSequence: 1, LastStream: head.Position.Stream}, head.Executor)
	waiting.end(schema.StatusCompleted)
	w.known(w.liveRuns, "run-2")
	w.none("executor-5")
}

// A quarantined orphan waits for a person: it keeps no other run waiting.
func TestCap_QuarantinedOrphan_IsNotAtWork(t *testing.T) {
	t.Parallel()
	w := newCapWorld(t, atWork(1))
	w.waiting("run-1", nil)
	w.known(w.liveRuns, "run-1")
	for range schema.DefaultMaxClaims {
		require.Equal(t, "run-1", w.claim(claimFor("executor-2")).Run)
		require.NoError(t, service.Write(t.Context(), w.svc, "run-1", &schema.RunOrphanedData{Executor: "executor-2"}))
		w.known(w.liveRuns, "run-1")
	}
	w.waiting("run-2", nil)
	w.known(w.liveRuns, "run-2")
	require.Equal(t, "run-2", w.claim(claimFor("executor-2")).Run)
}

func TestCap_RunLeaves_WaitingExecutorIsCalled(t *testing.T) {
	t.Parallel()
	w := newCapWorld(t, atWork(1))
	x := w.waiting("run-1", nil)
	w.waiting("run-2", nil)
	w.known(w.liveRuns, "run-1", "run-2")
	given := w.claim(claimFor("executor-1"))
	require.Equal(t, "run-1", given.Run)
	w.known(w.liveRuns, "run-1")
	notices, err := w.client.SubscribeSync(schema.NoticeSubject("default", "executor-2"))
	require.NoError(t, err)
	require.NoError(t, w.client.Flush())
	w.none("executor-2")
	x.resume(&schema.RecoverReply{Epoch: 2, NextSequence: 1, LastStream: w.logged("run-1").Position.Stream}, "executor-1")
	x.end(schema.StatusCompleted)
	m, err := notices.NextMsg(time.Minute)
	require.NoError(t, err)
	require.Equal(t, schema.Notice{Run: "run-2", Name: schema.RunClaimable}, *decodeAs[schema.Notice](t, m.Data))
	require.Equal(t, "run-2", w.claim(claimFor("executor-2")).Run)
}

func TestCap_TableIsGone_NothingIsGiven(t *testing.T) {
	t.Parallel()
	w := newCapWorld(t, atWork(1))
	w.waiting("run-1", nil)
	w.known(w.liveRuns, "run-1")
	require.NoError(t, w.JS.DeleteStream(t.Context(), "KV_"+schema.LeaseBucket))
	require.Equal(t, schema.CodeUnavailable, w.refused(schema.VerbClaim, "", claimFor("executor-2")).Code)
	require.EqualValues(t, 1, w.logged("run-1").Epoch)
}

func TestCap_WaitingRun_SaysForWhichPlace(t *testing.T) {
	t.Parallel()
	each := schema.Limit{Each: "team", AtWork: 1}
	w := newCapWorld(t, each)
	for _, run := range []string{"run-1", "run-2", "run-3"} {
		w.waiting(run, map[string]string{"team": "a"})
	}
	w.waiting("run-free", nil)
	w.known(w.liveRuns, "run-1", "run-2", "run-3", "run-free")
	require.Equal(t, "run-1", w.claim(claimFor("executor-2")).Run)
	w.known(w.liveRuns, "run-1")
	full := func(run string) []schema.Limit {
		reply, _ := w.get(run, schema.ViewHead)
		return reply.Full
	}
	require.Equal(t, []schema.Limit{{Scope: schema.Scope{Labels: map[string]string{"team": "a"}}, AtWork: 1}}, full("run-2"))
	require.Equal(t, "waits for a place: limit --label team=a, 1 at work", schema.FullText(full("run-2")))
	require.Empty(t, full("run-1"))
	require.Empty(t, full("run-free"))
	runs := w.svc.State(t.Context()).Runs
	require.Equal(t, []int{4, 1, 2}, []int{runs.Live, runs.Claimable, runs.Waiting})
	require.Equal(t, []schema.LimitShare{{Value: "a", AtWork: 1, Waiting: 2}}, w.liveRuns.Shares(&each))
}
