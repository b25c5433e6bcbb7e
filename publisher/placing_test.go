package publisher_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// shardedWorld has a fleet of one shard, of which several can be made.
func shardedWorld(tb testing.TB) *world {
	tb.Helper()
	return newWorldWith(tb, kvstore.FleetConfig{Fleet: "default", QuotaBytes: kvstore.MinQuotaBytes})
}

// reshard changes the number of shards.
func (w *world) reshard(shards int) {
	w.tb.Helper()
	w.config.Shards = shards
	require.NoError(w.tb, kvstore.Provision(w.tb.Context(), w.js, w.config))
}

// movedRun returns the id of a run that another number of shards puts elsewhere.
func movedRun(from, to, nth int) string {
	for i := 0; ; i++ {
		id := fmt.Sprintf("moved-%d", i)
		if schema.ShardOf(id, from) != schema.ShardOf(id, to) {
			if nth--; nth < 0 {
				return id
			}
		}
	}
}

// places are the shards that have events of the run, marks left out.
func (w *world) places(run string, shards int) []int {
	w.tb.Helper()
	var list []int
	for i := range shards {
		events := 0
		require.NoError(w.tb, eventlog.Read(w.tb.Context(), w.js, schema.NamesOf("default", i), run, 1, func(rec schema.Record) error {
			e, err := schema.Decode(rec.Header, rec.Body)
			require.NoError(w.tb, err)
			if _, mark := schema.PlacedOf(e); !mark {
				events++
			}
			return nil
		}))
		if events > 0 {
			list = append(list, i)
		}
	}
	return list
}

// turn runs one turn, which the fold accepts only where the run is.
func turn(tb testing.TB, run *publisher.Run) {
	tb.Helper()
	require.NoError(tb, openTurn(tb, run).End(tb.Context(), publisher.TurnEnd{}))
}

func TestStart_OneStarterHasOldShards_BegunOnce(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"the one that knows", "the one that does not"} {
		t.Run(first+" comes first", func(t *testing.T) {
			w := shardedWorld(t)
			old := w.fleet(executor("old"))
			publisher.TrustPlacing(old)
			w.reshard(4)
			fresh := w.fleet(executor("fresh"))
			id := movedRun(1, 4, 0)
			starters, want := []*publisher.Fleet{fresh, old}, schema.ShardOf(id, 4)
			if first == "the one that does not" {
				starters, want = []*publisher.Fleet{old, fresh}, 0
			}
			run := start(t, starters[0], id)
			_, err := starters[1].Start(t.Context(), publisher.RunSpec{ID: id})
			require.ErrorIs(t, err, publisher.ErrRunExists)
			require.Equal(t, []int{want}, w.places(id, 4))
			turn(t, run)
		})
	}
}

func TestStart_ManyStarters_OneBegins(t *testing.T) {
	t.Parallel()
	w := shardedWorld(t)
	const runs = 60
	old, older := w.fleet(executor("old")), w.fleet(executor("older"))
	publisher.TrustPlacing(old)
	publisher.TrustPlacing(older)
	w.reshard(3)
	fleets := []*publisher.Fleet{old, older, w.fleet(executor("fresh")), w.fleet(executor("fresher"))}
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
		require.Len(t, w.places(id, 3), 1, id)
	}
}

func TestStart_CrashedAtTombstone_BegunThere(t *testing.T) {
	t.Parallel()
	w := shardedWorld(t)
	old := w.fleet(executor("old"))
	publisher.TrustPlacing(old)
	w.reshard(4)
	id := movedRun(1, 4, 0)
	w.markAsPlaced(id, 0, schema.Placed{Shard: schema.ShardOf(id, 4)})
	start(t, old, id)
	require.Equal(t, []int{schema.ShardOf(id, 4)}, w.places(id, 4))
	other := movedRun(1, 4, 1)
	w.markAsPlaced(other, 0, schema.Placed{Shard: schema.ShardOf(other, 4)})
	start(t, w.fleet(executor("fresh")), other)
	require.Equal(t, []int{schema.ShardOf(other, 4)}, w.places(other, 4))
}

// The tombstone stays and is read by every executor: the run starts in the shard that it names, although the number of shards is the first again.
func TestShardTombstone_LaterChanges_FirstDecides(t *testing.T) {
	t.Parallel()
	w := shardedWorld(t)
	w.serve()
	w.reshard(4)
	id := movedRun(1, 4, 0)
	w.markAsPlaced(id, 0, schema.Placed{Shard: schema.ShardOf(id, 4)})
	w.reshard(1)
	f := w.fleet(executor("exec-2"))
	run := start(t, f, id)
	turn(t, run)
	require.Equal(t, []int{schema.ShardOf(id, 4)}, w.places(id, 4))
	require.Equal(t, []string{"run.placed"}, names(w.log(id)))
	head, err := f.Head(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, run.Head(), head)
	state, err := f.Get(t.Context(), id)
	require.NoError(t, err)
	require.Len(t, state.Turns, 1)
}

