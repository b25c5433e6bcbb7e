package liveness

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const beat = schema.DefaultHeartbeatMS * time.Millisecond

func TestSweeper_SilentExecutor_OrphansRun(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	w.hb.beat("executor-1", "i1", beat, false)
	r := w.begin("run-1", "executor-1", "i1")
	w.pass(9, nil)
	r.stays(schema.StatusRunning)
	w.pass(1, nil)
	c := r.Becomes(schema.StatusOrphaned)
	require.Equal(t, int64(1), w.deps.Stats.Orphaned.Load())
	data := fleettest.LastData[schema.RunOrphanedData](r.Run)
	require.Equal(t, "executor-1", data.Executor)
	require.Equal(t, "i1", data.Instance)
	require.Equal(t, schema.FormatTime(fleettest.Noon), data.LastSeen)
	require.Equal(t, int64(3), data.Missed)
	w.pass(30, nil)
	require.Equal(t, c.Position, r.Checkpoint().Position, "once is enough")
	require.Equal(t, int64(1), w.deps.Stats.Orphaned.Load())
	got, _ := w.live.Claimable(w.Clock.Now(), Want{Executor: "x"})
	require.Equal(t, []string{"run-1"}, runsOf(got))
}

func TestSweeper_FleetAsksForShorterSilence_OrphansSooner(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	w.hb.beat("executor-1", "i1", 600*time.Millisecond, false)
	r := w.begin("run-1", "executor-1", "i1")
	w.pass(3, nil)
	r.stays(schema.StatusRunning)
	w.hb.SetSilence(4 * time.Second)
	require.Equal(t, 800*time.Millisecond, w.newSweeper().every())
	w.pass(1, nil)
	r.Becomes(schema.StatusOrphaned)
	w.hb.SetSilence(time.Minute)
	require.Equal(t, time.Second, w.newSweeper().every())
}

func TestSweeper_HeartbeatsOnly_KeepAlive(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	second := 0
	w.pass(60, func() {
		if second++; second%9 == 0 { // two of three are lost
			w.hb.beat("executor-1", "i1", beat, false)
		}
	})
	r.stays(schema.StatusRunning)
	w.pass(12, nil)
	r.Becomes(schema.StatusOrphaned)
}

func TestSweeper_OtherInstanceHeartbeats_DoNotKeepAlive(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	named := w.begin("run-1", "executor-1", "i1")
	plain := w.begin("run-2", "executor-1", "")
	w.pass(20, func() { w.hb.beat("executor-1", "i2", beat, false) })
	named.Becomes(schema.StatusOrphaned)
	require.Equal(t, int64(1), w.deps.Stats.Orphaned.Load())
	require.Equal(t, schema.StatusRunning, plain.Checkpoint().Status, "a run that names no instance lives under any")
	w.pass(11, nil)
	plain.Becomes(schema.StatusOrphaned)
}

// A run's events do not show that its executor lives: any client of the fleet can publish them.
func TestSweeper_Events_DoNotKeepAlive(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	w.pass(9, nil)
	r.Own(&schema.ErrorRaisedData{Error: schema.Error{Type: "x", Message: "y"}})
	r.stays(schema.StatusRunning)
	w.pass(1, nil)
	r.Becomes(schema.StatusOrphaned)
}

// The daemon was paused, and heartbeats may be unread: all silence timers reset. A sweep that waits for a slow disk is no
// pause.
func TestSweeper_DaemonPaused_ResetsTimers(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	machine := time.Now()
	w.hb.wakeful(machine)
	w.pass(9, nil)
	w.Clock.Forward(time.Minute)
	w.hb.wakeful(machine.Add(lateTicks*awakeEvery + time.Millisecond))
	w.pass(9, nil)
	r.stays(schema.StatusRunning)
	w.pass(1, nil)
	r.Becomes(schema.StatusOrphaned)
}

// The machine is slow while a test moves the clock: the test has heard each living executor, so no timer resets.
func TestSweeper_PausedWhileATestHolds_KeepsTimers(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	machine := time.Now()
	w.hb.wakeful(machine)
	w.pass(1, nil)
	steady, heard := w.hb.Steady()
	require.True(t, heard)
	release := w.hb.Hold()
	w.Clock.Forward(time.Minute)
	w.hb.wakeful(machine.Add(lateTicks*awakeEvery + time.Millisecond))
	w.pass(1, nil)
	r.stays(schema.StatusRunning)
	release(steady)
	w.pass(1, nil)
	r.Becomes(schema.StatusOrphaned)
}

