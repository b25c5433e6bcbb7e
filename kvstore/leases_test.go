package kvstore_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const ttl = 10 * time.Second

func lease(tb testing.TB, js jetstream.JetStream, holder string) *kvstore.Lease {
	tb.Helper()
	l, err := kvstore.NewLease(js, kvstore.LeaseConfig{Name: kvstore.FoldLease(schema.NamesOf("alpha", 0)), Holder: holder, TTL: ttl})
	require.NoError(tb, err)
	return l
}

func requireHeldBy(tb testing.TB, err error, holder string) {
	tb.Helper()
	require.ErrorIs(tb, err, kvstore.ErrHeld)
	var held *kvstore.HeldError
	require.ErrorAs(tb, err, &held)
	require.Equal(tb, holder, held.Holder)
}

func TestLease_NoRenewalForTTL_TakenOver(t *testing.T) {
	t.Parallel()
	js := newBench(t).js
	a, b := lease(t, js, "a"), lease(t, js, "b")
	now := time.Now()
	// The observer's clock is an hour off: only its own differences count.
	off := now.Add(time.Hour)
	require.NoError(t, a.Acquire(t.Context(), now, 0))
	require.True(t, a.Valid(now.Add(ttl/2)))

	requireHeldBy(t, b.Acquire(t.Context(), off, 0), "a")
	requireHeldBy(t, b.Acquire(t.Context(), off.Add(ttl-1), 0), "a")
	require.NoError(t, a.Renew(t.Context(), now.Add(ttl-1)))
	requireHeldBy(t, b.Acquire(t.Context(), off.Add(ttl), 0), "a")
	requireHeldBy(t, b.Acquire(t.Context(), off.Add(2*ttl-1), 0), "a")
	require.False(t, b.Valid(off.Add(2*ttl-1)))
	require.False(t, a.Valid(now.Add(2*ttl-1)), "the holder stops trusting its lease before others may take it")
	require.NoError(t, b.Acquire(t.Context(), off.Add(2*ttl), 0))
	require.True(t, b.Valid(off.Add(2*ttl)))

	require.ErrorIs(t, a.Renew(t.Context(), now.Add(2*ttl)), kvstore.ErrLeaseLost)
	require.False(t, a.Valid(now))
	requireHeldBy(t, a.Acquire(t.Context(), now.Add(2*ttl), 0), "b")
	holder, err := kvstore.Holder(t.Context(), js, kvstore.FoldLease(schema.NamesOf("alpha", 0)))
	require.NoError(t, err)
	require.Equal(t, "b", holder)
}

func TestLease_Released_FreeAtOnce(t *testing.T) {
	t.Parallel()
	js := newBench(t).js
	a, b := lease(t, js, "a"), lease(t, js, "b")
	now := time.Now()
	require.NoError(t, a.Acquire(t.Context(), now, 0))
	requireHeldBy(t, b.Acquire(t.Context(), now, 0), "a")
	require.NoError(t, a.Release(t.Context()))
	require.False(t, a.Valid(now))
	require.NoError(t, b.Acquire(t.Context(), now, 0))
	require.ErrorIs(t, a.Release(t.Context()), kvstore.ErrLeaseLost)
	holder, err := kvstore.Holder(t.Context(), js, kvstore.FoldLease(schema.NamesOf("alpha", 0)))
	require.NoError(t, err)
	require.Equal(t, "b", holder)
}

// A fold worker that is told to stop abandons the renewal that it waits for, which may still arrive.
func TestRelease_RenewalArrivedUnanswered_FreeAtOnce(t *testing.T) {
	t.Parallel()
	js := newBench(t).js
	a, b := lease(t, js, "a"), lease(t, js, "b")
	now := time.Now()
	require.NoError(t, a.Acquire(t.Context(), now, 0))
	unanswered := *a // a itself knows only the previous revision
	require.NoError(t, unanswered.Renew(t.Context(), now))
	require.NoError(t, a.Release(t.Context()))
	require.NoError(t, b.Acquire(t.Context(), now, 0))
	require.ErrorIs(t, unanswered.Release(t.Context()), kvstore.ErrLeaseLost)
}

func TestLease_SameName_NotInherited(t *testing.T) {
	t.Parallel()
	js := newBench(t).js
	now := time.Now()
	require.NoError(t, lease(t, js, "a").Acquire(t.Context(), now, 0))
	requireHeldBy(t, lease(t, js, "a").Acquire(t.Context(), now, 0), "a")
}

func TestLease_TwoSeeExpired_OneGetsIt(t *testing.T) {
	t.Parallel()
	js := newBench(t).js
	now := time.Now()
	require.NoError(t, lease(t, js, "dead").Acquire(t.Context(), now, 0))
	won := 0
	rivals := []*kvstore.Lease{lease(t, js, "b"), lease(t, js, "c")}
	for _, l := range rivals {
		requireHeldBy(t, l.Acquire(t.Context(), now, 0), "dead")
	}
	errs := make(chan error)
	for _, l := range rivals {
		go func() { errs <- l.Acquire(t.Context(), now.Add(ttl), 0) }()
	}
	for range rivals {
		if err := <-errs; err == nil {
			won++
		} else {
			require.ErrorIs(t, err, kvstore.ErrHeld)
		}
	}
	require.Equal(t, 1, won)
}

