package fold_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/schema"
)

// turnNotice is an observer's view of a notice.
type turnNotice struct {
	subject string
	header  nats.Header
	body    string
}

// observeTurns subscribes to the notices of turns, and returns a function for the next ones.
func (w *world) observeTurns() func(n int) []turnNotice {
	w.TB.Helper()
	seen := make(chan *nats.Msg, 256)
	for _, name := range []string{schema.TurnCreated, schema.TurnUpdated, schema.TurnFinalized} {
		sub, err := w.NC.ChanSubscribe(schema.ObservedSubject("default", name, "*"), seen)
		require.NoError(w.TB, err)
		w.TB.Cleanup(func() { _ = sub.Unsubscribe() })
	}
	require.NoError(w.TB, w.NC.Flush())
	return func(n int) []turnNotice {
		w.TB.Helper()
		var told []turnNotice
		for range n {
			select {
			case m := <-seen:
				told = append(told, turnNotice{m.Subject, m.Header, string(m.Data)})
			case <-time.After(time.Minute):
				require.FailNow(w.TB, "a notice is missing", "there are %d of %d", len(told), n)
			}
		}
		return told
	}
}

// turnNotices is the number of notices of a turn of foldtest: created, its call, the call's result, and its end.
const turnNotices = 4

func TestTurnNotices_AllFoldedAgainByAnotherWorker_AreTheSameToTheByte(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	next := w.observeTurns()
	_, stop := w.Fold(fold.Config{})
	x := w.Writer("run-1")
	x.Start()
	x.TurnOf(10)
	last := x.TurnOf(10)
	w.Await("both turns", func(c *schema.Checkpoint) bool { return c.Position.Stream >= last })
	first := next(2 * turnNotices)
	stop()
	ids := map[string]bool{}
	for _, told := range first {
		ids[told.header["ce-id"][0]] = true
	}
	require.Len(t, ids, len(first), "each has an id of its own")

	require.NoError(t, w.JS.DeleteKeyValue(t.Context(), w.Names.CheckpointBucket()))
	w.Provision()
	w.Fold(fold.Config{Holder: "worker-2"})
	require.Equal(t, first, next(2*turnNotices))
}

func TestTurnNotices_WorkerChangesWithinATurn_AreCountedOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	next := w.observeTurns()
	_, stop := w.Fold(foldtest.Hasty())
	x := w.Writer("run-1")
	x.Start()
	x.Publish(&schema.TurnStartedData{Turn: 1, Messages: []schema.Message{{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("go on")}}}}, 1)
	last := x.Publish(&schema.ToolCalledData{ToolCallID: "c1", Name: "pay"}, 1)
	w.Await("the call", func(c *schema.Checkpoint) bool { return c.Position.Stream >= last })
	next(2)
	stop()
	config := foldtest.Hasty()
	config.Holder = "worker-2"
	w.Fold(config)
	x.Publish(&schema.ToolReturnedData{ToolCallID: "c1"}, 1)
	last = x.Publish(&schema.TurnEndedData{Turn: 1}, 1)
	told := next(2)
	require.Contains(t, told[0].body, `"changes":3`)
	require.Contains(t, told[1].body, `"changes":4`)
	c := w.Await("the end of the turn", func(c *schema.Checkpoint) bool { return c.Position.Stream >= last })
	_, overview := x.Shown()
	require.Equal(t, overview, c.Overview)
	require.Equal(t, "go on", c.Overview.Turn.Input)
}

// The segments have the purged events: a checkpoint made from them shows people the same.
func TestOverview_CheckpointLostBehindAPurge_IsFoldedAgainFromSegments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, stop := w.Fold(foldtest.Hasty())
	x := w.Writer("run-1")
	x.Publish(&schema.RunStartedData{Agent: "coder", Executor: "executor-1", Model: "m-1", ModelTier: "large"}, 0)
	for range 12 {
		x.TurnOf(900)
	}
	w.AwaitPurged(x)
	stop()
	kv, err := w.JS.KeyValue(t.Context(), w.Names.CheckpointBucket())
	require.NoError(t, err)
	require.NoError(t, kv.Purge(t.Context(), "run-1"))

	w.Fold(foldtest.Hasty())
	last := x.TurnOf(900)
	c := w.Await("a turn behind the loss", func(c *schema.Checkpoint) bool { return c.Position.Stream >= last })
	_, overview := x.Shown()
	require.Equal(t, overview, c.Overview)
	require.Equal(t, "large", c.Overview.ModelTier)
}