func TestSweeper_ControlEvents_DoNotKeepAlive(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	r.Control(&schema.RunCancelRequestedData{By: "me"})
	for range 3 {
		w.pass(4, nil)
		r.Control(&schema.RunCancelRequestedData{By: "me"}) // again: it changes nothing in the entry
	}
	r.Becomes(schema.StatusOrphaned)
}

func TestSweeper_ExecutorLeaves_OrphansAtOnce(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	w.hb.beat("executor-1", "i1", beat, false)
	w.hb.beat("executor-2", "", beat, false)
	first := w.begin("run-1", "executor-1", "i1")
	second := w.begin("run-2", "executor-2", "")
	w.pass(1, nil)
	w.hb.beat("executor-1", "i1", beat, true)
	w.hb.beat("executor-2", "", beat, true)
	w.pass(1, nil)
	first.Becomes(schema.StatusOrphaned)
	second.Becomes(schema.StatusOrphaned)
	// Events that the log delivers later say nothing of an instance's future.
	late := w.begin("run-3", "executor-1", "i1")
	w.pass(1, nil)
	late.Becomes(schema.StatusOrphaned)
	// A process without an instance may have come back under the name.
	second.Control(&schema.RunResumedData{Executor: "executor-2", Reason: "claim", RequestID: "q1"})
	w.pass(10, nil)
	require.Equal(t, schema.StatusRunning, second.Checkpoint().Status)
	w.pass(1, nil)
	second.Becomes(schema.StatusOrphaned)
}

func TestSweeper_WaitingRun_NotOrphanedUntilAnswered(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	r.Own(&schema.RunWaitingData{InterruptID: "q1", Reason: "human_input"})
	w.pass(100, nil)
	r.stays(schema.StatusWaiting)
	r.Control(&schema.RunInputData{InterruptID: "q1", By: "me"})
	w.pass(1, nil)
	r.Becomes(schema.StatusOrphaned)
}

func TestSweeper_CancelledWaitingRun_Claimable(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	r.Own(&schema.RunWaitingData{InterruptID: "q1", Reason: "human_input"})
	w.pass(20, nil)
	r.Control(&schema.RunCancelRequestedData{By: "me"})
	w.pass(11, nil)
	r.Becomes(schema.StatusOrphaned)
}

// The executor of a waiting run is killed. Its signal must not wait for the answer.
func TestSweeper_SignalToAWaitingRun_Claimable(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	r.Own(&schema.RunWaitingData{InterruptID: "q1", Reason: "human_input"})
	w.pass(20, nil)
	r.stays(schema.StatusWaiting)
	r.Control(&schema.SignalSentData{SignalID: "s1", Name: "note", By: "ann"})
	w.pass(11, nil)
	r.Becomes(schema.StatusOrphaned)
	// The next executor reads the signal, and goes on to wait: then there is no work left.
	r.Control(&schema.RunResumedData{Executor: "executor-2", Reason: "claim", RequestID: "q1"})
	r.Own(&schema.RunInterruptedData{Reason: schema.InterruptedWaiting})
	w.pass(30, nil)
	require.Equal(t, schema.StatusWaiting, r.Checkpoint().Status)
	require.Equal(t, schema.StatusInterrupted, r.Checkpoint().Unattended)
	require.EqualValues(t, 1, w.deps.Stats.Orphaned.Load())
}

