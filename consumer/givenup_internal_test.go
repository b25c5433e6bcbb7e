package consumer

import (
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestARunThatItsExecutorGivesUpIsOrphaned(t *testing.T) {
	w := newLifeWorld(t)
	given, kept := w.begin("run-1", "executor-1", "i1"), w.begin("run-2", "executor-1", "i1")
	w.pass(11, func() {
		w.hb.beat("executor-1", "i1", beat, false, schema.GivenUp{Run: "run-1", Epoch: 2}, schema.GivenUp{Run: "run-2", Epoch: 7})
	})
	given.stays(schema.StatusRunning) // it speaks of another epoch
	w.hb.beat("executor-1", "i1", beat, false, schema.GivenUp{Run: "run-1", Epoch: 1})
	w.pass(1, nil)
	given.becomes(schema.StatusOrphaned)
	require.Equal(t, schema.StatusRunning, kept.checkpoint().Status)
	require.Equal(t, int64(1), w.stats.Orphaned.Load())
}

func TestAHeartbeatThatGivesUpTooManyIsRefused(t *testing.T) {
	w := newLifeWorld(t)
	b := schema.Heartbeat{Executor: "executor-1", GivenUp: make([]schema.GivenUp, schema.MaxGivenUp+1)}
	require.Error(t, w.hb.executor(heartbeatMsg(t, &b)))
	b.GivenUp = b.GivenUp[1:]
	require.NoError(t, w.hb.executor(heartbeatMsg(t, &b)))
}

func heartbeatMsg(t *testing.T, b *schema.Heartbeat) *nats.Msg {
	t.Helper()
	body, err := json.Marshal(b)
	require.NoError(t, err)
	return &nats.Msg{Subject: schema.HeartbeatSubject("default", b.Executor), Data: body}
}
