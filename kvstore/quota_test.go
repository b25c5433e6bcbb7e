package kvstore_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
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

func TestQuota_FullLog_LiftedWithinReserve(t *testing.T) {
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

	control := &nats.Msg{Subject: b.names.EventSubject("run-1"), Header: nats.Header{"Ce-Id": {"a"}, "Ce-Tags": {"b", "c"}}, Data: make([]byte, 10_000)}
	limit, err = b.shard.LiftQuota(t.Context(), int64(eventlog.StoredBytes(control)))
	require.NoError(t, err)
	require.Equal(t, full.Bytes+int64(eventlog.StoredBytes(control)), limit, "the event's size above the stored size")
	_, err = b.js.PublishMsg(t.Context(), control)
	require.NoError(t, err, "a control event finds room")
	require.Equal(t, limit, usage(t, b).Bytes, "exactly")
	require.NoError(t, kvstore.Provision(t.Context(), b.js, smallFleet()), "a lifted limit is as it must be")
	require.Equal(t, limit, usage(t, b).Limit, "and stays")

	// The limit never goes below the stored size.
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

func TestQuota_Lowered_LosesNothing(t *testing.T) {
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

func TestQuota_Unlimited_NoLift(t *testing.T) {
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

func TestIncarnation_Stream_NamesCreation(t *testing.T) {
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

func TestShard_Invalid_Refused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	s, _, err := kvstore.NewFleets(b.js).Get(t.Context(), "alpha")
	require.NoError(t, err)
	_, err = kvstore.OpenShard(b.js, s, 1, "d")
	require.ErrorIs(t, err, kvstore.ErrSettings)
	_, err = kvstore.OpenShard(b.js, s, 0, "d d")
	require.Error(t, err)
	_, err = kvstore.OpenShard(b.js, schema.FleetSettings{}, 0, "d")
	require.Error(t, err)
}

// atUpdate returns a JetStream whose updates of the event stream wait until the function meanwhile has run, once.
func atUpdate(t *testing.T, nc *nats.Conn, meanwhile func()) jetstream.JetStream {
	t.Helper()
	once := sync.OnceFunc(meanwhile)
	return natstest.Between(t, nc, func(m *nats.Msg, subject string) {
		if subject == "$JS.API.STREAM.UPDATE."+eventStream {
			once()
		}
		natstest.Forward(nc, m, subject)
	})
}

func TestLiftQuota_SettingsChangedUnseen_KeepsTheNewQuota(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	stale, full := openShard(t, b.js, "alpha"), openShard(t, b.js, "alpha")
	cfg := smallFleet()
	cfg.QuotaBytes = 2 * kvstore.MinQuotaBytes
	require.NoError(t, kvstore.Provision(t.Context(), b.js, cfg))
	limit, err := stale.LiftQuota(t.Context(), 0)
	require.NoError(t, err)
	require.EqualValues(t, 2*kvstore.MinQuotaBytes, limit)
	require.EqualValues(t, 2*kvstore.MinQuotaBytes, usage(t, b).Limit)
	require.EqualValues(t, 2*kvstore.MinQuotaBytes, stale.Settings().QuotaBytes, "and knows of it from then on")
	// A stream that is full under the previous settings has room.
	limit, err = full.LiftQuota(t.Context(), kvstore.MinQuotaBytes+kvstore.MinQuotaBytes/2)
	require.NoError(t, err)
	require.EqualValues(t, 2*kvstore.MinQuotaBytes, limit)
}

func TestLiftQuota_ChangedBetweenReadAndWrite_KeepsTheNewQuota(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	fill(t, b, 500<<10)
	fill(t, b, 1000)
	js := atUpdate(t, b.nc, func() {
		_, err := kvstore.Change(context.Background(), b.js, "alpha", func(c *kvstore.FleetConfig) { c.QuotaBytes = 2 * kvstore.MinQuotaBytes })
		if err != nil {
			t.Errorf("change of the quota: %v", err)
		}
	})
	limit, err := openShard(t, js, "alpha").LiftQuota(t.Context(), 10_000)
	require.NoError(t, err)
	require.EqualValues(t, 2*kvstore.MinQuotaBytes, limit)
	require.EqualValues(t, 2*kvstore.MinQuotaBytes, usage(t, b).Limit)
}

func TestChange_QuotaLiftedBehindItsWrite_AppliesItAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before, err := b.js.Stream(t.Context(), eventStream)
	require.NoError(t, err)
	late := before.CachedInfo().Config
	var once sync.Once
	js := natstest.Between(t, b.nc, func(m *nats.Msg, subject string) {
		natstest.Forward(b.nc, m, subject)
		if subject == "$JS.API.STREAM.UPDATE."+eventStream {
			// A daemon that read the configuration before the change writes it back, before the settings are stored.
			once.Do(func() {
				if _, err := b.js.UpdateStream(context.Background(), late); err != nil {
					t.Errorf("write of an older configuration: %v", err)
				}
			})
		}
	})
	_, err = kvstore.Change(t.Context(), js, "alpha", func(c *kvstore.FleetConfig) { c.QuotaBytes = 2 * kvstore.MinQuotaBytes })
	require.NoError(t, err)
	require.EqualValues(t, 2*kvstore.MinQuotaBytes, usage(t, b).Limit)
}

func TestLargestQuota_AnyRoom_FleetFitsExactly(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 2, 8} {
		for _, room := range []int64{kvstore.LeastRoom(shards), 3 << 30, 144 << 30} {
			quota := kvstore.LargestQuota(room, shards)
			require.GreaterOrEqual(t, quota, int64(kvstore.MinQuotaBytes))
			fits := func(quota int64) bool {
				c := kvstore.FleetConfig{QuotaBytes: quota}.Defaults()
				return kvstore.Storage(shards, quota, c.ReserveBytes) <= room
			}
			require.True(t, fits(quota) && !fits(quota+1<<20), "%d MiB for %d shards of %d MiB", room>>20, shards, quota>>20)
		}
	}
	require.Zero(t, kvstore.LargestQuota(0, 1))
	require.EqualValues(t, 116<<20, kvstore.LeastRoom(1))
}

// fillBucket stores large keys until the bucket has used up the quota.
func fillBucket(tb testing.TB, b *bench, bucket string, quota int64) {
	tb.Helper()
	for i := range quota/(500<<10) + 1 {
		_, err := b.js.Publish(tb.Context(), fmt.Sprintf("$KV.%s.a.b.%d", bucket, i), make([]byte, 500<<10))
		require.NoError(tb, err, "the daemon has a reserve")
	}
}

// A log whose events' checkpoints would find no room takes none of executors, and those of the daemon.
func TestThrottle_CheckpointsAtTheQuota_LogIsClosed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	look := func(folded schema.StreamSequence) {
		t.Helper()
		wait, err := b.shard.Throttle(t.Context(), folded)
		require.NoError(t, err)
		require.Positive(t, wait)
	}
	publish := func() error {
		_, err := b.js.Publish(t.Context(), b.names.EventSubject("run-1"), make([]byte, 100<<10))
		return err
	}
	look(0)
	require.NoError(t, publish())
	fillBucket(t, b, b.names.CheckpointBucket(), kvstore.MinQuotaBytes)
	look(1)
	require.True(t, b.shard.Closed())
	require.ErrorContains(t, publish(), "maximum bytes exceeded")
	require.EqualValues(t, 1, config(t, b.js, checkpointStream).MaxMsgsPerSubject, "the last checkpoint of each run is enough")
	require.NoError(t, kvstore.Provision(t.Context(), b.js, smallFleet()), "both are as they must be")
	for _, s := range kvstore.Inspect(t.Context(), b.js, settingsOf(t, b)) {
		require.NoError(t, s.Err)
	}
	// Another daemon, which has not looked, opens the log no further than for its own event.
	other := openShard(t, b.js, "alpha")
	_, err := other.LiftQuota(t.Context(), 110<<10)
	require.NoError(t, err)
	require.NoError(t, publish(), "a control event")
	require.ErrorContains(t, publish(), "maximum bytes exceeded")

	cfg := smallFleet()
	cfg.QuotaBytes *= 4
	require.NoError(t, kvstore.Provision(t.Context(), b.js, cfg), "a larger quota opens it")
	require.NoError(t, publish())
	b.shard.Update(*settingsOf(t, b))
	look(usage(t, b).Last)
	require.False(t, b.shard.Closed())
	require.EqualValues(t, 5, config(t, b.js, checkpointStream).MaxMsgsPerSubject)
	require.NoError(t, kvstore.Provision(t.Context(), b.js, smallFleet()))
	b.shard.Update(*settingsOf(t, b))
	look(usage(t, b).Last)
	require.ErrorContains(t, publish(), "maximum bytes exceeded", "closed again")
	s, err := b.js.Stream(t.Context(), checkpointStream)
	require.NoError(t, err)
	require.NoError(t, s.Purge(t.Context()))
	look(usage(t, b).Last)
	require.NoError(t, publish(), "room for checkpoints opens it")

	// Events that are not folded yet count as what their checkpoints may take.
	for range 120 {
		require.NoError(t, publish())
	}
	fillBucket(t, b, b.names.CheckpointBucket(), kvstore.MinQuotaBytes/2)
	look(1)
	require.ErrorContains(t, publish(), "maximum bytes exceeded")
	look(usage(t, b).Last)
	require.NoError(t, publish())
}