func TestSweeper_WaitDeadline_ExpiresWait(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	at := func(minutes int) string {
		return schema.FormatTime(fleettest.Noon.Add(time.Duration(minutes) * time.Minute))
	}
	r := w.begin("run-1", "executor-1", "i1")
	r.Own(&schema.RunWaitingData{InterruptID: "early-1", Reason: "human_input", ExpiresAt: at(30)})
	r.Own(&schema.RunWaitingData{InterruptID: "early-2", Reason: "human_input", ExpiresAt: at(30)})
	r.Own(&schema.RunWaitingData{InterruptID: "late", Reason: "human_input", ExpiresAt: at(60)})
	r.Own(&schema.RunWaitingData{InterruptID: "never", Reason: "human_input"})
	w.skip(28 * time.Minute)
	r.stays(schema.StatusWaiting)
	w.skip(4 * time.Minute)
	r.Settled(func(c *schema.Checkpoint) bool { return len(c.Interrupts) == 2 })
	data := fleettest.LastData[schema.RunInputData](r.Run)
	require.Equal(t, "early-2", data.InterruptID)
	require.Equal(t, "expired", data.Status)
	require.Equal(t, "daemon-1", data.By)
	w.skip(30 * time.Minute)
	c := r.Settled(func(c *schema.Checkpoint) bool { return len(c.Interrupts) == 1 })
	require.Equal(t, "never", c.Interrupts[0].InterruptID)
	require.Equal(t, schema.StatusWaiting, c.Status)
	require.Equal(t, int64(3), w.deps.Stats.Expired.Load())
	require.Zero(t, w.deps.Stats.Orphaned.Load())
}

// The executor's clock and the daemon's may differ from the server's by hours: a wait lasts as long as its executor
// said, from the server's time of storage of the question.
func TestSweeper_WrongClocks_WaitsLastTheirTime(t *testing.T) {
	t.Parallel()
	for name, clocks := range map[string]struct{ executor, daemon time.Duration }{
		"executor late":  {executor: -time.Hour},
		"executor early": {executor: time.Hour},
		"daemon late":    {daemon: -time.Hour},
		"daemon early":   {daemon: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newLifeWorld(t)
			r := w.begin("run-1", "executor-1", "i1")
			asked := fleettest.Noon.Add(clocks.executor)
			r.PublishAt(&schema.RunWaitingData{
				InterruptID: "q1", Reason: "human_input", ExpiresAt: schema.FormatTime(asked.Add(30 * time.Minute)),
			}, asked)
			r.Folded()
			expires := schema.ParseTime(r.Checkpoint().Interrupts[0].ExpiresAt)
			require.WithinDuration(t, w.begun.Add(30*time.Minute), expires, time.Minute, "by the server's clock")
			w.begun = w.begun.Add(-clocks.daemon) // the daemon's clock is noon, the server's is not
			w.Clock.Forward(clocks.daemon)
			w.skip(28 * time.Minute)
			r.stays(schema.StatusWaiting)
			w.skip(4 * time.Minute)
			r.Settled(func(c *schema.Checkpoint) bool { return len(c.Interrupts) == 0 })
			require.Equal(t, int64(1), w.deps.Stats.Expired.Load())
		})
	}
}

func TestServerClock_SkewedLocalClock_TellsServerTime(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t) // its own clock is in another year
	moved := time.Duration(0)
	clock := &ServerClock{js: w.JS, shard: w.Shard, daemon: func() time.Time { return time.Now().Add(moved) }}
	for range 2 { // asked, then measured
		at, err := clock.Now(t.Context())
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), at, time.Minute)
	}
	heard := clock.heard
	clock.heard, clock.said = heard.Add(-serverClockEvery), clock.said.Add(-time.Hour)
	at, err := clock.Now(t.Context())
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), at, time.Minute, "asked once more")
	moved = time.Hour
	at, err = clock.Now(t.Context())
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(time.Hour), at, time.Minute, "the daemon's clock was moved, and the server's with it")
	clock = &ServerClock{js: w.JS, shard: &kvstore.Shard{Names: schema.NamesOf("none", 0)}}
	_, err = clock.Now(t.Context())
	require.ErrorContains(t, err, "no wait expires, no pause ends and no schedule is due until it is known")
}

func TestSweeper_Answer_DoesNotKeepAlive(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	w.hb.beat("executor-1", "i1", beat, false)
	r.Own(&schema.RunWaitingData{InterruptID: "ask", Reason: "human_input"})
	w.pass(60, nil)
	r.stays(schema.StatusWaiting)
	r.Control(&schema.RunInputData{InterruptID: "ask", By: "anna"})
	w.pass(1, nil)
	r.Becomes(schema.StatusOrphaned)
}

