package kvstore_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// fill publishes until the stream is full, and returns the number of messages.
func fill(tb testing.TB, b *bench, size int) int {
	tb.Helper()
	for n := 0; ; n++ {
		_, err := b.js.Publish(tb.Context(), b.names.EventSubject("run-1"), make([]byte, size))
		if err != nil {
			require.ErrorContains(tb, err, "maximum bytes exceeded")
			return n
		}
		require.Less(tb, n, 1000, "the quota does not hold")
	}
}

func usage(tb testing.TB, b *bench) kvstore.Usage {
	tb.Helper()
	u, err := b.shard.Usage(tb.Context())
	require.NoError(tb, err)
	return u
}

func TestQuotaIsLiftedStepByStepWithinTheReserve(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	quota, reserve := int64(kvstore.MinQuotaBytes), int64(1<<20)
	limit, err := b.shard.LiftQuota(t.Context(), 1000)
	require.NoError(t, err)
	require.Equal(t, quota, limit, "room enough")

	stored := fill(t, b, 500<<10)
	fill(t, b, 1000)
	full := usage(t, b)
	require.LessOrEqual(t, full.Bytes, quota)

	limit, err = b.shard.LiftQuota(t.Context(), 10_000)
	require.NoError(t, err)
	require.Greater(t, limit, full.Bytes+10_000)
	require.Less(t, limit, full.Bytes+20_000, "just above what is stored")
	_, err = b.js.Publish(t.Context(), b.names.EventSubject("run-1"), make([]byte, 10_000))
	require.NoError(t, err, "a control event finds room")
	require.NoError(t, kvstore.Provision(t.Context(), b.js, smallFleet()), "a lifted limit is as it must be")
	require.Equal(t, limit, usage(t, b).Limit, "and stays")

	// Below what is stored the limit never goes.
	before := usage(t, b)
	limit, err = b.shard.LiftQuota(t.Context(), 0)
	require.NoError(t, err)
	require.GreaterOrEqual(t, limit, before.Bytes)
	require.Equal(t, before.Messages, usage(t, b).Messages)

	for range 1000 {
		if _, err = b.shard.LiftQuota(t.Context(), 64<<10); err != nil {
			break
		}
		fill(t, b, 60<<10)
	}
	require.ErrorIs(t, err, kvstore.ErrFull, "the reserve is used up")
	require.LessOrEqual(t, usage(t, b).Bytes, quota+reserve)
	require.NoError(t, kvstore.Provision(t.Context(), b.js, smallFleet()))

	s, err := b.js.Stream(t.Context(), eventStream)
	require.NoError(t, err)
	require.NoError(t, s.Purge(t.Context(), jetstream.WithPurgeKeep(1)))
	limit, err = b.shard.LiftQuota(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, quota, limit, "back to the quota")
	require.Equal(t, quota, usage(t, b).Limit)
	require.Positive(t, stored)
}

func TestLoweredQuotaLosesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cfg := smallFleet()
	cfg.QuotaBytes = 2 * kvstore.MinQuotaBytes
	require.NoError(t, kvstore.Provision(t.Context(), b.js, cfg))
	fill(t, b, 500<<10)
	before := usage(t, b)
	require.NoError(t, kvstore.Provision(t.Context(), b.js, smallFleet()))
	after := usage(t, b)
	require.Equal(t, before.Messages, after.Messages)
	require.Equal(t, before.Bytes, after.Limit, "full until it was purged")
	require.NoError(t, kvstore.Provision(t.Context(), b.js, smallFleet()))
}

func TestUnlimitedQuotaNeedsNoLift(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cfg := smallFleet()
	cfg.QuotaBytes = kvstore.UnlimitedQuota
	require.NoError(t, kvstore.Provision(t.Context(), b.js, cfg))
	require.EqualValues(t, -1, usage(t, b).Limit)
	limit, err := openShard(t, b.js, "alpha").LiftQuota(t.Context(), 1<<40)
	require.NoError(t, err)
	require.EqualValues(t, kvstore.UnlimitedQuota, limit)
	require.NoError(t, kvstore.Provision(t.Context(), b.js, cfg))
}

func TestIncarnationNamesTheStreamsCreation(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	s, err := b.js.Stream(t.Context(), eventStream)
	require.NoError(t, err)
	got, err := b.shard.Incarnation(t.Context())
	require.NoError(t, err)
	require.Equal(t, schema.FormatTime(s.CachedInfo().Created), got)
	require.NoError(t, b.js.DeleteStream(t.Context(), eventStream))
	_, err = b.shard.Incarnation(t.Context())
	require.ErrorIs(t, err, kvstore.ErrStreamMissing)
}

func TestShardIsChecked(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	s, _, err := kvstore.NewFleets(b.js).Get(t.Context(), "alpha")
	require.NoError(t, err)
	_, err = kvstore.OpenShard(b.js, s, 1, "d")
	require.ErrorIs(t, err, kvstore.ErrSettings)
	_, err = kvstore.OpenShard(b.js, s, 0, "d d")
	require.Error(t, err)
	_, err = kvstore.OpenShard(b.js, kvstore.FleetSettings{}, 0, "d")
	require.Error(t, err)
}
