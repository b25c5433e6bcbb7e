package foldtest

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// Writer publishes the events of one run by compare-and-set, like an executor, and keeps the acknowledged ones.
type Writer struct {
	World *World
	Run   schema.Writer
	Last  uint64
	Acked []schema.Record
	Turn  int32
}

// Stamp adds the server's data to the writer's acknowledged events, as far as the log still has them.
func (x *Writer) Stamp() {
	x.World.TB.Helper()
	at := map[schema.StreamSequence]schema.Record{}
	names := schema.NamesOf(x.Run.Fleet, x.World.Names.Shard)
	require.NoError(x.World.TB, eventlog.Read(x.World.TB.Context(), x.World.JS, names, x.Run.Run, 1, func(rec schema.Record) error {
		at[rec.Stream] = rec
		return nil
	}))
	for i := range x.Acked {
		if rec, there := at[x.Acked[i].Stream]; there {
			x.Acked[i].Stored, x.Acked[i].Behind = rec.Stored, rec.Behind
		}
	}
}

// Writer writes a run of which nothing is in the log yet, as executor-1.
func (w *World) Writer(run string) *Writer {
	return &Writer{World: w, Run: schema.Writer{Fleet: "default", Run: run, Executor: "executor-1", Epoch: 1}}
}

// Publish publishes an event of the executor.
func (x *Writer) Publish(d schema.Data, turn int32) schema.StreamSequence {
	x.World.TB.Helper()
	e, err := x.Run.Event(d, turn, time.Unix(1_700_000_000+int64(x.Run.Last), 0), 0)
	require.NoError(x.World.TB, err)
	require.NoError(x.World.TB, x.Run.Commit(e))
	return x.Send(e)
}

// Send publishes an event after the last one.
func (x *Writer) Send(e *schema.Event) schema.StreamSequence {
	x.World.TB.Helper()
	header, body := e.Encode()
	msg := &nats.Msg{Subject: x.World.Names.EventSubject(x.Run.Run), Header: header, Data: body}
	ack, err := x.World.JS.PublishMsg(x.World.TB.Context(), msg, jetstream.WithMsgID(e.ID),
		jetstream.WithExpectLastSequencePerSubject(x.Last))
	require.NoError(x.World.TB, err)
	x.Last = ack.Sequence
	x.Acked = append(x.Acked, schema.NewRecord(schema.StreamSequence(ack.Sequence), header, body))
	return schema.StreamSequence(ack.Sequence)
}

// Start starts the run.
func (x *Writer) Start() schema.StreamSequence {
	return x.Publish(&schema.RunStartedData{Agent: "agent-1", Executor: "executor-1"}, 0)
}

// TurnOf publishes one turn with one tool call; payload is the size of its result.
func (x *Writer) TurnOf(payload int) schema.StreamSequence {
	x.Turn++
	id := fmt.Sprintf("call-%d", x.Turn)
	x.Publish(&schema.TurnStartedData{Turn: x.Turn, Messages: []schema.Message{{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("go on")}}}}, x.Turn)
	x.Publish(&schema.ToolCalledData{ToolCallID: id, Name: "read", Arguments: []byte(`{"path":"a"}`), Replay: schema.ReplayPure}, x.Turn)
	x.Publish(&schema.ToolReturnedData{ToolCallID: id, Result: Noise(payload, int64(x.Turn))}, x.Turn)
	return x.Publish(&schema.TurnEndedData{Turn: x.Turn, Messages: []schema.Message{{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("done")}}}}, x.Turn)
}

// Noise is a JSON string of n characters that does not compress well.
func Noise(n int, seed int64) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], uint64(seed)) //nolint:gosec // a seed
	random := make([]byte, base64.RawURLEncoding.DecodedLen(n)+1)
	_, _ = rand.NewChaCha8(key).Read(random)
	b := append([]byte{'"'}, base64.RawURLEncoding.EncodeToString(random)[:n]...)
	return append(b, '"')
}

// Model folds the acknowledged events, with only the pure fold of the code under test.
func (x *Writer) Model() schema.Head {
	head, _ := x.Shown()
	return head
}

// Shown is the head of the acknowledged events, and its checkpoint's overview.
func (x *Writer) Shown() (schema.Head, schema.Overview) {
	h, o := schema.NewHead("default", x.Run.Run), schema.Overview{}
	for i := range x.Acked {
		v := h.Apply(schema.NoKeys, &x.Acked[i])
		o.Apply(&h, &v)
	}
	return h, o.Of(&h, 0)
}