func TestSweeper_ExecutorReturnsInTime_KeepsRun(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	w.pass(9, nil)
	// The event is in the log, and the fold worker has not folded it yet.
	w.stop()
	r.Publish(&schema.TurnStartedData{Turn: 1})
	last := r.Last
	w.pass(1, nil)
	require.Equal(t, int64(1), w.deps.Stats.RacesLost.Load())
	require.Zero(t, w.deps.Stats.Orphaned.Load())
	w.fold()
	r.Folded()
	c := r.Checkpoint()
	require.Equal(t, last, c.Position.Stream, "nothing was written behind it")
	require.Equal(t, schema.StatusRunning, c.Status)
	w.hb.beat("executor-1", "i1", beat, false)
	w.pass(9, nil)
	require.Equal(t, int64(1), w.deps.Stats.RacesLost.Load())
}

func TestSweeper_HeartbeatAtNewWorker_KeepsAlive(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	w.pass(3, nil)
	w.hb.beat("executor-1", "i1", beat, false)
	w.pass(9, nil)
	w.Sweeper = w.newSweeper() // its daemon has received the heartbeats all along
	r.stays(schema.StatusRunning)
	w.pass(1, nil)
	require.Equal(t, schema.FormatTime(fleettest.Noon.Add(3*time.Second)), fleettest.LastData[schema.RunOrphanedData](r.Run).LastSeen)
}

func TestSweeper_DeafOrBehind_OrphansNothing(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	w.pass(1, nil)
	w.hb.setSteady(nil, time.Time{})
	w.pass(60, nil)
	r.stays(schema.StatusRunning)
	w.hb.setSteady(nil, w.Clock.Now()) // the connection is back
	w.pass(9, nil)
	r.stays(schema.StatusRunning)
	behind := true
	w.deps.Ready = func() bool { return !behind }
	w.pass(60, nil)
	r.stays(schema.StatusRunning)
	w.live.unsync(0)
	behind = false
	w.pass(2, nil)
	r.stays(schema.StatusRunning)
	w.live.sync(0)
	w.pass(1, nil)
	r.Becomes(schema.StatusOrphaned)
}

func TestSweeper_SlowHeartbeat_AllowsThreeIntervals(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	w.hb.beat("executor-1", "i1", 20*time.Second, false)
	w.pass(59, nil)
	r.stays(schema.StatusRunning)
	w.pass(1, nil)
	r.Becomes(schema.StatusOrphaned)
	require.Equal(t, int64(3), fleettest.LastData[schema.RunOrphanedData](r.Run).Missed)
}

func TestSweeper_ManySilentRuns_OrphansPaced(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	var runs []*lifeRun
	for i := range 12 {
		r := w.unwritten(fmt.Sprintf("run-%02d", i))
		r.Publish(&schema.RunStartedData{Agent: "agent-1", Executor: "executor-1", Instance: "i1"})
		runs = append(runs, r)
	}
	for _, r := range runs {
		r.Folded()
	}
	w.pace.SetLimit(5)
	w.pass(10, nil)
	require.Equal(t, int64(5), w.deps.Stats.Orphaned.Load())
	for _, r := range runs {
		if c := r.Checkpoint(); c.Position.Stream == r.Last {
			continue
		}
		r.Becomes(schema.StatusOrphaned)
	}
	require.Eventually(t, func() bool { return w.live.Counts().Claimable == 5 }, time.Minute, time.Millisecond)
	w.pass(2, func() {
		want := min(w.deps.Stats.Orphaned.Load(), 12)
		require.Eventually(t, func() bool { return int64(w.live.Counts().Claimable) == want }, time.Minute, time.Millisecond)
	})
	for _, r := range runs {
		r.Becomes(schema.StatusOrphaned)
	}
	require.Equal(t, int64(12), w.deps.Stats.Orphaned.Load())
}