func settingsOf(tb testing.TB, b *bench) *schema.FleetSettings {
	tb.Helper()
	s, _, err := kvstore.NewFleets(b.js).Get(tb.Context(), "alpha")
	require.NoError(tb, err)
	return &s
}

// Segments end at the quota, so that a removal, which makes room, finds some.
func TestThrottle_SegmentsAtTheQuota_RefusedAndRemovalsGoOn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	fillBucket(t, b, b.names.SegmentBucket(), kvstore.MinQuotaBytes-2<<20)
	_, err := b.shard.Throttle(t.Context(), 0)
	require.NoError(t, err)
	for n := 1; err == nil; n++ {
		require.Less(t, n, 10, "the quota does not hold")
		err = b.shard.Segments.Create(t.Context(), "run-1", n, make([]byte, 500<<10))
	}
	require.ErrorIs(t, err, kvstore.ErrFull)
	_, err = b.shard.Throttle(t.Context(), 0)
	require.NoError(t, err)
	require.ErrorIs(t, b.shard.Segments.Create(t.Context(), "run-2", 1, make([]byte, 500<<10)), kvstore.ErrFull)
	require.NoError(t, b.shard.Removals.Add(t.Context(), "run-1", 1))
	require.False(t, b.shard.Closed(), "the log has room of its own")
}
