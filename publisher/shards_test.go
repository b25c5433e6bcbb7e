package publisher_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestStart_ManyStarters_OneBegins(t *testing.T) {
	t.Parallel()
	const runs, shards = 60, 3
	w := newWorldWith(t, kvstore.FleetConfig{Fleet: "default", QuotaBytes: kvstore.MinQuotaBytes, Shards: shards})
	var fleets []*publisher.Fleet
	for _, name := range []string{"one", "two", "three", "four"} {
		fleets = append(fleets, w.fleet(named(name), func(c *publisher.Config) { c.RequestTimeout, c.PublishTimeout = patience, patience }))
	}
	var mu sync.Mutex
	begun := make(map[string]int)
	var group sync.WaitGroup
	for i := range runs {
		for _, f := range fleets {
			group.Go(func() {
				id := fmt.Sprintf("contested-%d", i)
				_, err := f.Start(t.Context(), publisher.RunSpec{ID: id})
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					begun[id]++
				} else if !errors.Is(err, publisher.ErrRunExists) {
					begun[id] += 100
					t.Errorf("start of %s: %v", id, err)
				}
			})
		}
	}
	group.Wait()
	for i := range runs {
		id := fmt.Sprintf("contested-%d", i)
		require.Equal(t, 1, begun[id], id)
		for shard := range shards {
			_, found, err := eventlog.Last(t.Context(), w.js, schema.NamesOf("default", shard), id)
			require.NoError(t, err)
			require.Equal(t, shard == schema.ShardOf(id, shards), found, "run %s, shard %d", id, shard)
		}
	}
}

// Settings that are gone do not mean one shard and no keys.
func TestConnect_SettingsAreGone_IsNotProvisioned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kv, err := w.js.KeyValue(t.Context(), schema.FleetBucket)
	require.NoError(t, err)
	require.NoError(t, kv.Delete(t.Context(), "default"))
	_, err = publisher.Connect(t.Context(), publisher.Config{Conn: w.nc, Executor: "exec-2"})
	require.ErrorIs(t, err, publisher.ErrNotProvisioned)
	require.NoError(t, w.js.DeleteStream(t.Context(), "KV_"+schema.FleetBucket))
	_, err = publisher.Connect(t.Context(), publisher.Config{Conn: w.nc, Executor: "exec-2"})
	require.ErrorIs(t, err, publisher.ErrNotProvisioned)
}
