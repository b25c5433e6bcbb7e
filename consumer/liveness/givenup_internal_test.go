package liveness

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/schema"
)

func TestHeartbeat_AbandonedRun_Orphaned(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	given, kept := w.begin("run-1", "executor-1", "i1"), w.begin("run-2", "executor-1", "i1")
	w.pass(11, func() {
		w.hb.beat("executor-1", "i1", beat, false)
		require.NoError(t, w.hb.giveUp("executor-1", "i1", []schema.GivenUp{{Run: "run-1", Epoch: 2}, {Run: "run-2", Epoch: 7}}))
	})
	given.stays(schema.StatusRunning) // it speaks of another epoch
	w.hb.beat("executor-1", "i1", beat, false)
	require.NoError(t, w.hb.giveUp("executor-1", "i1", []schema.GivenUp{{Run: "run-1", Epoch: 1}}))
	w.pass(1, nil)
	given.Becomes(schema.StatusOrphaned)
	require.Equal(t, schema.StatusRunning, kept.Checkpoint().Status)
	require.Equal(t, int64(1), w.deps.Stats.Orphaned.Load())
}

func TestHeartbeat_TooManyAbandonedRuns_Refused(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	b := schema.Heartbeat{Executor: "executor-1", GivenUp: make([]schema.GivenUp, schema.MaxGivenUp+1)}
	for i := range b.GivenUp { // the longest id and epoch: the limit of bytes leaves room for as many
		b.GivenUp[i] = schema.GivenUp{Run: fmt.Sprintf("%064d", i), Epoch: math.MaxUint32}
	}
	require.Error(t, w.hb.executor(heartbeatMsg(t, &b)))
	b.GivenUp = b.GivenUp[1:]
	require.NoError(t, w.hb.executor(heartbeatMsg(t, &b)))
}

// One executor's key can name any number of instances: all their lists together are bounded. A list without room must
// not end the life of its executor.
func TestHeartbeats_GivenUpRunsOfAllInstances_AreBounded(t *testing.T) {
	t.Parallel()
	now := fleettest.Noon
	hb := NewHeartbeats("default", nil, func() time.Time { return now }, zerolog.Nop())
	give := func(executor, instance string, runs int) *instanceLife {
		b := schema.Heartbeat{Executor: executor, Instance: instance, GivenUp: make([]schema.GivenUp, runs)}
		for i := range b.GivenUp {
			b.GivenUp[i] = schema.GivenUp{Run: fmt.Sprintf("run-%d", i), Epoch: 1}
		}
		hb.take(heartbeatMsg(t, &b))
		l, _ := hb.last(executor, instance, time.Second)
		return &l
	}
	honest := give("honest", "i1", 1)
	instances := maxGivenUp / schema.MaxGivenUp
	for i := range instances - 1 {
		give("flood", fmt.Sprintf("i%d", i), schema.MaxGivenUp)
	}
	give("flood", "last", schema.MaxGivenUp-1)
	require.Zero(t, hb.Stats().Refused.Load())

	now = now.Add(time.Second)
	more := give("honest", "i1", 2)
	require.EqualValues(t, 1, hb.Stats().Refused.Load())
	require.Equal(t, now, more.seen, "it is a sign of life")
	require.Equal(t, honest.abandoned, more.abandoned, "the runs that it abandoned before stay abandoned")
	err := hb.giveUp("honest", "i1", make([]schema.GivenUp, 2))
	require.ErrorIs(t, err, errHeartbeat)
	require.ErrorContains(t, err, "executor honest abandons 2 runs")

	give("flood", "i0", 0)
	require.Len(t, give("honest", "i1", 2).abandoned, 2, "there is room again")
	give("flood", "i0", schema.MaxGivenUp-1)
	require.EqualValues(t, 1, hb.Stats().Refused.Load())
	now = now.Add(surelyGone)
	require.Len(t, give("honest", "i1", schema.MaxGivenUp).abandoned, schema.MaxGivenUp, "instances that are gone take no room")
	require.Equal(t, schema.MaxGivenUp, hb.abandoned)
}

func heartbeatMsg(t *testing.T, b *schema.Heartbeat) *nats.Msg {
	t.Helper()
	body, err := json.Marshal(b)
	require.NoError(t, err)
	return &nats.Msg{Subject: schema.HeartbeatSubject("default", b.Executor), Data: body}
}
