package service_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// newPauseWorld is a world whose service reads its pauses, as in a daemon. Its live runs are never read: it has just
// started.
func newPauseWorld(t *testing.T) (w *serviceWorld) {
	t.Helper()
	w = newServiceWorld(t, func(_ *kvstore.FleetConfig, c *service.Config) {
		c.Refresh = func(ctx context.Context) error {
			s, _, err := kvstore.NewFleets(w.JS).Get(ctx, "default")
			if err == nil {
				w.liveRuns.SetPauses(s.Pauses)
			}
			return err
		}
	})
	return w
}

func (w *serviceWorld) pause(req schema.PauseRequest) *schema.PauseReply {
	w.TB.Helper()
	req.By = "ann"
	a, err := w.askPlain(schema.VerbPause, "", req)
	require.NoError(w.TB, err)
	return decodeAs[schema.PauseReply](w.TB, a.first)
}

// paused stores a pause that no daemon has read.
func (w *serviceWorld) paused(scope schema.Scope) {
	w.TB.Helper()
	_, _, err := kvstore.NewFleets(w.JS).Pause(w.TB.Context(), "default", schema.Pause{Scope: scope, Reason: "why", By: "ann", Since: schema.FormatTime(time.Now())},
		func(*schema.Pause) bool { return false })
	require.NoError(w.TB, err)
}

// The daemon knows no run, and the fold begins only now.
func TestPause_DaemonHasJustStarted_RunsAreStopped(t *testing.T) {
	t.Parallel()
	w := newPauseWorld(t)
	for i := range 3 {
		w.aRun(fmt.Sprint("run-", i), 1, 10)
	}
	w.Fold(fold.Config{})
	reply := w.pause(schema.PauseRequest{Reason: "why"})
	require.Equal(t, []int{3, 0, 0}, []int{reply.Runs, reply.Going, reply.Unproven})
	require.Empty(t, reply.Doubt())
	for i := range 3 {
		require.True(t, w.head(fmt.Sprint("run-", i)).Paused)
	}
}

func TestPause_NothingFoldsTheShard_SaysUnproven(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: it waits as long as an operator")
	}
	w := newPauseWorld(t)
	w.aRun("run-1", 1, 10)
	reply := w.pause(schema.PauseRequest{Reason: "why"})
	require.Equal(t, []int{0, 1}, []int{reply.Runs, reply.Unproven})
	require.Contains(t, reply.Doubt(), "other runs in 1 of the shards may begin something")
	w.Fold(fold.Config{})
	reply = w.pause(schema.PauseRequest{Reason: "other"})
	require.Equal(t, "why", reply.Pause.Reason)
	require.Equal(t, []any{true, 1, 0}, []any{reply.Already, reply.Runs, reply.Unproven})
	require.True(t, w.head("run-1").Paused)
}

// A takeover that was judged before the pause, or by a daemon that has not read it, gives the run to no executor.
func TestTakeover_PauseIsStoredMeanwhile_IsRefused(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t) // its service never reads the pauses again
	w.orphan("run-1", "executor-1", 10)
	w.orphan("run-2", "executor-1", 5)
	w.paused(schema.Scope{})
	w.aRun("run-3", 1, 10).end(schema.StatusFailed)
	reopen := schema.RecoverRequest{Executor: "executor-2", Agent: "agent-1", RequestID: "request-1", Reason: schema.TakeoverReopen}
	require.Contains(t, w.refused(schema.VerbRecover, "run-3", reopen).Message, "why; the run is open again, and goes on at the unpause")
	require.EqualValues(t, 2, w.head("run-3").Epoch)
	refused := w.refused(schema.VerbRecover, "run-2", takeover("executor-2", "request-1"))
	require.Equal(t, schema.CodePaused, refused.Code)
	require.NotContains(t, refused.Message, "open again")
	require.Contains(t, refused.Message, "by ann: why")
	require.EqualValues(t, 2, w.head("run-2").Epoch, "the takeover is stored")
	require.Equal(t, schema.CodePaused, w.refused(schema.VerbRecover, "run-2", takeover("executor-2", "request-1")).Code, "and repeated")

	req := claimFor("executor-2")
	given := w.claim(req)
	require.Equal(t, "run-1", given.Run)
	again := schema.RecoverRequest{Executor: req.Executor, Instance: req.Instance, Reason: schema.TakeoverClaim, RequestID: req.RequestID}
	require.Equal(t, schema.CodePaused, w.refused(schema.VerbRecover, "run-1", again).Code)
	_, _, err := kvstore.NewFleets(w.JS).Unpause(t.Context(), "default", schema.Scope{})
	require.NoError(t, err)
	reply, _ := w.recover("run-1", again)
	require.EqualValues(t, 2, reply.Epoch)
}

