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

// reshard changes the number of shards; the change is left under way.
func (w *world) reshard(shards int) {
	w.tb.Helper()
	w.config.Shards = shards
	require.NoError(w.tb, kvstore.Provision(w.tb.Context(), w.js, w.config))
}

// opened ends the change that is under way.
func (w *world) opened() {
	w.tb.Helper()
	fleets := kvstore.NewFleets(w.js)
	s, _, err := fleets.Get(w.tb.Context(), "default")
	require.NoError(w.tb, err)
	require.NoError(w.tb, fleets.Opened(w.tb.Context(), "default", s.Change))
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

func TestARunIsBegunOnceAlthoughOneOfTwoStartersDoesNotKnowOfTheNewShards(t *testing.T) {
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

func TestOfManyStartersAtOnceOneBeginsEachRun(t *testing.T) {
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

func TestAStartThatEndedAtItsMarkIsBegunWhereTheMarkSays(t *testing.T) {
	t.Parallel()
	w := shardedWorld(t)
	old := w.fleet(executor("old"))
	publisher.TrustPlacing(old)
	w.reshard(4)
	id := movedRun(1, 4, 0)
	w.markAsPlaced(id, 0, schema.Placed{Shard: schema.ShardOf(id, 4), Change: 1})
	start(t, old, id)
	require.Equal(t, []int{schema.ShardOf(id, 4)}, w.places(id, 4))
	other := movedRun(1, 4, 1)
	w.markAsPlaced(other, 0, schema.Placed{Shard: schema.ShardOf(other, 4), Change: 1})
	start(t, w.fleet(executor("fresh")), other)
	require.Equal(t, []int{schema.ShardOf(other, 4)}, w.places(other, 4))
}

func TestARunBeginsBehindAMarkOnceItsShardIsTheRightOneAgain(t *testing.T) {
	t.Parallel()
	w := shardedWorld(t)
	w.serve()
	w.reshard(4)
	id := movedRun(1, 4, 0)
	w.markAsPlaced(id, 0, schema.Placed{Shard: schema.ShardOf(id, 4), Change: 1})
	w.opened()
	w.reshard(1)
	f := w.fleet(executor("exec-2"))
	run := start(t, f, id)
	turn(t, run)
	require.Equal(t, []int{0}, w.places(id, 4))
	require.Equal(t, []string{"run.placed", "run.started"}, names(w.log(id))[:2])
	w.requireSameFold(run)
	// The mark of this change stands in the other shard, behind which nobody may begin it.
	head, err := f.Head(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, run.Head(), head)
	state, err := f.Get(t.Context(), id)
	require.NoError(t, err)
	require.Len(t, state.Turns, 1)
}

func TestAMarkOfAnEarlierChangeProvesNothing(t *testing.T) {
	t.Parallel()
	w := shardedWorld(t)
	w.reshard(4)
	id := movedRun(1, 4, 0)
	w.markAsPlaced(id, 0, schema.Placed{Shard: schema.ShardOf(id, 4), Change: 1})
	w.opened()
	w.reshard(1)
	w.opened()
	old := w.fleet(executor("old"))
	publisher.TrustPlacing(old)
	w.reshard(4)
	// The older executor would begin it behind the first mark, as its settings say that one shard is right.
	start(t, w.fleet(executor("fresh")), id)
	_, err := old.Start(t.Context(), publisher.RunSpec{ID: id})
	require.ErrorIs(t, err, publisher.ErrRunExists)
	require.Equal(t, []int{schema.ShardOf(id, 4)}, w.places(id, 4))
}

func TestNoMarksAreLeftOnceTheChangeIsOver(t *testing.T) {
	t.Parallel()
	w := shardedWorld(t)
	w.reshard(4)
	w.opened()
	id := movedRun(1, 4, 0)
	f := w.fleet()
	start(t, f, id)
	require.Empty(t, w.log(id), "nothing is written where the run is not")
	require.Equal(t, []int{schema.ShardOf(id, 4)}, w.places(id, 4))
}

// A process that was stopped between its look at the settings and its start goes on when the change is over, and no marks are
// left any more.
func TestARunThatWasBegunLateIsBegunOnce(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"the one that was stopped", "the other"} {
		t.Run(first+" comes first", func(t *testing.T) {
			w := shardedWorld(t)
			old := w.fleet(executor("old"))
			publisher.TrustPlacing(old)
			publisher.StartLate(old)
			w.reshard(4)
			w.opened()
			fresh := w.fleet(executor("fresh"))
			id := movedRun(1, 4, 0)
			if first == "the other" {
				run := start(t, fresh, id)
				_, err := old.Start(t.Context(), publisher.RunSpec{ID: id})
				require.ErrorIs(t, err, publisher.ErrRunExists)
				require.Equal(t, []string{"run.started", "run.ended"}, names(w.log(id)), "what was begun in the old place is over")
				turn(t, run)
				return
			}
			run := start(t, old, id)
			_, err := fresh.Start(t.Context(), publisher.RunSpec{ID: id})
			require.ErrorIs(t, err, publisher.ErrRunExists)
			turn(t, run)
			require.Equal(t, []int{0}, w.places(id, 4))
			// Who had looked it up before would begin it now, and meets a mark of a change that it does not know of.
			var left []schema.Record
			require.NoError(t, eventlog.Read(t.Context(), w.js, schema.NamesOf("default", schema.ShardOf(id, 4)), id, 1, func(rec schema.Record) error {
				left = append(left, rec)
				return nil
			}))
			require.Len(t, left, 1)
			e, err := schema.Decode(left[0].Header, left[0].Body)
			require.NoError(t, err)
			mark, ok := schema.PlacedOf(e)
			require.True(t, ok)
			require.Equal(t, schema.Placed{Shard: 0, Change: 2}, mark)
		})
	}
}

// Two that begin a run at once, of which one was stopped, meet: one of them has it.
func TestOfStartersOfWhichSomeAreLateOneBeginsEachRun(t *testing.T) {
	t.Parallel()
	w := shardedWorld(t)
	const runs = 30
	late := w.fleet(executor("late"))
	publisher.TrustPlacing(late)
	publisher.StartLate(late)
	w.reshard(3)
	w.opened()
	fleets := []*publisher.Fleet{late, w.fleet(executor("fresh"))}
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
					t.Errorf("start of %s: %v", id, err)
				}
			})
		}
	}
	group.Wait()
	for i := range runs {
		id := fmt.Sprintf("contested-%d", i)
		require.Equal(t, 1, begun[id], id)
	}
}

func TestAnExecutorHearsOfNewShards(t *testing.T) {
	t.Parallel()
	w := shardedWorld(t)
	f := w.fleet()
	start(t, f, "stays")
	publisher.TrustPlacing(f)
	w.reshard(4)
	w.opened()
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

func TestATakeoverGoesOnInTheShardThatHasTheRun(t *testing.T) {
	t.Parallel()
	w := shardedWorld(t)
	old := w.fleet(executor("old"))
	publisher.TrustPlacing(old)
	before := start(t, old, movedRun(1, 4, 1))
	w.reshard(4)
	w.opened()
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