// One key starts runs without end. An executor that died has its runs in the first sweep.
func TestSweeper_FloodOfSilentRuns_DelaysNoOtherExecutor(t *testing.T) {
	t.Parallel()
	const flood = 20_000
	for name, c := range map[string]struct {
		executor func(i int) string
		lists    bool
	}{
		"one executor":               {func(int) string { return "flood" }, true},
		"one, the victim lists none": {func(int) string { return "flood" }, false},
		"invented executors":         {func(i int) string { return fmt.Sprint("flood-", i) }, true},
		"in the victim's name":       {func(int) string { return "victim" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := func(id, executor string) schema.Live {
				l := fleettest.Orphan(id, executor, 0)
				l.Status, l.Attended, l.Instance = schema.StatusRunning, true, "i1"
				return l
			}
			victims := []string{"run-a", "run-b", "run-c"}
			var entries []schema.Live
			beat := schema.Heartbeat{Executor: "victim", Instance: "i1"}
			for _, id := range victims {
				entries = append(entries, run(id, "victim"))
				if c.lists {
					beat.Held = append(beat.Held, schema.HeldRun{Run: id, Epoch: entries[0].Epoch})
				}
			}
			for i := range flood {
				entries = append(entries, run(fmt.Sprint("flood-", i), c.executor(i)))
			}
			clock, live := fleettest.NewHandClock(fleettest.Noon), tableOf(t, entries...)
			hb := NewHeartbeats("default", nil, live, clock.Now, noLog)
			w := newSweeper(Deps{LiveRuns: live, Heartbeats: hb, Now: clock.Now})
			due := func() (runs []string) {
				for _, e := range live.due(0, w.perTick(), func(e *entry) bool { return w.gone(e, fleettest.Noon) }) {
					runs = append(runs, e.live.Run)
				}
				return runs
			}
			require.NoError(t, hb.record(&beat))
			due()
			clock.Forward(w.silence())
			got := due()
			require.Len(t, got, sweepRate)
			require.Subset(t, got, victims)
		})
	}
}

// heard waits until so many heartbeats were handled, valid or not.
func (w *lifeWorld) heard(n int64) {
	w.TB.Helper()
	require.Eventually(w.TB, func() bool { return w.hb.Stats().Received.Load()+w.hb.Stats().Refused.Load() >= n }, time.Minute, time.Millisecond)
}

func (w *lifeWorld) listen() {
	w.TB.Helper()
	w.hb.setSteady(nil, time.Time{})
	w.Go(w.hb.Run)
	require.Eventually(w.TB, func() bool { _, ok := w.hb.Steady(); return ok }, time.Minute, time.Millisecond)
	require.NoError(w.TB, w.NC.Flush())
}

func TestSweeper_InvalidHeartbeat_CountedAndIgnored(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	w.listen()
	r := w.begin("run-1", "executor-1", "i1")
	garbage := []nats.Msg{
		{Subject: "waymark.heartbeats.default.executor-1", Data: []byte("junk")},
		{Subject: "waymark.heartbeats.default.executor-1"},
		{Subject: "waymark.heartbeats.default.executor-1", Data: []byte(`{"executor":"executor-2","instance":"i1"}`)},
		{Subject: "waymark.heartbeats.default.executor-2", Data: []byte(`{"executor":"executor-1","instance":"i1"}`)},
		{Subject: "waymark.heartbeats.default.executor-1", Data: []byte(`{"executor":"executor-1","instance":"i 1"}`)},
		{Subject: "waymark.heartbeats.default.executor-1", Data: []byte(`{"executor":"executor-1","instance":"i1","interval_ms":-1}`)},
		{Subject: "waymark.heartbeats.default.executor-1", Data: []byte(`{"executor":"executor-1","instance":"i1","interval_ms":9000000000}`)},
		{Subject: "waymark.heartbeats.default.executor-1", Data: append([]byte(`{"executor":"executor-1","instance":"i1","x":"`), make([]byte, maxHeartbeat)...)},
	}
	w.pass(10, func() {
		for i := range garbage {
			require.NoError(t, w.NC.PublishMsg(&garbage[i]))
		}
	})
	w.heard(int64(10 * len(garbage)))
	require.Equal(t, int64(10*len(garbage)), w.hb.Stats().Refused.Load())
	w.pass(1, nil)
	r.Becomes(schema.StatusOrphaned)
	body, err := json.Marshal(&schema.Heartbeat{Executor: "executor-1", Instance: "i1"})
	require.NoError(t, err)
	require.NoError(t, w.NC.Publish(schema.HeartbeatSubject("default", "executor-1"), body))
	w.heard(int64(10*len(garbage)) + 1)
	require.Equal(t, int64(1), w.hb.Stats().Received.Load())
	require.Equal(t, 1, w.hb.Alive(10*time.Second))
}

