package publisher_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// patient waits in a full fleet for as long as it takes.
func patient(c *publisher.Config) { c.FullPatience = time.Hour }

// fill publishes a run until the fleet is full.
func (w *world) fill(id string) {
	w.tb.Helper()
	run := start(w.tb, w.fleet(), id)
	for _, size := range []int{100 << 10, 1 << 10, 1} {
		var err error
		for n := 0; err == nil; n++ {
			require.Less(w.tb, n, 1000)
			err = run.AddMessage(w.tb.Context(), user(strings.Repeat("x", size)))
		}
		require.ErrorIs(w.tb, err, publisher.ErrFleetFull)
	}
}

// tries returns what was sent to a run, stored or not.
func (w *world) tries(run string) func() {
	w.tb.Helper()
	sub, err := w.nc.SubscribeSync(w.names.EventSubject(run))
	require.NoError(w.tb, err)
	require.NoError(w.tb, w.nc.Flush())
	return func() {
		w.tb.Helper()
		_, err := sub.NextMsg(time.Minute)
		require.NoError(w.tb, err)
	}
}

// relieve takes all but the last event of a run out of the log, as the daemon does.
func (w *world) relieve(run string) {
	w.tb.Helper()
	s, err := w.js.Stream(w.tb.Context(), w.names.EventStream())
	require.NoError(w.tb, err)
	require.NoError(w.tb, s.Purge(w.tb.Context(), jetstream.WithPurgeSubject(w.names.EventSubject(run)), jetstream.WithPurgeKeep(1)))
}

func TestPublish_FullFleet_WaitsForRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// Its deadline does not count meanwhile.
	run := start(t, w.fleet(patient, func(c *publisher.Config) { c.PublishTimeout, c.TryTimeout = time.Minute, time.Minute }), "r1")
	w.limit(1 << 20)
	w.fill("other")
	tried := w.tries("r1")
	done := make(chan error, 1)
	go func() {
		for range 5 {
			if err := run.AddMessage(t.Context(), user(strings.Repeat("y", 1<<10))); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for range 3 {
		tried()
	}
	require.Empty(t, w.log("r1")[1:], "nothing is stored")
	w.relieve("other")
	require.NoError(t, <-done)
	require.Len(t, w.log("r1"), 6)
	w.requireSameFold(run)
}

func TestPublish_WaitInFullFleetCancelled_Returns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet(patient)
	run := start(t, f, "r1")
	w.limit(1 << 20)
	w.fill("other")
	tried := w.tries("r1")
	waiting := func(ctx context.Context) chan error {
		done := make(chan error, 1)
		go func() { done <- run.AddMessage(ctx, user(strings.Repeat("y", 1<<10))) }()
		tried()
		tried()
		return done
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := waiting(ctx)
	cancel()
	err := <-done
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, publisher.ErrFleetFull)
	require.NotErrorIs(t, err, publisher.ErrUnresolved, "it is known not to be stored")
	require.NoError(t, run.Err(), "the handle goes on")

	done = waiting(t.Context())
	require.NoError(t, f.Close(t.Context()))
	err = <-done
	require.ErrorIs(t, err, publisher.ErrStopped)
	require.ErrorIs(t, err, publisher.ErrFleetFull)
	require.Len(t, w.log("r1"), 1)
}

// The caller gives up while a try is under way, or between that and the next: what is known of the fleet is in the error either way.
func TestPublish_CallerEndsBetweenTries_ErrorSaysFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(patient, func(c *publisher.Config) {
		c.PublishTimeout, c.TryTimeout = patience, patience
	}), "r1")
	w.limit(1 << 20)
	w.fill("other")
	for range 32 {
		tried := w.tries("r1")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- run.AddMessage(ctx, user(strings.Repeat("y", 1<<10))) }()
		tried()
		cancel()
		err := <-done
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, publisher.ErrFleetFull)
		require.NotErrorIs(t, err, publisher.ErrUnresolved)
	}
}

func TestPublish_FullPatienceOver_Error(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(func(c *publisher.Config) { c.FullPatience = 50 * time.Millisecond }), "r1")
	w.limit(1 << 20)
	w.fill("other")
	err := run.AddMessage(t.Context(), user(strings.Repeat("y", 1<<10)))
	var full *publisher.FullError
	require.ErrorAs(t, err, &full)
	require.GreaterOrEqual(t, full.Waited, 50*time.Millisecond)
	require.EqualValues(t, 1<<20, full.Quota)
	require.Positive(t, full.Used)
	require.ErrorContains(t, err, "found no space")
	w.relieve("other")
	require.NoError(t, run.AddMessage(t.Context(), user("z")))
	require.Equal(t, schema.StatusRunning, w.requireSameFold(run).Head.Status)
}

// Large fields wait for room in the blob store like events for room in the log.
func TestPublish_FullBlobStore_WaitsForRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(patient), "r1")
	hasty := start(t, w.fleet(func(c *publisher.Config) { c.FullPatience = 50 * time.Millisecond }), "r2")
	name := "OBJ_" + schema.BlobBucket(w.fleet().Name())
	s, err := w.js.Stream(t.Context(), name)
	require.NoError(t, err)
	cfg := s.CachedInfo().Config
	cfg.MaxBytes = 4 << 20
	_, err = w.js.UpdateStream(t.Context(), cfg)
	require.NoError(t, err)
	junk := strings.TrimSuffix(cfg.Subjects[0], ">") + "junk"
	for err == nil {
		_, err = w.js.Publish(t.Context(), junk, make([]byte, 500<<10))
	}
	require.ErrorContains(t, err, "maximum bytes exceeded")
	large := func(c string) schema.Message { return user(strings.Repeat(c, 1<<20)) }
	var full *publisher.FullError
	require.ErrorAs(t, hasty.AddMessage(t.Context(), large("x")), &full)
	require.Equal(t, name, full.Stream)
	require.NoError(t, hasty.Err(), "the handle goes on")

	asked, err := w.nc.SubscribeSync("$JS.API.STREAM.INFO." + name)
	require.NoError(t, err)
	require.NoError(t, w.nc.Flush())
	done := make(chan error, 1)
	go func() { done <- run.AddMessage(t.Context(), large("y")) }()
	for range 3 {
		_, err := asked.NextMsg(time.Minute)
		require.NoError(t, err)
	}
	require.NoError(t, s.Purge(t.Context(), jetstream.WithPurgeSubject(junk)))
	require.NoError(t, <-done)
	require.NoError(t, hasty.AddMessage(t.Context(), large("x")))
	w.requireSameFold(run)
}
