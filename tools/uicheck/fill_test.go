package uicheck

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// batchEvents bounds one atomic batch; the server allows 1,000 messages, and a run has up to five.
const batchEvents = 995

// fill publishes many runs of one turn, of which one in a hundred does not end, in atomic batches: executors would take
// minutes.
func (s *scene) fill(runs int) {
	s.Helper()
	settings, _, err := kvstore.NewFleets(s.js).Get(s.Context(), schema.DefaultFleet)
	require.NoError(s, err)
	began := time.Now().Add(-time.Duration(runs) * time.Second)
	batches := make(map[int][]*nats.Msg)
	for n := range runs {
		events := generated(s, n, began.Add(time.Duration(n)*time.Second))
		shard := schema.ShardOf(events[0].Subject, settings.Shards)
		names := schema.NamesOf(schema.DefaultFleet, shard)
		for _, e := range events {
			header, body := e.Encode()
			header[jetstream.MsgIDHeader] = []string{e.ID}
			batches[shard] = append(batches[shard], &nats.Msg{Subject: names.EventSubject(e.Subject), Header: header, Data: body})
		}
		if len(batches[shard]) > batchEvents-len(events) {
			s.publish(batches[shard])
			batches[shard] = nil
		}
	}
	for _, batch := range batches {
		s.publish(batch)
	}
}

// generated are the events of the run of a number.
func generated(s *scene, n int, at time.Time) (events []*schema.Event) {
	s.Helper()
	out := schema.Writer{Fleet: schema.DefaultFleet, Run: fmt.Sprintf("gen-%08d", n), Executor: "generator", Epoch: 1}
	data := []schema.Data{
		&schema.RunStartedData{Agent: fmt.Sprintf("agent-%d", n%20), Executor: "generator", Labels: map[string]string{"team": fmt.Sprintf("team-%d", n%50)}},
		&schema.TurnAnsweredData{
			Turn: 1, Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text(strings.Repeat("river stone ", 12)), schema.CallPart("c", "look")}},
			Calls: []schema.RequestedCall{{ToolCallID: "c", Name: "look", Arguments: []byte(`{}`), Replay: schema.ReplayPure}},
		},
		&schema.ToolReturnedData{ToolCallID: "c", Result: []byte(`"` + strings.Repeat("harbour lantern ", 16) + `"`)},
	}
	switch {
	case n%100 == 50:
	case n%20 == 3:
		data = append(data, &schema.RunEndedData{Status: "failed", Error: &schema.Error{Type: "internal", Message: "it broke"}})
	default:
		data = append(data, &schema.RunEndedData{Status: "completed"})
	}
	for i, d := range data {
		turn := int32(0)
		if i == 1 || i == 2 {
			turn = 1
		}
		e, err := out.Event(d, turn, at.Add(time.Duration(i)*10*time.Millisecond), 0)
		require.NoError(s, err)
		require.NoError(s, out.Commit(e))
		events = append(events, e)
	}
	return events
}

// publish stores a batch atomically.
func (s *scene) publish(batch []*nats.Msg) {
	s.Helper()
	if len(batch) == 0 {
		return
	}
	id, last := rand.Text(), len(batch)-1
	for i, msg := range batch {
		msg.Header[jsapi.HeaderBatch] = []string{id}
		msg.Header[jsapi.HeaderBatchSequence] = []string{strconv.Itoa(i + 1)}
		if i < last {
			require.NoError(s, s.js.Conn().PublishMsg(msg))
		}
	}
	batch[last].Header[jsapi.HeaderBatchCommit] = []string{"1"}
	_, err := s.js.PublishMsg(s.Context(), batch[last], jetstream.WithRetryAttempts(0))
	require.NoError(s, err)
}

// folded waits until the daemon has folded all published events.
func (s *scene) folded() {
	s.Helper()
	settings, _, err := kvstore.NewFleets(s.js).Get(s.Context(), schema.DefaultFleet)
	require.NoError(s, err)
	require.Eventually(s, func() bool {
		for i := range settings.Shards {
			shard, err := kvstore.OpenShard(s.js, settings, i, "generator")
			require.NoError(s, err)
			usage, err := shard.Usage(s.Context())
			if err != nil {
				return false // a busy server may miss an answer
			}
			mark, _, err := shard.Checkpoints.Watermark(s.Context())
			if err != nil && !errors.Is(err, kvstore.ErrNotFound) || usage.Last > mark.Position.Stream+1 { // a barrier is not folded
				return false
			}
		}
		return true
	}, 10*time.Minute, 200*time.Millisecond)
}
