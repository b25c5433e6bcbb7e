package fold_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/schema"
)

// BenchmarkFoldCatchingUp folds an existing log. It also measures how long plain JetStream takes to publish the same
// messages asynchronously to the same server: the ratio is fold speed by publish speed.
func BenchmarkFoldCatchingUp(b *testing.B) {
	const runs, turns = 64, 50
	for b.Loop() {
		w := newWorld(b)
		var msgs []*nats.Msg
		lastOf := make(map[string]int)
		for i := range runs {
			run := fmt.Sprintf("run-%d", i)
			x := schema.Writer{Fleet: "default", Run: run, Executor: "executor-1", Epoch: 1}
			add := func(d schema.Data, turn int32) {
				e, err := x.Event(d, turn, time.Unix(1_700_000_000, 0), 0)
				require.NoError(b, err)
				require.NoError(b, x.Commit(e))
				header, body := e.Encode()
				msgs = append(msgs, &nats.Msg{Subject: w.Names.EventSubject(run), Header: header, Data: body})
			}
			add(&schema.RunStartedData{Agent: "agent-1", Executor: "executor-1"}, 0)
			for t := range int32(turns) {
				id := fmt.Sprintf("call-%d", t)
				add(&schema.TurnStartedData{Turn: t + 1, Messages: []schema.Message{{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(string(foldtest.Noise(250, int64(t))))}}}}, t+1)
				add(&schema.ToolCalledData{ToolCallID: id, Name: "read", Arguments: foldtest.Noise(250, int64(t)), Replay: schema.ReplayPure}, t+1)
				add(&schema.ToolReturnedData{ToolCallID: id, Result: foldtest.Noise(4096, int64(t))}, t+1)
				add(&schema.TurnEndedData{Turn: t + 1, Messages: []schema.Message{{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text(string(foldtest.Noise(2048, int64(t))))}}}}, t+1)
			}
			lastOf[run] = len(msgs)
		}
		began := time.Now()
		var last jetstream.PubAckFuture
		for _, m := range msgs {
			var err error
			last, err = w.JS.PublishMsgAsync(m, jetstream.WithStallWait(time.Minute)) // a busy disk is slow, not faulty
			require.NoError(b, err)
		}
		<-w.JS.PublishAsyncComplete()
		ack := <-last.Ok()
		raw := time.Since(began)
		began = time.Now()
		f, stop := w.Fold(fold.Config{})
		require.Eventually(b, func() bool { return f.Stats().Position.Load() >= ack.Sequence }, time.Minute, time.Millisecond)
		fold := time.Since(began)
		stop()
		n := float64(len(msgs))
		b.ReportMetric(n/raw.Seconds(), "raw-publishes/s")
		b.ReportMetric(n/fold.Seconds(), "folded/s")
		b.ReportMetric(raw.Seconds()/fold.Seconds(), "fold/raw")
	}
}
