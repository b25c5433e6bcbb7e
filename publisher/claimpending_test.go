package publisher_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// through connects an executor through the proxy.
func through(w *world, p *proxy, name string) func(*publisher.Config) {
	return func(c *publisher.Config) {
		c.Executor, c.Conn, c.URL, c.Options, c.RequestTimeout = name, nil, p.url(), w.server.Options(), 2*time.Second
	}
}

// claimFailed claims until a run was assigned that could not be resumed, and returns the error.
func claimFailed(tb testing.TB, f *publisher.Fleet) *publisher.ClaimedRunError {
	tb.Helper()
	var failed *publisher.ClaimedRunError
	require.Eventually(tb, func() bool {
		_, err := f.Claim(tb.Context(), publisher.ClaimSpec{})
		require.Error(tb, err)
		ok := errors.As(err, &failed)
		require.True(tb, ok || errors.Is(err, publisher.ErrNothing), "%v", err)
		return ok
	}, patience, time.Millisecond)
	return failed
}

func TestClaimPending_ResumeFails_OthersContinue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f := w.fleet()
	for _, id := range []string{"r1", "r2", "r3"} {
		start(t, f, id)
	}
	p := newProxy(t, w.server.URL())
	second := w.fleet(through(w, p, "exec-2"))
	p.spoilTakeovers("r1", -1)
	w.orphan("r1", 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var got []string
	tries := 0
	for run, err := range second.Claims(ctx, publisher.ClaimSpec{}) {
		if err != nil {
			failed, ok := errors.AsType[*publisher.ClaimedRunError](err)
			require.True(t, ok, "%v", err)
			require.ErrorIs(t, err, publisher.ErrBadAnswer)
			require.Equal(t, "r1", failed.Run)
			require.Equal(t, publisher.ClaimRetried, failed.Fate)
			require.Positive(t, failed.RetryAfter)
			if tries++; tries == 1 {
				w.orphan("r2", 1)
				w.orphan("r3", 1)
			}
			continue
		}
		if got = append(got, run.ID()); len(got) == 2 {
			p.spoilTakeovers("", 0)
		}
		if len(got) == 3 {
			break
		}
	}
	require.ElementsMatch(t, []string{"r2", "r3"}, got[:min(2, len(got))], "they are claimed although r1 fails")
	require.Len(t, got, 3, "r1 is not forgotten")
	require.Equal(t, schema.Epoch(2), w.fold("r1").Head.Epoch, "its claim is continued, not made again")
}

func TestClaimPending_ResumeKeepsFailing_GivenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	start(t, w.fleet(), "r1")
	w.orphan("r1", 1)
	p := newProxy(t, w.server.URL())
	second := w.fleet(through(w, p, "exec-2"))
	publisher.SetClaimRetry(second, time.Millisecond)
	p.spoilTakeovers("r1", publisher.ClaimGiveBackAfter) // with the content; the head alone can be had
	for range publisher.ClaimGiveBackAfter - 1 {
		require.Equal(t, publisher.ClaimRetried, claimFailed(t, second).Fate)
	}
	failed := claimFailed(t, second)
	require.Equal(t, publisher.ClaimGivenBack, failed.Fate)
	require.ErrorIs(t, failed, publisher.ErrBadAnswer)
	require.Equal(t, schema.StatusInterrupted, w.fold("r1").Head.Status)
	require.Zero(t, publisher.PendingClaims(second))
	require.Equal(t, schema.Epoch(3), claimed(t, w.fleet(named("exec-3")), publisher.ClaimSpec{}).Epoch())
}

func TestClaimPending_ReleaseFails_NamedAndLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	start(t, w.fleet(), "r1")
	w.orphan("r1", 1)
	p := newProxy(t, w.server.URL())
	second := w.fleet(through(w, p, "exec-2"), func(c *publisher.Config) { c.Heartbeat = 20 * time.Millisecond })
	publisher.SetClaimRetry(second, time.Millisecond)
	p.spoilTakeovers("r1", -1)
	for range publisher.ClaimGiveUpAfter - 1 {
		require.Equal(t, publisher.ClaimRetried, claimFailed(t, second).Fate)
	}
	failed := claimFailed(t, second)
	require.Equal(t, publisher.ClaimLeft, failed.Fate)
	require.ErrorContains(t, failed, "waymark release r1 --force")
	require.Zero(t, publisher.PendingClaims(second))
	p.spoilTakeovers("", 0)
	run := claimed(t, w.fleet(named("exec-3")), publisher.ClaimSpec{})
	require.Equal(t, "r1", run.ID(), "the heartbeats give it up")
	require.Equal(t, schema.Epoch(3), run.Epoch())
}

