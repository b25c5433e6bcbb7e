package publisher_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// patience is how long a test waits for what must happen.
const patience = time.Minute

// heartbeats collects what executors say of themselves.
func (w *world) heartbeats() func() schema.Heartbeat {
	w.tb.Helper()
	sub, err := w.nc.SubscribeSync(schema.HeartbeatSubject("default", "*"))
	require.NoError(w.tb, err)
	require.NoError(w.tb, w.nc.Flush())
	return func() schema.Heartbeat {
		w.tb.Helper()
		m, err := sub.NextMsg(patience)
		require.NoError(w.tb, err)
		var h schema.Heartbeat
		require.NoError(w.tb, json.Unmarshal(m.Data, &h))
		require.Equal(w.tb, schema.HeartbeatSubject("default", h.Executor), m.Subject)
		return h
	}
}

// notify sends an executor a notice of the run's last event, as the folder does.
func (w *world) notify(executor, run string) {
	w.tb.Helper()
	log := w.log(run)
	last := log[len(log)-1]
	body, err := json.Marshal(&schema.Notice{Run: run, Name: "control", Position: schema.PositionOf(&last)})
	require.NoError(w.tb, err)
	require.NoError(w.tb, w.nc.Publish(schema.NoticeSubject("default", executor), body))
}

func TestHeartbeats_FleetAsksForShorterSilence_FollowIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	next := w.heartbeats()
	f := w.fleet()
	start(t, f, "r1")
	follows := func(silence time.Duration, interval int64) {
		_, err := kvstore.Change(t.Context(), w.js, "default", func(c *kvstore.FleetConfig) { c.Silence = silence })
		require.NoError(t, err)
		require.NoError(t, w.nc.Publish(schema.SettingsSubject("default"), nil))
		require.Eventually(t, func() bool { return next().IntervalMS == interval }, patience, time.Millisecond)
	}
	require.Equal(t, int64(schema.DefaultHeartbeatMS), next().IntervalMS)
	// The next heartbeat comes before the new silence is over. A slow machine may need some tries to show it.
	require.Eventually(t, func() bool {
		began := time.Now()
		follows(2*time.Second, 600)
		if time.Since(began) < 2*time.Second {
			return true
		}
		follows(0, schema.DefaultHeartbeatMS)
		return false
	}, patience, time.Millisecond)
	start(t, w.fleet(named("exec-2")), "r2")
	require.Eventually(t, func() bool {
		h := next()
		return h.Executor == "exec-2" && h.IntervalMS == 600
	}, patience, time.Millisecond)
}

func TestHeartbeat_Executor_AliveThenLeaving(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	next := w.heartbeats()
	f := w.fleet(func(c *publisher.Config) { c.Heartbeat = 20 * time.Millisecond })
	require.NotEmpty(t, f.Instance())
	run := start(t, f, "r1")
	require.Equal(t, f.Instance(), run.Head().Instance)
	h := next()
	require.Equal(t, "exec-1", h.Executor)
	require.Equal(t, f.Instance(), h.Instance)
	require.Equal(t, int64(20), h.IntervalMS)
	require.False(t, h.Leaving)
	start(t, f, "r2")
	require.Eventually(t, func() bool { return len(next().Held) == 2 }, patience, time.Millisecond)
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{}))
	require.Eventually(t, func() bool { return len(next().Held) == 1 }, patience, time.Millisecond)
	require.NoError(t, f.Close(t.Context()))
	require.Eventually(t, func() bool { return next().Leaving }, patience, time.Millisecond)
}

func TestHeartbeat_ServerAway_ContinuesAfter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	next := w.heartbeats()
	f := w.fleet(func(c *publisher.Config) { c.Heartbeat = time.Hour })
	start(t, f, "r1")
	next()
	w.server.Restart(t)
	require.Equal(t, f.Instance(), next().Instance, "the first message is a heartbeat")
}

func TestHeartbeat_ReaderOnly_SendsNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	first := w.fleet(func(c *publisher.Config) { c.Heartbeat = -1 })
	run := start(t, first, "r1")
	require.Empty(t, run.Head().Instance, "an executor without heartbeats has no instance")
	next := w.heartbeats()
	reader := w.fleet(func(c *publisher.Config) { c.Executor = "reader" })
	_, err := reader.Head(t.Context(), "r1")
	require.NoError(t, err)
	_, err = reader.List(t.Context(), schema.ListRequest{})
	require.NoError(t, err)
	require.NoError(t, reader.Close(t.Context()))
	second := w.fleet(func(c *publisher.Config) { c.Executor = "exec-2"; c.Heartbeat = time.Hour })
	start(t, second, "r2")
	require.Equal(t, "exec-2", next().Executor, "the reader's heartbeats would have come before")
}