// Two of whom each knows another number of shards, neither of which puts the run into its home.
func TestStart_DifferentShardCounts_BegunOnce(t *testing.T) {
	t.Parallel()
	w := shardedWorld(t)
	w.reshard(3)
	old := w.fleet(executor("old"))
	w.reshard(4)
	fresh := w.fleet(executor("fresh"))
	for i := range 40 {
		publisher.KnowShards(old, 1, 3) // it reads the settings as it works
		id := fmt.Sprintf("between-%d", i)
		first, second := old, fresh
		if i%2 == 0 {
			first, second = fresh, old
		}
		turn(t, start(t, first, id))
		_, err := second.Start(t.Context(), publisher.RunSpec{ID: id})
		require.ErrorIs(t, err, publisher.ErrRunExists)
		require.Len(t, w.places(id, 4), 1)
	}
}

// A mark that names a shard in which no number of shards puts the run, or a second mark where the first one points, is forged.
func TestShardTombstone_Forged_StartsNothing(t *testing.T) {
	t.Parallel()
	w := shardedWorld(t)
	w.reshard(4)
	id := movedRun(1, 4, 0)
	w.markAsPlaced(id, 0, schema.Placed{Shard: 77})
	f := w.fleet()
	_, err := f.Start(t.Context(), publisher.RunSpec{ID: id})
	require.ErrorIs(t, err, publisher.ErrRunExists)
	require.ErrorContains(t, err, "names shard 77")
	require.ErrorContains(t, err, "choose another id")
	other := movedRun(1, 4, 1)
	w.markAsPlaced(other, schema.ShardOf(other, 4), schema.Placed{Shard: 0})
	_, err = f.Start(t.Context(), publisher.RunSpec{ID: other})
	require.ErrorIs(t, err, publisher.ErrRunExists)
	require.ErrorContains(t, err, "two tombstones")
	require.Empty(t, w.places(other, 4))
}

func TestShardTombstone_ConstantShards_None(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, kvstore.FleetConfig{Fleet: "default", QuotaBytes: kvstore.MinQuotaBytes, Shards: 4})
	for i := range 8 {
		id := fmt.Sprintf("plain-%d", i)
		start(t, w.fleet(executor(fmt.Sprintf("exec-%d", i))), id)
		for shard := range 4 {
			require.NoError(t, eventlog.Read(t.Context(), w.js, schema.NamesOf("default", shard), id, 1, func(rec schema.Record) error {
				e, err := schema.Decode(rec.Header, rec.Body)
				require.NoError(t, err)
				_, mark := schema.PlacedOf(e)
				require.False(t, mark)
				return nil
			}))
		}
	}
}

func TestExecutor_ShardsAdded_Hears(t *testing.T) {
	t.Parallel()
	w := shardedWorld(t)
	f := w.fleet()
	start(t, f, "stays")
	publisher.TrustPlacing(f)
	w.reshard(4)
	for n := 0; ; n++ {
		require.Less(t, n, 1000, "the executor never hears of it")
		require.NoError(t, w.nc.Publish(schema.SettingsSubject("default"), nil))
		require.NoError(t, w.nc.Flush())
		id := movedRun(1, 4, n)
		start(t, f, id)
		if p := w.places(id, 4); p[0] == schema.ShardOf(id, 4) {
			break
		}
	}
}

func TestTakeover_ShardsAdded_StaysInShard(t *testing.T) {
	t.Parallel()
	w := shardedWorld(t)
	old := w.fleet(executor("old"))
	publisher.TrustPlacing(old)
	before := start(t, old, movedRun(1, 4, 1))
	w.reshard(4)
	w.serve()
	id := movedRun(1, 4, 0)
	start(t, w.fleet(executor("fresh")), id)
	for _, run := range []string{id, before.ID()} {
		r, err := old.Resume(t.Context(), run, publisher.ResumeSpec{Agent: "coder"})
		require.NoError(t, err)
		turn(t, r)
		require.Len(t, w.places(run, 4), 1)
	}
}

// markAsPlaced leaves a mark as an executor does that then dies.
func (w *world) markAsPlaced(run string, shard int, p schema.Placed) {
	w.tb.Helper()
	e, err := schema.NewPlaced("default", "dead", run, "nonce", p, time.Now())
	require.NoError(w.tb, err)
	header, body := e.Encode()
	_, err = w.js.PublishMsg(w.tb.Context(), &nats.Msg{Subject: schema.NamesOf("default", shard).EventSubject(run), Header: header, Data: body},
		jetstream.WithExpectLastSequencePerSubject(0))
	require.NoError(w.tb, err)
}

// Settings that are gone do not mean one shard and no keys.
func TestConnect_SettingsAreGone_IsNotProvisioned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	kv, err := w.js.KeyValue(t.Context(), schema.FleetBucket)
	require.NoError(t, err)
	require.NoError(t, kv.Delete(t.Context(), "default"))
	_, err = publisher.Connect(t.Context(), publisher.Config{Conn: w.nc, Executor: "exec-2"})
	require.ErrorIs(t, err, publisher.ErrNotProvisioned)
	publisher.DistrustPlacing(f)
	_, err = f.Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder"})
	require.ErrorIs(t, err, publisher.ErrNotProvisioned)
	require.NoError(t, w.js.DeleteStream(t.Context(), "KV_"+schema.FleetBucket))
	_, err = publisher.Connect(t.Context(), publisher.Config{Conn: w.nc, Executor: "exec-2"})
	require.ErrorIs(t, err, publisher.ErrNotProvisioned)
}