func TestClaimPending_TakenByAnother_NotRetried(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	first := w.fleet()
	start(t, first, "r1")
	w.orphan("r1", 1)
	p := newProxy(t, w.server.URL())
	second := w.fleet(through(w, p, "exec-2"))
	publisher.SetClaimRetry(second, time.Millisecond)
	p.spoilTakeovers("r1", -1)
	require.Equal(t, publisher.ClaimRetried, claimFailed(t, second).Fate)
	resume(t, first, "r1")
	require.Equal(t, publisher.ClaimGone, claimFailed(t, second).Fate)
	require.Zero(t, publisher.PendingClaims(second))
	require.Equal(t, "exec-1", w.fold("r1").Head.Executor)
}

// The run misses events, and that it is given back is not acknowledged, nor stored.
func TestClaimPending_IncompleteNotReleased_Retried(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	start(t, w.fleet(), "r1")
	w.gap("r1")
	w.orphan("r1", 1)
	p := newProxy(t, w.server.URL())
	second := w.fleet(through(w, p, "exec-2"))
	publisher.SetClaimRetry(second, time.Millisecond)
	p.spoilTakeovers("r1", -1)
	// Content and head cannot be had.
	require.Equal(t, publisher.ClaimRetried, claimFailed(t, second).Fate)
	require.Equal(t, 1, publisher.PendingClaims(second))
	p.spoilTakeovers("", 0)
	failed := claimFailed(t, second)
	require.Equal(t, publisher.ClaimGivenBack, failed.Fate)
	require.ErrorIs(t, failed, publisher.ErrIncomplete)
	require.Equal(t, schema.Epoch(2), w.fold("r1").Head.Epoch)
	require.Equal(t, schema.StatusInterrupted, w.fold("r1").Head.Status)
}

func TestClaimPending_GivenBack_OthersContinue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f := w.fleet()
	start(t, f, "r1")
	w.gap("r1")
	start(t, f, "r2")
	w.orphan("r1", 1)
	pauses := publisher.ClaimPausesAfter(&publisher.ClaimedRunError{Run: "r1", Fate: publisher.ClaimGivenBack},
		&publisher.ClaimedRunError{Run: "r1", Fate: publisher.ClaimGivenBack}, &publisher.ClaimedRunError{Run: "r2", Fate: publisher.ClaimGivenBack})
	require.Equal(t, []time.Duration{50 * time.Millisecond, 100 * time.Millisecond, 50 * time.Millisecond}, pauses)
	given := 0
	for run, err := range w.fleet(named("exec-2")).Claims(t.Context(), publisher.ClaimSpec{}) {
		if err == nil {
			require.Equal(t, "r2", run.ID())
			break
		}
		require.ErrorIs(t, err, publisher.ErrIncomplete)
		if given++; given == 1 {
			w.orphan("r2", 1)
		}
	}
	require.LessOrEqual(t, given, schema.DefaultMaxClaims)
}

func TestClaimPending_ClaimedBeforeFull_Driven(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f := w.fleet()
	start(t, f, "r1")
	p := newProxy(t, w.server.URL())
	second := w.fleet(through(w, p, "exec-2"))
	publisher.SetClaimRetry(second, time.Millisecond)
	p.spoilTakeovers("r1", -1)
	begun := make(chan string, 2)
	s := serveRuns(t, second, func(ctx context.Context, run *publisher.Run) error {
		begun <- run.ID()
		<-ctx.Done()
		return nil
	}, func(spec *publisher.ExecutorSpec) { spec.Capacity = 1 })
	w.orphan("r1", 1)
	require.Eventually(t, func() bool { return publisher.PendingClaims(second) == 1 }, patience, time.Millisecond)
	begin(t, s, "r2")
	require.Equal(t, "r2", <-begun)
	p.spoilTakeovers("", 0)
	select {
	case id := <-begun:
		require.Equal(t, "r1", id, "it is this executor's, and no other executor would drive it")
	case <-time.After(patience):
		require.FailNow(t, "r1 lies unattended")
	}
}