func TestLease_HolderLongerTTL_Respected(t *testing.T) {
	t.Parallel()
	js := newBench(t).js
	long, err := kvstore.NewLease(js, kvstore.LeaseConfig{Name: "x.y", Holder: "a", TTL: time.Minute})
	require.NoError(t, err)
	short, err := kvstore.NewLease(js, kvstore.LeaseConfig{Name: "x.y", Holder: "b", TTL: time.Second})
	require.NoError(t, err)
	now := time.Now()
	require.NoError(t, long.Acquire(t.Context(), now, 0))
	requireHeldBy(t, short.Acquire(t.Context(), now, 0), "a")
	requireHeldBy(t, short.Acquire(t.Context(), now.Add(59*time.Second), 0), "a")
	require.NoError(t, short.Acquire(t.Context(), now.Add(time.Minute), 0))
}

func TestLease_Unreadable_WaitedThenReplaced(t *testing.T) {
	t.Parallel()
	js := newBench(t).js
	name := kvstore.FoldLease(schema.NamesOf("alpha", 0))
	kv, err := js.KeyValue(t.Context(), schema.LeaseBucket)
	require.NoError(t, err)
	_, err = kv.Put(t.Context(), name, []byte("junk"))
	require.NoError(t, err)
	l, now := lease(t, js, "a"), time.Now()
	requireHeldBy(t, l.Acquire(t.Context(), now, 0), "(unreadable)")
	require.NoError(t, l.Acquire(t.Context(), now.Add(ttl), 0))

	_, err = kv.Put(t.Context(), name, []byte(`{"format":9,"holder":"z","nonce":"","ttl_ms":1}`))
	require.NoError(t, err)
	require.ErrorIs(t, lease(t, js, "b").Acquire(t.Context(), now, 0), schema.ErrFormat, "a newer version's lease is left alone")
}

func TestLease_InvalidConfig_Refused(t *testing.T) {
	t.Parallel()
	js := newBench(t).js
	for _, cfg := range []kvstore.LeaseConfig{
		{Name: "a", Holder: "", TTL: time.Minute},
		{Name: "a", Holder: "x y", TTL: time.Minute},
		{Name: "a", Holder: "a"},
		{Name: "a", Holder: "a", TTL: 1},
		{Name: "a", Holder: "a", TTL: time.Hour},
	} {
		_, err := kvstore.NewLease(js, cfg)
		require.Error(t, err, "%+v", cfg)
	}
}

func TestLease_NotNext_WaitsForOthers(t *testing.T) {
	t.Parallel()
	js := newBench(t).js
	a, b, c := lease(t, js, "a"), lease(t, js, "b"), lease(t, js, "c")
	now := time.Now()
	requireHeldBy(t, b.Acquire(t.Context(), now, ttl), "(free)")
	requireHeldBy(t, b.Acquire(t.Context(), now.Add(ttl-1), ttl), "(free)")
	require.NoError(t, a.Acquire(t.Context(), now.Add(ttl-1), 0), "the next process takes it at once")
	requireHeldBy(t, b.Acquire(t.Context(), now.Add(ttl), ttl), "a")
	requireHeldBy(t, b.Acquire(t.Context(), now.Add(3*ttl-1), ttl), "a")
	require.NoError(t, b.Acquire(t.Context(), now.Add(3*ttl), ttl), "no other process did")
	requireHeldBy(t, c.Acquire(t.Context(), now.Add(3*ttl), ttl), "b")
	require.NoError(t, b.Release(t.Context()))
	requireHeldBy(t, c.Acquire(t.Context(), now.Add(5*ttl), ttl), "(free)")
	require.NoError(t, c.Acquire(t.Context(), now.Add(6*ttl), ttl))
}

func TestLease_Asked_HolderLearnsAtItsRenewal(t *testing.T) {
	t.Parallel()
	js := newBench(t).js
	a, b, c := lease(t, js, "a"), lease(t, js, "b"), lease(t, js, "c")
	now := time.Now()
	asks := func(l *kvstore.Lease, want bool) {
		t.Helper()
		stored, err := l.Ask(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, stored)
	}
	require.NoError(t, a.Acquire(t.Context(), now, 0))
	asks(b, false)
	requireHeldBy(t, b.Acquire(t.Context(), now, 0), "a")
	asks(b, false) // it has not seen the holder renew
	require.NoError(t, a.Renew(t.Context(), now))
	require.Empty(t, a.WantedBy())
	requireHeldBy(t, b.Acquire(t.Context(), now.Add(ttl/4), 0), "a")
	asks(b, true)
	asks(b, false)
	requireHeldBy(t, c.Acquire(t.Context(), now, 0), "a")
	requireHeldBy(t, c.Acquire(t.Context(), now, 0), "a")
	asks(c, false) // another process asks already
	require.NoError(t, a.Renew(t.Context(), now.Add(ttl/4)), "a request takes nothing")
	require.Equal(t, "b", a.WantedBy())
	require.NoError(t, a.Renew(t.Context(), now.Add(ttl/4)))
	require.Empty(t, a.WantedBy(), "a renewal removes the request")

	// A request is no sign of life of the holder for its own sender.
	requireHeldBy(t, b.Acquire(t.Context(), now.Add(ttl/2), 0), "a")
	asks(b, true)
	requireHeldBy(t, b.Acquire(t.Context(), now.Add(ttl/2+ttl-1), 0), "a")
	require.NoError(t, b.Acquire(t.Context(), now.Add(ttl/2+ttl), 0), "it expires")
	require.ErrorIs(t, a.Renew(t.Context(), now), kvstore.ErrLeaseLost)

	// A holder that releases the lease releases it with the request.
	require.NoError(t, b.Renew(t.Context(), now))
	requireHeldBy(t, c.Acquire(t.Context(), now, 0), "b")
	asks(c, true)
	require.NoError(t, b.Release(t.Context()))
	require.NoError(t, c.Acquire(t.Context(), now, 0))
	require.Empty(t, c.WantedBy())
}
