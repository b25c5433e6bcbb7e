//go:build unix

package nemesis_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// sharded is a server with several replicas of the daemon on a fleet of several shards, and executors that publish all the
// time.
type sharded struct {
	tb       testing.TB
	server   *natstest.Server
	js       jetstream.JetStream
	shards   int
	replicas map[string]*process
	began    map[string]int
	// acked counts the events of each run that were acknowledged.
	mu    sync.Mutex
	acked map[string]int64
	stop  atomic.Bool
	work  sync.WaitGroup
	puts  checkpointPuts
}

func newSharded(tb testing.TB, shards int, replicas ...string) *sharded {
	tb.Helper()
	s := &sharded{tb: tb, server: natstest.Start(tb), shards: shards, replicas: make(map[string]*process), began: make(map[string]int), acked: make(map[string]int64)}
	s.js = s.server.JetStream(tb)
	s.puts.watch(tb, s.server.Conn(tb))
	for _, name := range replicas {
		s.serve(name)
	}
	return s
}

// serve starts a replica and waits until it is ready.
func (s *sharded) serve(name string) {
	s.tb.Helper()
	s.began[name]++
	named := fmt.Sprintf("%s-%d", name, s.began[name])
	s.replicas[name] = launch(s.tb, name, func() *exec.Cmd {
		cmd := exec.CommandContext(context.Background(), waymarkBinary, "demo-child", "--json", "serve", "--context", s.context(), "--http", "off",
			"--quota", "64MiB", "--shards", fmt.Sprint(s.shards), "--name", named, "--log-format", "json")
		cmd.Env = testbin.Environment("WAYMARK_STATE_DIR=" + s.tb.TempDir())
		return cmd
	})
	require.NoError(s.tb, s.replicas[name].ready(nil))
}

func (s *sharded) context() string { return filepath.Join(s.server.StateDir(), "nats", "waymark.json") }

// holders are the replicas that fold each shard; "" for none.
func (s *sharded) holders() []string {
	list := make([]string, s.shards)
	for i := range list {
		var err error
		list[i], err = kvstore.Holder(s.tb.Context(), s.js, kvstore.FoldLease(schema.NamesOf("default", i)))
		require.NoError(s.tb, err)
	}
	return list
}

// shared reports whether the shards are folded by the replicas named and by no other, as evenly as they can be.
func (s *sharded) shared(replicas ...string) bool {
	n := make(map[string]int)
	for _, h := range s.holders() {
		n[h]++
	}
	total := 0
	for _, r := range replicas {
		mine := n[fmt.Sprintf("%s-%d", r, s.began[r])]
		if mine < s.shards/len(replicas) || mine > (s.shards+len(replicas)-1)/len(replicas) {
			return false
		}
		total += mine
	}
	return total == s.shards
}

func (s *sharded) awaitShared(what string, replicas ...string) {
	s.tb.Helper()
	began := time.Now()
	if !s.eventually(func() bool { return s.shared(replicas...) }) {
		require.Fail(s.tb, "the shards are not shared", "%s: %v, want %v", what, s.holders(), replicas)
	}
	s.tb.Logf("%s: after %s the shards are folded by %v", what, time.Since(began).Round(10*time.Millisecond), s.holders())
}

func (s *sharded) eventually(is func() bool) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		if is() {
			return true
		}
	}
	return false
}

// connect is an executor of its own in this process.
func (s *sharded) connect(name string) *publisher.Fleet {
	s.tb.Helper()
	nc := s.server.Conn(s.tb, nats.ReconnectBufSize(-1))
	fleet, err := publisher.Connect(s.tb.Context(), publisher.Config{Conn: nc, Executor: name, Agent: "coder", PublishTimeout: patience})
	require.NoError(s.tb, err)
	s.tb.Cleanup(func() { require.NoError(s.tb, fleet.Close(context.Background())) })
	return fleet
}

// drive starts runs and makes each publish turns until it is told to stop; then it ends.
func (s *sharded) drive(f *publisher.Fleet, prefix string, runs int) {
	for i := range runs {
		s.work.Go(func() {
			id := fmt.Sprintf("%s-%d", prefix, i)
			if err := s.driveOne(f, id); err != nil {
				s.tb.Errorf("run %s: %v", id, err)
			}
		})
	}
}

func (s *sharded) driveOne(f *publisher.Fleet, id string) error {
	ctx := context.Background()
	run, err := f.Start(ctx, publisher.RunSpec{ID: id})
	if err != nil {
		return err
	}
	n := int64(1)
	pace := time.NewTicker(30 * time.Millisecond)
	defer pace.Stop()
	for !s.stop.Load() {
		turn, err := run.StartTurn(ctx, publisher.TurnSpec{Messages: []schema.Message{text("user", "go on")}})
		if err != nil {
			return err
		}
		if _, err := turn.Answer(ctx, publisher.Answer{Message: text("assistant", "done")}); err != nil {
			return err
		}
		n += 2
		<-pace.C
	}
	if err := run.End(ctx, publisher.RunEnd{}); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acked[id] = n + 1
	return nil
}

// prove ends the runs, and looks at everything: each event once, each run in one shard, every shard folded to its end.
func (s *sharded) prove(f *publisher.Fleet, runs int) {
	s.tb.Helper()
	s.stop.Store(true)
	s.work.Wait()
	require.Len(s.tb, s.acked, runs)
	stored := make([]*kvstore.Shard, s.shards)
	settings, _, err := kvstore.NewFleets(s.js).Get(s.tb.Context(), "default")
	require.NoError(s.tb, err)
	require.Equal(s.tb, s.shards, settings.Shards)
	for i := range stored {
		stored[i], err = kvstore.OpenShard(s.js, settings, i, "tester")
		require.NoError(s.tb, err)
	}
	total := int64(0)
	for id, n := range s.acked {
		total += n
		state, err := f.Get(s.tb.Context(), id)
		require.NoError(s.tb, err, id)
		require.EqualValues(s.tb, n, state.Head.Sequence, id)
		require.Equal(s.tb, n, state.Head.Counts.Events, id)
		require.Zero(s.tb, state.Head.Counts.Duplicates+state.Head.Counts.DeadLetters, id)
		require.Equal(s.tb, schema.StatusCompleted, state.Head.Status, id)
		var places []int
		for i := range stored {
			_, found, err := eventlog.Last(s.tb.Context(), s.js, schema.NamesOf("default", i), id)
			require.NoError(s.tb, err)
			if found {
				places = append(places, i)
			}
		}
		require.Equal(s.tb, []int{schema.ShardOf(id, s.shards)}, places, "run %s is in its shard alone", id)
		var last *schema.Checkpoint
		require.True(s.tb, s.eventually(func() bool {
			c, _, err := stored[places[0]].Checkpoints.GetFresh(s.tb.Context(), id)
			if errors.Is(err, kvstore.ErrNotFound) {
				return false
			}
			require.NoError(s.tb, err)
			last = c
			return c.Digest == state.Head.Digest
		}), "run %s is not folded to its end: %v", id, last)
		require.Equal(s.tb, n, last.Counts.Events, "run %s", id)
	}
	dead, err := s.js.Stream(s.tb.Context(), schema.DeadLetterStream("default"))
	require.NoError(s.tb, err)
	require.Zero(s.tb, dead.CachedInfo().State.Msgs)
	s.puts.prove(s.tb, s.acked)
	s.tb.Logf("%d events of %d runs, none lost, none twice", total, runs)
}