func TestSweeper_Reconnect_ResetsTimers(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	w.listen()
	before, _ := w.hb.Steady()
	w.Clock.Forward(time.Second)
	w.Server.Restart(t)
	require.Eventually(t, func() bool {
		since, ok := w.hb.Steady()
		return ok && since.After(before)
	}, time.Minute, time.Millisecond)
	require.NoError(t, w.NC.Flush())
	body, err := json.Marshal(&schema.Heartbeat{Executor: "executor-1"})
	require.NoError(t, err)
	require.NoError(t, w.NC.Publish(schema.HeartbeatSubject("default", "executor-1"), body))
	w.heard(1)
}

func TestSweeper_ManyExecutors_MemoryBounded(t *testing.T) {
	t.Parallel()
	c := fleettest.NewHandClock(fleettest.Noon)
	h := NewHeartbeats("default", nil, nil, c.Now, noLog)
	for i := range maxInstances + 100 {
		c.Forward(time.Microsecond)
		h.beat(fmt.Sprintf("executor-%d", i), "i1", beat, false)
	}
	require.Equal(t, maxInstances, h.instances)
	require.Len(t, h.executors, maxInstances)
	_, ok := h.last("executor-99", "i1", time.Second)
	require.False(t, ok, "the one that was silent for longest is forgotten")
	_, ok = h.last("executor-100", "i1", time.Second)
	require.True(t, ok)
	c.Forward(surelyGone)
	h.beat("restless", "i1", beat, false)
	h.wakeful(time.Now())
	require.Equal(t, 1, h.instances, "instances that are certainly gone are forgotten")
	require.Len(t, h.executors, 1)
}

func BenchmarkSweepOf10000LiveRuns(b *testing.B) {
	c := fleettest.NewHandClock(fleettest.Noon)
	h := NewHeartbeats("default", nil, nil, c.Now, noLog)
	h.setSteady(nil, fleettest.Noon)
	r := NewLiveRuns(make([]*kvstore.Shard, 1), 3, c.Now, noLog)
	r.begin(0)
	for i := range 10_000 {
		l := fleettest.Orphan(fmt.Sprintf("run-%05d", i), fmt.Sprintf("executor-%03d", i%100), 5)
		l.Status, l.Instance = schema.StatusRunning, "i1"
		r.apply(0, &kvstore.LiveEntry{Run: l.Run, Live: &l, Revision: schema.Revision(i + 1)}) //nolint:gosec // small
		h.beat(l.Executor, l.Instance, beat, false)
	}
	r.sync(0)
	w := newSweeper(Deps{Keys: keyless(), LiveRuns: r, Heartbeats: h, Now: c.Now})
	b.ReportAllocs()
	for b.Loop() {
		require.NoError(b, w.sweep(b.Context()))
	}
}

func BenchmarkClaimableAmong10000LiveRuns(b *testing.B) {
	for _, orphans := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("%d claimable", orphans), func(b *testing.B) {
			r := NewLiveRuns(make([]*kvstore.Shard, 1), 3, func() time.Time { return fleettest.Noon }, noLog)
			r.begin(0)
			for i := range 10_000 {
				l := fleettest.Orphan(fmt.Sprintf("run-%05d", i), fmt.Sprintf("executor-%03d", i%100), i)
				if i >= orphans {
					l.Status = schema.StatusRunning
				}
				r.apply(0, &kvstore.LiveEntry{Run: l.Run, Live: &l, Revision: schema.Revision(i + 1)}) //nolint:gosec // small
			}
			r.sync(0)
			want := Want{Executor: "executor-007", Agents: []string{"agent-1"}, Labels: map[string]string{"team": "a"}}
			b.ReportAllocs()
			for b.Loop() {
				got, total := r.Claimable(fleettest.Noon, want)
				require.Len(b, got, MaxCandidates)
				require.Equal(b, orphans, total)
			}
		})
	}
}
