package assign_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/assign"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/schema"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// unheard are the sightings of a replica whose executors all send heartbeats.
type unheard struct{}

func (unheard) TakeUnheard() []assign.Seen   { return nil }
func (unheard) HeardElsewhere([]assign.Seen) {}

// run runs a replica until the test ends.
func run(t *testing.T, work func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- work(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
}

// replica is a replica that shares shards and folds nothing.
func replica(tb testing.TB, server *natstest.Server, name string, shards int) *assign.Assigner {
	tb.Helper()
	nc := server.Conn(tb)
	log := natstest.Logger(tb)
	return assign.New("default", name, shards, nc, unheard{}, time.Now, log)
}

func TestAssign_SameReplicas_AgreeOnShards(t *testing.T) {
	t.Parallel()
	const shards = 6
	server := natstest.Start(t)
	a, b := replica(t, server, "a", shards), replica(t, server, "b", shards)
	require.Len(t, assign.Owned(a), shards, "a single replica has all shards")
	run(t, a.Run)
	run(t, b.Run)
	agree := func(replicas ...*assign.Assigner) func() bool {
		return func() bool {
			var all []int
			for _, r := range replicas {
				mine := assign.Owned(r)
				if len(mine) != shards/len(replicas) {
					return false
				}
				all = append(all, mine...)
			}
			seen := make(map[int]bool)
			for _, i := range all {
				seen[i] = true
			}
			return len(seen) == shards
		}
	}
	require.Eventually(t, agree(a, b), time.Minute, 10*time.Millisecond)
	t.Run("while a third one is there", func(t *testing.T) {
		c := replica(t, server, "c", shards)
		run(t, c.Run)
		require.Eventually(t, agree(a, b, c), time.Minute, 10*time.Millisecond)
		require.Equal(t, 3, a.Replicas())
	})
	// It has announced that it leaves.
	require.Eventually(t, agree(a, b), time.Minute, 10*time.Millisecond)
}

func TestAssign_ForeignMessage_ChangesNothing(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	a := replica(t, server, "a", 4)
	run(t, a.Run)
	b := replica(t, server, "b", 4)
	run(t, b.Run)
	require.Eventually(t, func() bool { return a.Replicas() == 2 }, time.Minute, 10*time.Millisecond)
	nc := server.Conn(t)
	for _, body := range []string{"", "null", "{", `{"holder":"c"}`, `{"holder":"no name","id":"x"}`, `{"holder":"c","id":"c.1","leaving":true,"freed":[-1,4,1000000]}`} {
		require.NoError(t, nc.Publish(schema.ReplicaSubject("default"), []byte(body)))
	}
	require.NoError(t, nc.Publish(schema.ReplicaSubject("default"), []byte(`{"holder":"c","id":"c.1"}`)))
	require.Eventually(t, func() bool { return a.Replicas() == 3 }, time.Minute, 10*time.Millisecond, "what comes behind them is read")
	require.Eventually(t, func() bool { return a.Replicas() == 2 }, time.Minute, 10*time.Millisecond, "it was heard once, and is not counted for long")
}