func TestReopen_Paused_IsRefused(t *testing.T) {
	t.Parallel()
	w := newPauseWorld(t)
	x := w.aRun("run-1", 1, 10)
	x.end(schema.StatusFailed)
	w.Fold(fold.Config{})
	require.Zero(t, w.pause(schema.PauseRequest{Reason: "why"}).Runs)
	for _, req := range []schema.RecoverRequest{{Reason: schema.TakeoverReopen}, {Reason: schema.TakeoverRewind, At: "turn:1"}} {
		req.Executor, req.Agent, req.RequestID = "executor-2", "agent-1", "request-1"
		require.Equal(t, schema.CodePaused, w.refused(schema.VerbRecover, "run-1", req).Code)
	}
	require.EqualValues(t, 1, w.head("run-1").Epoch)
	require.False(t, w.pause(schema.PauseRequest{End: true}).Already)
	reply, _ := w.recover("run-1", schema.RecoverRequest{Executor: "executor-2", Agent: "agent-1", RequestID: "request-1", Reason: schema.TakeoverReopen})
	require.EqualValues(t, 2, reply.Epoch)
}

func TestPause_EncryptedLabel_IsRefused(t *testing.T) {
	t.Parallel()
	w := newPauseWorld(t)
	w.orphan("run-1", "executor-1", 10, func(d *schema.RunStartedData) {
		d.Labels = map[string]string{"tenant": "AAAA", "team": "blue"}
		d.Refs = []schema.Ref{{Path: "/labels/tenant", KeyID: "k", Codec: "aes-256-gcm"}}
	})
	w.Fold(fold.Config{})
	refused := w.refused(schema.VerbPause, "", schema.PauseRequest{Scope: schema.Scope{Labels: map[string]string{"tenant": "acme"}}, Reason: "why", By: "ann"})
	require.Equal(t, schema.CodeBadRequest, refused.Code)
	require.Contains(t, refused.Message, "encrypted in 1 runs")
	require.Equal(t, 1, w.pause(schema.PauseRequest{Scope: schema.Scope{Labels: map[string]string{"team": "blue"}}, Reason: "why"}).Runs)
}

// An answer may be lost, and two operators may act at once.
func TestUnpause_Repeated_HoldsAndSaysSo(t *testing.T) {
	t.Parallel()
	w := newPauseWorld(t)
	w.aRun("run-1", 1, 10)
	w.Fold(fold.Config{})
	scope := schema.Scope{Run: "run-1"}
	w.pause(schema.PauseRequest{Scope: scope, Reason: "why"})
	first := w.pause(schema.PauseRequest{Scope: scope, End: true})
	require.Equal(t, []any{false, "why"}, []any{first.Already, first.Pause.Reason})
	again := w.pause(schema.PauseRequest{Scope: scope, End: true})
	require.Equal(t, &schema.PauseReply{Pause: schema.Pause{Scope: scope}, Already: true, Runs: again.Runs}, again)
	require.Equal(t, schema.CodeNotFound, w.refused(schema.VerbPause, "", schema.PauseRequest{Scope: schema.Scope{Run: "none"}, End: true, By: "ann"}).Code)
}

// The pauses of runs that have ended make room.
func TestPause_PlacesUsedByEndedRuns_AreReplaced(t *testing.T) {
	t.Parallel()
	w := newPauseWorld(t)
	w.Fold(fold.Config{})
	w.aRun("run-ended", 1, 10).end(schema.StatusCompleted)
	w.aRun("run-live", 1, 10)
	for i := range schema.MaxPauses - 2 {
		w.paused(schema.Scope{Agent: fmt.Sprint("agent-", i+10)})
	}
	w.paused(schema.Scope{Run: "run-ended"})
	w.paused(schema.Scope{Run: "run-live"})
	w.pause(schema.PauseRequest{Scope: schema.Scope{Agent: "agent-1"}, Reason: "why"})
	s, _, err := kvstore.NewFleets(w.JS).Get(t.Context(), "default")
	require.NoError(t, err)
	require.Len(t, s.Pauses, schema.MaxPauses)
	require.Equal(t, "run-live", s.Pauses[schema.MaxPauses-2].Run)
	require.Equal(t, "agent-1", s.Pauses[schema.MaxPauses-1].Agent)
	full := w.refused(schema.VerbPause, "", schema.PauseRequest{Scope: schema.Scope{Agent: "agent-2"}, Reason: "why", By: "ann"})
	require.Equal(t, schema.CodeConflict, full.Code)
	require.Contains(t, full.Message, "has 64 pauses")
}
