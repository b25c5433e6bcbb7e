//go:build unix

package nemesis_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// checkpointBucket is the bucket of a run's checkpoints in a new fleet of the embedded server.
func checkpointBucket(run string) string {
	return schema.NamesOf("default", schema.ShardOf(run, kvstore.LoneShards)).CheckpointBucket()
}

func TestCheckpointBucket_Deleted_RebuiltRecoveriesExact(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	w := newLone(t)
	js := w.jetStream(t)
	fleet := w.fleet(t, "player")
	reader := w.fleet(t, "reader")
	done := make(chan error, 1)
	var acks atomic.Int64
	// One run that continues until it is told to stop.
	run, err := fleet.Start(t.Context(), publisher.RunSpec{ID: "busy", Agent: "a"})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		text := text("user", strings.Repeat("work ", 100))
		for ctx.Err() == nil {
			if err := run.AddMessage(context.WithoutCancel(ctx), text); err != nil {
				done <- err
				return
			}
			acks.Add(1)
		}
		done <- nil
	}()

	const deletions, reads = 3, 15
	for range deletions {
		requireCheckpoint(t, js, "busy", "before the deletion")
		require.NoError(t, js.DeleteKeyValue(t.Context(), checkpointBucket("busy")))
		for range reads {
			acknowledged := acks.Load()
			state, err := reader.Get(t.Context(), "busy")
			require.NoError(t, err)
			require.GreaterOrEqual(t, int64(len(state.Messages)), acknowledged, "what was acknowledged before the request is in the answer")
		}
		requireCheckpoint(t, js, "busy", "the bucket comes back")
	}
	stop()
	require.NoError(t, <-done)
	acknowledged := acks.Load()
	require.Greater(t, acknowledged, int64(100))
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{}))
	taken, err := reader.Resume(t.Context(), "busy", publisher.ResumeSpec{Reason: "reopen"})
	require.NoError(t, err)
	require.Len(t, taken.State().Messages, int(acknowledged))
	require.Zero(t, w.deadLetters(t))
	t.Logf("%d deletions under %d acknowledged boundaries", deletions, acknowledged)
}

// requireCheckpoint waits until the bucket is there and has a checkpoint of the run.
func requireCheckpoint(t *testing.T, js jetstream.JetStream, run, why string) {
	t.Helper()
	require.Eventually(t, func() bool {
		bucket, err := js.KeyValue(t.Context(), checkpointBucket(run))
		if err != nil {
			return false
		}
		_, err = bucket.Get(t.Context(), run)
		return err == nil
	}, patience, 10*time.Millisecond, why)
}

func TestFullFleet_Publish_ClearErrorNoLoss(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	w := newLone(t, "--shards", "1", "--quota", "16MiB", "--purge-after", "never")
	fleet := w.fleet(t, "player")
	acknowledged := make(map[string]int)
	runs := make(map[string]*publisher.Run)
	var full *publisher.FullError
	for i := 0; full == nil; i++ {
		require.Less(t, i, 10_000, "the fleet is never full")
		id := fmt.Sprintf("run-%d", i)
		run, err := fleet.Start(t.Context(), publisher.RunSpec{ID: id, Agent: "a"})
		if errors.As(err, &full) {
			break
		}
		require.NoError(t, err)
		runs[id] = run
		for range 2 {
			err := run.AddMessage(t.Context(), text("user", strings.Repeat("x", 100_000)))
			if errors.As(err, &full) {
				break
			}
			require.NoError(t, err)
			acknowledged[id]++
		}
	}
	t.Logf("full after %d runs: %v", len(runs), full)
	require.ErrorIs(t, full, publisher.ErrFleetFull)
	require.Equal(t, "default", full.Fleet)

	// Reads and takeovers work on a full fleet, and the acknowledged events are there.
	other := w.fleet(t, "other")
	for id := range runs {
		state, err := other.Get(t.Context(), id)
		require.NoError(t, err, id)
		require.Len(t, state.Messages, acknowledged[id], id)
	}
	taken, err := other.Resume(t.Context(), "run-0", publisher.ResumeSpec{})
	require.NoError(t, err)
	require.Len(t, taken.State().Messages, acknowledged["run-0"])
}
