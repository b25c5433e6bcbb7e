package publisher

import (
	"context"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestTakeovers_PostponedClaim_IsTakenAgainOnceDue(t *testing.T) {
	t.Parallel()
	l := takeovers{asked: make(map[string]int)}
	coders := ClaimSpec{Agents: []string{"coder"}}
	c, done, ok := l.take(&coders, false)
	require.True(t, ok)
	require.True(t, l.want("r1", c.id), "it is under way")
	c.run = "r1"
	l.postpone(&c, time.Hour, time.Hour)
	done()
	require.True(t, l.want("r1", ""), "it is tried again later")

	_, _, ok = l.take(&coders, true)
	require.False(t, ok, "it is not due")
	due, pending := l.due(&coders)
	require.True(t, pending)
	require.True(t, due.After(time.Now()))
	_, pending = l.due(&ClaimSpec{})
	require.False(t, pending, "it serves another spec")

	l.pending[0].due = time.Now()
	again, done, ok := l.take(&coders, true)
	require.True(t, ok)
	require.Equal(t, c.id, again.id)
	done()
	require.False(t, l.want("r1", c.id))
}

func TestTakeovers_RunTakenOverTwice_IsWantedUntilBothAreDone(t *testing.T) {
	t.Parallel()
	l := takeovers{asked: make(map[string]int)}
	first, second := l.begin("r1"), l.begin("r1")
	first()
	require.True(t, l.want("r1", ""))
	second()
	require.False(t, l.want("r1", ""))
}

func TestPresence_RunGivenUp_IsSaidOnceUntilItIsFound(t *testing.T) {
	t.Parallel()
	log := zerolog.Nop()
	p := presence{cfg: &Config{Logger: &log}, news: make(chan struct{}, 1)}
	left := schema.GivenUp{Run: "r1", Epoch: 2}
	require.False(t, p.abandonUnless(left, func() bool { return true }))
	require.Empty(t, p.abandoned)
	require.True(t, p.abandonUnless(left, func() bool { return false }))
	p.abandon(left)
	require.Equal(t, []schema.GivenUp{left}, p.abandoned)
	require.Len(t, p.news, 1, "the next heartbeat is due at once")
	p.found(schema.GivenUp{Run: "r1", Epoch: 1})
	require.Len(t, p.abandoned, 1, "that was another epoch")
	p.found(left)
	require.Empty(t, p.abandoned)
}

func TestUnclaimed_RunComesDue_IsLookedAtUntilItIsSettled(t *testing.T) {
	t.Parallel()
	var looks []string
	s := unclaimedRuns{after: 1, due: make(map[string]time.Time)}
	s.look = func(_ context.Context, run string) bool {
		looks = append(looks, run)
		return len(looks) < 2
	}
	require.True(t, s.note("r1"))
	require.False(t, s.note("r2"), "the caller watches already")
	s.found("r2")
	s.watch(t.Context())
	require.Equal(t, []string{"r1", "r1"}, looks)
	require.True(t, s.note("r3"), "no goroutine watches any more")
}
