package service_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// insist publishes an event as an executor does that waits while the fleet is full, and says how long that was.
func (x *writer) insist(d schema.Data, turn int32) time.Duration {
	x.w.tb.Helper()
	e, err := x.run.Event(d, turn, time.Unix(1_700_000_000+int64(x.run.Last), 0), 0)
	require.NoError(x.w.tb, err)
	require.NoError(x.w.tb, x.run.Commit(e))
	header, body := e.Encode()
	began := time.Now()
	var waited time.Duration
	require.Eventually(x.w.tb, func() bool {
		msg := &nats.Msg{Subject: x.w.names.EventSubject(x.run.Run), Header: header, Data: body}
		ack, err := x.w.js.PublishMsg(x.w.tb.Context(), msg, jetstream.WithMsgID(e.ID), jetstream.WithExpectLastSequencePerSubject(x.last))
		if err == nil {
			x.last = ack.Sequence
			x.acked = append(x.acked, schema.NewRecord(schema.StreamSequence(ack.Sequence), header, body))
			return true
		}
		var api *jetstream.APIError
		require.True(x.w.tb, errors.As(err, &api) && strings.Contains(api.Description, "maximum bytes exceeded"), "%v", err)
		waited = time.Since(began)
		return false
	}, time.Minute, 5*time.Millisecond, "the fleet stays full")
	return waited
}

func TestAFleetTakesManyTimesItsQuotaWhileItsDaemonPurges(t *testing.T) {
	if testing.Short() {
		t.Skip("short: 60 MB go through a quota of 16 MiB")
	}
	t.Parallel()
	const quota, runs, turns, payload = kvstore.MinQuotaBytes, 100, 6, 100_000
	w := newServiceWorld(t, func(f *kvstore.FleetConfig, _ *service.Config) { f.QuotaBytes = quota })
	// Nobody waits an hour for it, and the tails alone are more than the quota.
	f, _ := w.fold(fold.Config{PurgeAfter: time.Hour, Synced: true, SweepEvery: 20 * time.Millisecond, Silence: time.Minute})
	writers := make([]*writer, runs)
	for i := range writers {
		writers[i] = w.writer(fmt.Sprintf("run-%d", i))
		writers[i].start()
	}
	var longest time.Duration
	bytes, full := 0, 0
	for turn := range int32(turns) {
		for _, x := range writers {
			x.turn++
			id := fmt.Sprintf("call-%d", turn)
			for _, d := range []schema.Data{
				&schema.TurnStartedData{Turn: x.turn},
				&schema.ToolCalledData{ToolCallID: id, Name: "read", Replay: schema.ReplayPure},
				&schema.ToolReturnedData{ToolCallID: id, Result: noise(payload, int64(turn)*runs)},
				&schema.TurnEndedData{Turn: x.turn},
			} {
				waited := x.insist(d, x.turn)
				if waited > 0 {
					full++
				}
				longest = max(longest, waited)
			}
			bytes += payload
		}
		if turn%2 == 1 {
			// Reads and takeovers work all the while.
			reply, _ := w.get("run-3", schema.ViewEvents)
			require.True(t, reply.Complete)
			require.Equal(t, writers[3].model(), reply.Head)
			taken := w.writer(fmt.Sprintf("taken-%d", turn))
			taken.insist(&schema.RunStartedData{Agent: "agent-1", Executor: "executor-1"}, 0)
			_, _ = w.recover(taken.run.Run, takeover("executor-2", fmt.Sprintf("request-%d", turn)))
		}
	}
	t.Logf("%d bytes through a quota of %d, full %d times, at most %s; purged %d bytes, relieved %d times", bytes, quota, full, longest,
		f.Stats().Purge.Bytes.Load(), f.Stats().Purge.Relieved.Load())
	require.Greater(t, bytes, 3*quota)
	for _, x := range writers {
		reply, a := w.get(x.run.Run, schema.ViewEvents)
		require.True(t, reply.Complete)
		require.Equal(t, x.model(), reply.Head)
		require.Equal(t, x.model(), a.fold(t, x.run.Run).Head)
	}
	require.Zero(t, f.Stats().Purge.ProofsFailed.Load())
	require.Zero(t, f.Stats().Regressions.Load())
	require.Zero(t, f.Stats().DeadLetters.Load())
}

// A server that may lose what it has acknowledged could lose a segment in a power cut and not the purge: two sync
// intervals are waited for, full or not.
func TestAFullLogWaitsForTwoSyncIntervalsOfAServerThatDoesNotSync(t *testing.T) {
	t.Parallel()
	const quota = kvstore.MinQuotaBytes
	w := newServiceWorld(t, func(f *kvstore.FleetConfig, _ *service.Config) { f.QuotaBytes = quota })
	f, _ := w.fold(fold.Config{SweepEvery: 20 * time.Millisecond, Silence: time.Minute})
	x := w.writer("run-1")
	x.start()
	for range 32 {
		x.turnOf(400_000)
	}
	require.Eventually(t, func() bool { return f.Stats().Purge.Relieved.Load() > 2 }, time.Minute, time.Millisecond, "it is full, and looked after")
	require.Zero(t, f.Stats().Purge.Events.Load())
	require.Len(t, w.log("run-1"), len(x.acked))
}
