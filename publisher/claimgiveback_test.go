package publisher_test

import (
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

func TestClaim_GivenBack_OthersContinue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f := w.fleet()
	start(t, f, "r1")
	w.gap("r1")
	start(t, f, "r2")
	w.orphan("r1", 1)
	pauses := publisher.ClaimPausesAfter(&publisher.ClaimedRunError{Run: "r1", GivenBack: true},
		&publisher.ClaimedRunError{Run: "r1", GivenBack: true}, &publisher.ClaimedRunError{Run: "r2", GivenBack: true})
	require.Equal(t, []time.Duration{50 * time.Millisecond, 100 * time.Millisecond, 50 * time.Millisecond}, pauses)
	given := 0
	second := w.fleet(named("exec-2"))
	for {
		run, err := second.Claim(t.Context(), publisher.ClaimSpec{})
		if err == nil {
			require.Equal(t, "r2", run.ID())
			break
		}
		if errors.Is(err, publisher.ErrNothing) {
			continue
		}
		require.ErrorIs(t, err, publisher.ErrIncomplete)
		if given++; given == 1 {
			w.orphan("r2", 1)
		}
	}
	require.LessOrEqual(t, given, schema.DefaultMaxClaims)
}
