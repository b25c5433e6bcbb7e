package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// claimed claims a run, waiting until the daemon knows of one.
func claimed(tb testing.TB, f *publisher.Fleet, spec publisher.ClaimSpec) *publisher.Run {
	tb.Helper()
	var run *publisher.Run
	require.Eventually(tb, func() bool {
		var err error
		if run, err = f.Claim(tb.Context(), spec); err != nil {
			require.ErrorIs(tb, err, publisher.ErrNothing)
		}
		return err == nil
	}, patience, 10*time.Millisecond)
	return run
}

// orphan says of a run that its executor fell silent, as the daemon does.
func (w *world) orphan(run string, epoch schema.Epoch) {
	w.tb.Helper()
	w.control(run, epoch, &schema.RunOrphanedData{Executor: "exec-1"})
}

func named(name string) func(*publisher.Config) {
	return func(c *publisher.Config) { c.Executor = name }
}

func TestClaim_OrphanedRun_Delivered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f := w.fleet()
	require.NoError(t, start(t, f, "r1").Mark(t.Context(), "here"))
	w.orphan("r1", 1)
	second := w.fleet(named("exec-2"))
	_, err := second.Claim(t.Context(), publisher.ClaimSpec{Labels: map[string]string{"a": "b"}})
	nothing, ok := errors.AsType[*publisher.NothingError](err)
	require.True(t, ok, "%v", err)
	require.Positive(t, nothing.RetryAfter)
	_, err = second.Claim(t.Context(), publisher.ClaimSpec{Agents: []string{"writer"}})
	require.ErrorIs(t, err, publisher.ErrNothing)
	run := claimed(t, second, publisher.ClaimSpec{})
	require.Equal(t, schema.Epoch(2), run.Epoch())
	require.Equal(t, second.Instance(), run.Head().Instance)
	require.Equal(t, "claim", run.State().Takeovers[0].Reason)
	w.requireSameFold(run)
}

// The answers to claims are lost, more often than a run may be claimed without progress: its executor lives, and does
// not know of the run.
func TestClaim_RepliesLost_RunClaimableAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	start(t, w.fleet(), "r1")
	w.orphan("r1", 1)
	p := newProxy(t, w.server.URL())
	second := w.fleet(through(w, p, "exec-2"), func(c *publisher.Config) {
		c.Heartbeat, c.RequestTimeout = 50*time.Millisecond, 300*time.Millisecond
	})
	p.loseClaims(true)
	const lost = schema.DefaultMaxClaims + 1
	require.Eventually(t, func() bool {
		_, err := second.Claim(t.Context(), publisher.ClaimSpec{})
		require.ErrorIs(t, err, publisher.ErrUnavailable)
		return w.fold("r1").Head.Epoch > lost
	}, patience, time.Millisecond, "the daemon assigns it, and no caller tracks it")
	run := claimed(t, w.fleet(named("exec-3")), publisher.ClaimSpec{})
	require.Equal(t, "r1", run.ID())
	require.Equal(t, 1, run.Head().Stalled, "only the claim that was answered counts")
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{}))
	for _, name := range names(w.log("r1")) {
		require.Contains(t, []string{"run.started", "run.orphaned", "run.resumed", "run.ended"}, name, "nothing ran in between")
	}
}

func TestClaim_ResumeFails_DroppedForOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	start(t, w.fleet(), "r1")
	w.orphan("r1", 1)
	p := newProxy(t, w.server.URL())
	second := w.fleet(through(w, p, "exec-2"), func(c *publisher.Config) { c.Heartbeat = 20 * time.Millisecond })
	p.spoilTakeovers("r1", -1)
	failed := claimFailed(t, second)
	require.False(t, failed.GivenBack)
	require.ErrorIs(t, failed, publisher.ErrBadAnswer)
	require.ErrorContains(t, failed, "waymark release r1 --force")
	run := claimed(t, w.fleet(named("exec-3")), publisher.ClaimSpec{})
	require.Equal(t, "r1", run.ID())
	require.Equal(t, schema.Epoch(3), run.Epoch())
}

func TestClaim_TwoExecutors_EachRunOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f := w.fleet()
	var runs []string
	for i := range 50 {
		runs = append(runs, fmt.Sprintf("r%d", i))
		start(t, f, runs[i])
		w.orphan(runs[i], 1)
	}
	var mu sync.Mutex
	given := map[string]int{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var group sync.WaitGroup
	for _, name := range []string{"exec-2", "exec-3"} {
		second := w.fleet(named(name))
		group.Go(func() {
			for ctx.Err() == nil {
				run, err := second.Claim(ctx, publisher.ClaimSpec{})
				if errors.Is(err, publisher.ErrNothing) || ctx.Err() != nil {
					continue
				}
				if err == nil {
					err = run.End(t.Context(), publisher.RunEnd{})
				}
				mu.Lock()
				if err != nil {
					t.Errorf("%s: %v", name, err)
					cancel()
					mu.Unlock()
					return
				}
				given[run.ID()]++
				if len(given) == len(runs) {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	require.Len(t, given, 50)
	for run, times := range given {
		require.Equal(t, 1, times, run)
		require.Equal(t, []string{"run.started", "run.orphaned", "run.resumed", "run.ended"}, names(w.log(run)))
	}
}

func TestClaim_WrongAgentOrClosedFleet_IsRefused(t *testing.T) {
	t.Parallel()
	f := newWorld(t).fleet()
	_, err := f.Claim(t.Context(), publisher.ClaimSpec{Agents: []string{"a.b"}})
	require.ErrorIs(t, err, publisher.ErrConfig)
	require.NoError(t, f.Close(t.Context()))
	_, err = f.Claim(t.Context(), publisher.ClaimSpec{})
	require.ErrorIs(t, err, publisher.ErrStopped)
}

// gap puts an event into the log of a run in epoch 1 that comes after others which are not there.
func (w *world) gap(run string) {
	w.tb.Helper()
	head := w.fold(run).Head
	writer := schema.Writer{Fleet: "default", Run: run, Executor: "exec-1", Epoch: 1, Last: head.Sequence + 3}
	e, err := writer.Event(&schema.CheckpointMarkedData{Name: "x"}, 0, time.Now(), 0)
	require.NoError(w.tb, err)
	w.put(e)
}

func TestClaim_IncompleteRun_GivenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	start(t, w.fleet(), "r1")
	w.gap("r1")
	w.orphan("r1", 1)
	second := w.fleet(named("exec-2"))
	var err error
	require.Eventually(t, func() bool {
		_, err = second.Claim(t.Context(), publisher.ClaimSpec{})
		return !errors.Is(err, publisher.ErrNothing)
	}, patience, 10*time.Millisecond)
	require.ErrorIs(t, err, publisher.ErrIncomplete)
	failed, ok := errors.AsType[*publisher.ClaimedRunError](err)
	require.True(t, ok, "%v", err)
	require.True(t, failed.GivenBack)
	require.Equal(t, schema.StatusInterrupted, w.fold("r1").Head.Status)
	require.Equal(t, 1, w.fold("r1").Head.Stalled, "in the end it is quarantined")
	require.Equal(t, schema.Epoch(3), claimed(t, second, publisher.ClaimSpec{AllowGaps: true}).Epoch())
}
