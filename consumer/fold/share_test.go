package fold_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// shareTTL is a short time to live of a lease.
const shareTTL = time.Second

// sharing is a fleet of eight shards, and replicas that fold it.
type sharing struct {
	*world
	settings schema.FleetSettings
	stops    map[string]func()
	cuts     map[string]func()
}

func newSharing(tb testing.TB) *sharing {
	tb.Helper()
	s := &sharing{world: newWorldOf(tb, kvstore.FleetConfig{Fleet: "default", Shards: 8, QuotaBytes: kvstore.MinQuotaBytes}), stops: map[string]func(){}, cuts: map[string]func(){}}
	var err error
	s.settings, _, err = kvstore.NewFleets(s.JS).Get(tb.Context(), "default")
	require.NoError(tb, err)
	return s
}

// replica starts a fold worker for each shard.
func (s *sharing) replica(name string) {
	s.TB.Helper()
	nc := s.Server.Conn(s.TB)
	js := foldtest.JetStream(s.TB, nc)
	s.cuts[name] = nc.Close
	share := fold.NewShare(name, s.settings.Shards, shareTTL, time.Now)
	ctx, stop := context.WithCancel(context.Background())
	var ends []func()
	for i := range s.settings.Shards {
		shard, err := kvstore.OpenShard(js, s.settings, i, name)
		require.NoError(s.TB, err)
		f, err := fold.New(fold.Config{Fleet: "default", Shard: i, Holder: name, LeaseTTL: shareTTL, Share: share}, nc, js, shard, time.Now, foldtest.Logger(s.TB))
		require.NoError(s.TB, err)
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		ends = append(ends, func() { require.NoError(s.TB, <-done) })
	}
	s.stops[name] = func() {
		stop()
		for _, end := range ends {
			end()
		}
		delete(s.stops, name)
	}
	s.TB.Cleanup(func() {
		if end := s.stops[name]; end != nil {
			end()
		}
	})
}

// shares counts the shards of each holder.
func (s *sharing) shares() map[string]int {
	s.TB.Helper()
	n := map[string]int{}
	for i := range s.settings.Shards {
		holder, err := kvstore.Holder(s.TB.Context(), s.JS, kvstore.FoldLease(schema.NamesOf("default", i)))
		require.NoError(s.TB, err)
		n[holder]++
	}
	return n
}

// await waits until the named replicas hold all shards, and none has two more than another.
func (s *sharing) await(replicas ...string) {
	s.TB.Helper()
	began := time.Now()
	require.Eventually(s.TB, func() bool {
		n, total := s.shares(), 0
		for _, r := range replicas {
			total += n[r]
			if n[r] < 8/len(replicas) || n[r] > (8+len(replicas)-1)/len(replicas) {
				return false
			}
		}
		return total == 8
	}, time.Minute, 20*time.Millisecond, "%v hold the shards", replicas)
	s.TB.Logf("%v after %s: %v", replicas, time.Since(began).Round(10*time.Millisecond), s.shares())
}

func TestShare_ThreeReplicas_ShareEightShards(t *testing.T) {
	t.Parallel()
	s := newSharing(t)
	for i := range 3 {
		s.replica(fmt.Sprintf("replica-%d", i))
	}
	s.await("replica-0", "replica-1", "replica-2")

	s.stops["replica-1"]()
	s.await("replica-0", "replica-2")

	// A replica that joins gets its share, although every shard has a holder.
	s.replica("replica-3")
	s.await("replica-0", "replica-2", "replica-3")

	// A replica that is cut off does not release its leases: they expire.
	s.cuts["replica-2"]()
	s.await("replica-0", "replica-3")
}

func TestShare_OneReplica_TakesAllShards(t *testing.T) {
	t.Parallel()
	s := newSharing(t)
	s.replica("only")
	s.await("only")
}
