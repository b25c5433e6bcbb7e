package service_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// insist publishes an event like an executor that waits while the fleet is full, and returns how long that took.
func (x *writer) insist(d schema.Data, turn int32) time.Duration {
	x.World.TB.Helper()
	e, err := x.Run.Event(d, turn, time.Unix(1_700_000_000+int64(x.Run.Last), 0), 0)
	require.NoError(x.World.TB, err)
	require.NoError(x.World.TB, x.Run.Commit(e))
	header, body := e.Encode()
	began := time.Now()
	var waited time.Duration
	require.Eventually(x.World.TB, func() bool {
		msg := &nats.Msg{Subject: x.World.Names.EventSubject(x.Run.Run), Header: header, Data: body}
		ack, err := x.World.JS.PublishMsg(x.World.TB.Context(), msg, jetstream.WithMsgID(e.ID), jetstream.WithExpectLastSequencePerSubject(x.Last))
		if err == nil {
			x.Last = ack.Sequence
			x.Acked = append(x.Acked, schema.NewRecord(schema.StreamSequence(ack.Sequence), header, body))
			return true
		}
		var api *jetstream.APIError
		require.True(x.World.TB, errors.As(err, &api) && strings.Contains(api.Description, "maximum bytes exceeded"), "%v", err)
		waited = time.Since(began)
		return false
	}, time.Minute, 5*time.Millisecond, "the fleet stays full")
	return waited
}

func TestQuota_DaemonPurges_FleetTakesManyTimesIt(t *testing.T) {
	if testing.Short() {
		t.Skip("short: 60 MB go through a quota of 16 MiB")
	}
	t.Parallel()
	const quota, runs, turns, payload = kvstore.MinQuotaBytes, 100, 6, 100_000
	w := newServiceWorld(t, func(f *kvstore.FleetConfig, _ *service.Config) { f.QuotaBytes = quota })
	// The age for a purge is never reached, and the tails alone exceed the quota. Their segments are a tenth of that.
	f, _ := w.Fold(fold.Config{PurgeAfter: time.Hour, Synced: true, SweepEvery: 20 * time.Millisecond, Silence: time.Minute})
	writers := make([]*writer, runs)
	for i := range writers {
		writers[i] = w.writer(fmt.Sprintf("run-%d", i))
		writers[i].Start()
	}
	var longest time.Duration
	bytes, full := 0, 0
	for turn := range int32(turns) {
		for _, x := range writers {
			x.Turn++
			id := fmt.Sprintf("call-%d", turn)
			for _, d := range []schema.Data{
				&schema.TurnStartedData{Turn: x.Turn},
				&schema.ToolCalledData{ToolCallID: id, Name: "read", Replay: schema.ReplayPure},
				&schema.ToolReturnedData{ToolCallID: id, Result: jsontext.Value(`"` + strings.Repeat(strings.Trim(string(foldtest.Noise(payload/10, int64(turn)*runs)), `"`), 10) + `"`)},
				&schema.TurnEndedData{Turn: x.Turn},
			} {
				waited := x.insist(d, x.Turn)
				if waited > 0 {
					full++
				}
				longest = max(longest, waited)
			}
			bytes += payload
		}
		if turn%2 == 1 {
			// Reads and takeovers work during that time.
			reply, _ := w.get("run-3", schema.ViewEvents)
			require.True(t, reply.Complete)
			require.Equal(t, writers[3].Model(), reply.Head)
			taken := w.writer(fmt.Sprintf("taken-%d", turn))
			taken.insist(&schema.RunStartedData{Agent: "agent-1", Executor: "executor-1"}, 0)
			_, _ = w.recover(taken.Run.Run, takeover("executor-2", fmt.Sprintf("request-%d", turn)))
		}
	}
	t.Logf("%d bytes through a quota of %d, full %d times, at most %s; purged %d bytes, relieved %d times", bytes, quota, full, longest,
		f.Stats().Purge.Bytes.Load(), f.Stats().Purge.Relieved.Load())
	require.Greater(t, bytes, 3*quota)
	for _, x := range writers {
		reply, a := w.get(x.Run.Run, schema.ViewEvents)
		require.True(t, reply.Complete)
		require.Equal(t, x.Model(), reply.Head)
		require.Equal(t, x.Model(), a.fold(t, x.Run.Run).Head)
	}
	require.Zero(t, f.Stats().Purge.ProofsFailed.Load())
	require.Zero(t, f.Stats().Regressions.Load())
	require.Zero(t, f.Stats().DeadLetters.Load())
}

// A server that may lose acknowledged data could lose a segment in a power cut and not the purge: the purger waits
// for two sync intervals, full or not.
func TestQuota_FullLogUnsyncedServer_WaitsTwoIntervals(t *testing.T) {
	t.Parallel()
	const quota = kvstore.MinQuotaBytes
	w := newServiceWorld(t, func(f *kvstore.FleetConfig, _ *service.Config) { f.QuotaBytes = quota })
	f, _ := w.Fold(fold.Config{SweepEvery: 20 * time.Millisecond, Silence: time.Minute})
	x := w.writer("run-1")
	x.Start()
	for range 32 {
		x.TurnOf(400_000)
	}
	require.Eventually(t, func() bool { return f.Stats().Purge.Relieved.Load() > 2 }, time.Minute, time.Millisecond, "it is full, and looked after")
	require.Zero(t, f.Stats().Purge.Events.Load())
	require.Len(t, w.Log("run-1"), len(x.Acked))
}