func TestHeartbeat_CancelNotice_EndsContext(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	run := start(t, f, "r1")
	ctx, cancel := run.Context(t.Context())
	defer cancel()
	require.NoError(t, ctx.Err())
	w.control("r1", 1, &schema.RunCancelRequestedData{By: "ann"})
	w.notify("exec-1", "r1")
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), publisher.ErrCancelRequested)
	again, cancelAgain := run.Context(t.Context())
	defer cancelAgain()
	require.ErrorIs(t, context.Cause(again), publisher.ErrCancelRequested, "at once")
	_, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
	require.ErrorIs(t, err, publisher.ErrCancelRequested, "a caller that only looks at errors is told, too")
	_, err = run.StartTurn(t.Context(), publisher.TurnSpec{})
	require.NoError(t, err, "once")
	w.requireSameFold(run)
}

func TestHeartbeat_Takeover_EndsOldContext(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	older, newer := w.fleet(), w.fleet(func(c *publisher.Config) { c.Executor = "exec-2" })
	run := start(t, older, "r1")
	ctx, cancel := run.Context(t.Context())
	defer cancel()
	resume(t, newer, "r1")
	w.notify("exec-1", "r1")
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), publisher.ErrFenced)
	require.ErrorIs(t, run.Err(), publisher.ErrFenced)
}

func TestHeartbeat_FleetClosed_EndsContexts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	run := start(t, f, "r1")
	ctx, cancel := run.Context(t.Context())
	defer cancel()
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{}))
	require.NoError(t, ctx.Err(), "hand-offs may follow the end")
	require.NoError(t, f.Close(t.Context()))
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), publisher.ErrStopped)
}

func TestNotice_Meaningless_Ignored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	run := start(t, f, "r1")
	work, stop := run.Context(t.Context())
	defer stop()
	for _, body := range []string{"", "hello", "{}", `{"run":"missing"}`, `{"run":"r1","position":{"stream_sequence":1}}`, `{"run":7}`} {
		require.NoError(t, w.nc.Publish(schema.NoticeSubject("default", "exec-1"), []byte(body)))
	}
	require.NoError(t, w.nc.Publish(schema.NoticeSubject("default", "exec-1"), []byte(`{"run":"r1","position":{"stream_sequence":1000000}}`)))
	require.NoError(t, run.Mark(t.Context(), "the handle goes on"))
	w.control("r1", 1, &schema.RunCancelRequestedData{By: "ann"})
	w.notify("exec-1", "r1")
	<-work.Done()
	require.ErrorIs(t, context.Cause(work), publisher.ErrCancelRequested)
}

func TestHeartbeat_ExecutorClaims_NamesItsAgents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	next := w.heartbeats()
	f := w.fleet(func(c *publisher.Config) { c.Heartbeat = 20 * time.Millisecond })
	start(t, f, "r1")
	require.Empty(t, next().Agents, "it has claimed nothing")
	claim := func(agents ...string) {
		t.Helper()
		_, err := f.Claim(t.Context(), publisher.ClaimSpec{Agents: agents})
		require.ErrorAs(t, err, new(*publisher.NothingError))
	}
	says := func(agents ...string) {
		t.Helper()
		require.Eventually(t, func() bool { return slices.Equal(agents, next().Agents) }, patience, time.Millisecond, agents)
	}
	claim("coder")
	says("coder")
	claim("coder", "writer")
	says("coder", "writer")
	for i := range schema.MaxClaimed {
		claim(fmt.Sprintf("a%d", i))
	}
	says()

	// An executor that does not ask any more holds back no run for its build.
	ctx, stop := context.WithCancel(t.Context())
	other := w.fleet(func(c *publisher.Config) { c.Heartbeat, c.Executor = 20*time.Millisecond, "ex-2" })
	e, err := other.NewExecutor(publisher.ExecutorSpec{Loops: map[string]publisher.Loop{"painter": {Model: new(scripted).model}}})
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- e.Serve(ctx) }()
	says("painter")
	stop()
	require.NoError(t, <-served)
	require.Eventually(t, func() bool { b := next(); return b.Executor == "ex-2" && len(b.Agents) == 0 }, patience, time.Millisecond)
}
