package liveness

import (
	"crypto/ed25519"
	"fmt"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// signedBeat is a heartbeat of an instance, sent by its own process.
func signedBeat(t *testing.T, key ed25519.PrivateKey, b schema.Heartbeat) *nats.Msg {
	t.Helper()
	body, err := json.Marshal(&b)
	require.NoError(t, err)
	m := nats.NewMsg(schema.HeartbeatSubject("default", b.Executor))
	m.Data = body
	m.Header.Set(schema.HeaderSignature, schema.SignHeartbeat(key, m.Subject, body))
	return m
}

func newInstance(t *testing.T) (string, ed25519.PrivateKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	instance := schema.InstanceOf(public)
	require.NoError(t, schema.CheckName("instance", instance))
	return instance, private
}

// Executors of a fleet share the credentials of the server: any of them may publish heartbeats in the name of
// another. A forged heartbeat in the name of a dead process must not keep its runs, and one in the name of a live
// process must not take them away.
func TestHeartbeats_OfAnotherProcess_ChangeNothing(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	live, liveKey := newInstance(t)
	dead, deadKey := newInstance(t)
	_, wrongKey := newInstance(t)
	kept, lost := w.begin("run-1", "executor-1", live), w.begin("run-2", "executor-1", dead)
	last := signedBeat(t, deadKey, schema.Heartbeat{Executor: "executor-1", Instance: dead, Beat: 7})
	require.NoError(t, w.hb.executor(last))
	count := uint64(0)
	forged := 0
	w.pass(25, func() {
		count++
		require.NoError(t, w.hb.executor(signedBeat(t, liveKey, schema.Heartbeat{Executor: "executor-1", Instance: live, Beat: count})))
		unsigned := signedBeat(t, wrongKey, schema.Heartbeat{Executor: "executor-1", Instance: dead, Beat: 100 + count})
		unsigned.Header.Del(schema.HeaderSignature)
		other := signedBeat(t, deadKey, schema.Heartbeat{Executor: "executor-2", Instance: dead, Beat: 100 + count})
		other.Subject = schema.HeartbeatSubject("default", "executor-1")
		changed := signedBeat(t, liveKey, schema.Heartbeat{Executor: "executor-1", Instance: live, Beat: 100 + count})
		body, err := json.Marshal(&schema.Heartbeat{Executor: "executor-1", Instance: live, Beat: 100 + count, Leaving: true})
		require.NoError(t, err)
		changed.Data = body
		for _, m := range []*nats.Msg{
			unsigned, other, changed, last, // the last heartbeat of the dead process, again
			signedBeat(t, wrongKey, schema.Heartbeat{Executor: "executor-1", Instance: dead, Beat: 100 + count}),
			signedBeat(t, wrongKey, schema.Heartbeat{Executor: "executor-1", Instance: live, Beat: 100 + count, Leaving: true}),
			signedBeat(t, wrongKey, schema.Heartbeat{
				Executor: "executor-1", Instance: live, Beat: 100 + count, Held: []schema.HeldRun{{Run: "run-1", Epoch: 1}},
			}),
		} {
			require.ErrorIs(t, w.hb.executor(m), errHeartbeat)
			forged++
		}
	})
	require.Equal(t, 7*25, forged)
	lost.Becomes(schema.StatusOrphaned)
	require.Equal(t, schema.StatusRunning, kept.Checkpoint().Status)
	require.Equal(t, int64(1), w.deps.Stats.Orphaned.Load())
}

// A process itself announces that it leaves and which runs it holds, and its signature counts.
func TestHeartbeats_SignedByTheirInstance_Count(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	instance, key := newInstance(t)
	given, left := w.begin("run-1", "executor-1", instance), w.begin("run-2", "executor-1", instance)
	require.NoError(t, w.hb.executor(signedBeat(t, key, schema.Heartbeat{
		Executor: "executor-1", Instance: instance, Beat: 1, Held: []schema.HeldRun{{Run: "run-1", Epoch: 1}, {Run: "run-2", Epoch: 1}},
	})))
	w.pass(1, nil)
	given.stays(schema.StatusRunning)
	require.NoError(t, w.hb.executor(signedBeat(t, key, schema.Heartbeat{
		Executor: "executor-1", Instance: instance, Beat: 2, Held: []schema.HeldRun{{Run: "run-2", Epoch: 1}},
	})))
	w.pass(1, nil)
	given.Becomes(schema.StatusOrphaned)
	require.Equal(t, schema.StatusRunning, left.Checkpoint().Status)
	require.NoError(t, w.hb.executor(signedBeat(t, key, schema.Heartbeat{Executor: "executor-1", Instance: instance, Beat: 3, Leaving: true})))
	w.pass(1, nil)
	left.Becomes(schema.StatusOrphaned)
}

// The table of instances is bounded. A flood of made-up names must not displace a live executor and orphan its runs.
func TestHeartbeats_FloodOfNames_OrphansNoRun(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	w.pass(20, func() { w.hb.beat("executor-1", "i1", beat, false) })
	w.Clock.Forward(time.Millisecond)
	for i := range maxInstances {
		w.hb.beat(fmt.Sprintf("made-up-%d", i), "i1", beat, false)
	}
	_, known := w.hb.last("executor-1", "i1", time.Second)
	require.False(t, known, "it was forgotten")
	w.pass(2, nil)
	r.stays(schema.StatusRunning)
	w.hb.beat("executor-1", "i1", beat, false)
	w.pass(9, nil)
	r.stays(schema.StatusRunning)
}
