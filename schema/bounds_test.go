package schema_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// ordinaryRun plays a run of so many turns, two calls each, and hands every record to yield.
func ordinaryRun(tb testing.TB, turns int, yield func(*schema.Record)) {
	tb.Helper()
	w := schema.Writer{Fleet: "default", Run: "run-01hq3v8j5k", Executor: "builder-7f9c", Epoch: 1}
	n := schema.StreamSequence(0)
	at := newTestRun(tb).now()
	write := func(d schema.Data, turn int32) {
		e, _, err := w.Event(d, turn, at, w.Chain, 0)
		require.NoError(tb, err)
		require.NoError(tb, w.Commit(e))
		n++
		header, body := e.Encode()
		rec := schema.NewRecord(n, header, body)
		yield(&rec)
	}
	write(&schema.RunStartedData{
		Agent: "coder", Executor: w.Executor, Task: strings.Repeat("mend the parser, ", 20),
		Labels: map[string]string{"team": "blue", "repository": "waymark"}, MaxTurns: 5000,
	}, 0)
	for turn := int32(1); turn <= int32(turns); turn++ { //nolint:gosec // a small count
		write(&schema.TurnStartedData{Turn: turn, Messages: []schema.Message{userMessage("go on")}}, turn)
		write(&schema.MessageAddedData{Message: assistantMessage(
			schema.Text(strings.Repeat("I think about it. ", 30)), schema.CallPart("toolu_01A", "read_file"), schema.CallPart("toolu_01B", "grep"),
		)}, turn)
		for _, id := range []string{"toolu_01A", "toolu_01B"} {
			write(&schema.ToolCalledData{ToolCallID: id, Name: "read_file", Arguments: []byte(`{"path":"schema/apply.go"}`), Replay: schema.ReplayPure}, turn)
		}
		for _, id := range []string{"toolu_01A", "toolu_01B"} {
			write(&schema.ToolReturnedData{ToolCallID: id, Result: []byte(`"` + strings.Repeat("func main ", 100) + `"`), DurationMS: 12}, turn)
		}
		write(&schema.TurnEndedData{
			Turn: turn, FinishReasons: []string{"tool_calls"}, Usage: &schema.Usage{InputTokens: 900, OutputTokens: 80},
			Messages: []schema.Message{{Role: schema.RoleTool, Parts: []schema.Part{schema.ResponsePart("toolu_01A"), schema.ResponsePart("toolu_01B")}}},
		}, turn)
		if turn%500 == 0 {
			write(&schema.PhaseCompletedData{Phase: fmt.Sprintf("phase-%d", turn/500)}, turn)
			write(&schema.CheckpointMarkedData{Name: fmt.Sprintf("after %d turns", turn)}, turn)
		}
	}
}

func TestTheCheckpointOfAnOrdinaryRunStaysSmall(t *testing.T) {
	h := schema.NewHead("default", "run-01hq3v8j5k")
	largest, events := 0, 0
	ordinaryRun(t, 2000, func(rec *schema.Record) {
		v := h.Apply(rec)
		require.Equal(t, schema.Applied, v.Kind)
		events++
		if events%7 == 0 || h.TurnOpen && events%5 == 0 {
			b, err := schema.EncodeCheckpoint(&schema.Checkpoint{
				Head: h, Incarnation: "2026-03-01T12:00:00.123456789Z", TailBytes: 123456,
				Segments: schema.SegmentIndex{Count: 50, Bytes: 20 << 20, Events: 13000, Last: h.Position, Digest: h.Digest, Chain: h.Chain},
			})
			require.NoError(t, err)
			largest = max(largest, len(b))
		}
	})
	require.Equal(t, int64(2000), h.Counts.Turns)
	t.Logf("%d events, largest checkpoint %d bytes", events, largest)
	require.Less(t, largest, 4<<10)
}

func TestTheWorstCheckpointIsBounded(t *testing.T) {
	h := schema.NewHead("f", strings.Repeat("r", schema.MaxName))
	w := schema.Writer{Fleet: "f", Run: h.Run, Executor: strings.Repeat("e", schema.MaxName), Epoch: 1}
	at := newTestRun(t).now()
	n := schema.StreamSequence(1 << 60)
	apply := func(d schema.Data, turn int32) schema.Verdict {
		t.Helper()
		e, _, err := w.Event(d, turn, at, w.Chain, 0)
		require.NoError(t, err)
		require.NoError(t, w.Commit(e))
		n++
		header, body := e.Encode()
		rec := schema.NewRecord(n, header, body)
		return h.Apply(&rec)
	}
	// Every quote takes two bytes in JSON; a control character in free text takes six.
	id := func(i int) string { return fmt.Sprintf("%04d%s", i, strings.Repeat(`"`, schema.MaxIdentifier-4)) }
	free := strings.Repeat("\x01", 5000)
	labels := map[string]string{}
	for i := range schema.MaxLabels {
		labels[fmt.Sprintf("%02d%s", i, strings.Repeat("\x01", schema.MaxLabelKey-2))] = free[:schema.MaxLabelValue]
	}
	require.Equal(t, schema.Applied, apply(&schema.RunStartedData{
		Agent: strings.Repeat("a", schema.MaxName), Executor: w.Executor, Task: free, ThreadID: id(1), Labels: labels,
		Parent: &schema.Parent{Run: h.Run, ToolCallID: id(1)},
	}, 0).Kind)
	failure := schema.Error{Type: free, Message: free, Code: free}
	require.Equal(t, schema.Applied, apply(&schema.ErrorRaisedData{Error: failure}, 0).Kind)
	for i := range 70 {
		apply(&schema.RunWaitingData{InterruptID: id(i), Reason: "external_system", Message: free, ToolCallID: id(i), ExpiresAt: "2026-03-01T12:00:00Z"}, 0)
		e := &schema.Event{ // a mark's position has a plain event's id, as long as they come
			ID: id(i), Source: "urn:x", Type: schema.TypeOf(schema.CheckpointMarked), Data: mustJSON(t, &schema.CheckpointMarkedData{Name: id(i)}),
		}
		header, body := e.Encode()
		n++
		rec := schema.NewRecord(n, header, body)
		h.Apply(&rec)
		e = &schema.Event{ID: "x" + id(i)[1:], Source: "urn:x", Type: "x", Epoch: schema.Epoch(1<<30 + i)}
		header, body = e.Encode()
		n++
		rec = schema.NewRecord(n, header, body)
		require.Equal(t, schema.ReasonEpochAhead, h.Apply(&rec).Reason)
	}
	for i := range 300 {
		apply(&schema.PhaseCompletedData{Phase: id(i)}, 0)
	}
	apply(&schema.PhaseStartedData{Phase: id(999)}, 0)
	refused := 0
	for i := range 1200 {
		d := &schema.ToolCalledData{ToolCallID: id(i), Name: id(i), Replay: schema.ReplayIdempotent}
		if i > 335 { // then many short ones
			d.ToolCallID, d.Name = fmt.Sprintf(`"%d`, i), `"`
		}
		if apply(d, 1<<30).Reason == schema.ReasonTooMany {
			refused++
		}
		if i%2 == 0 {
			apply(&schema.ToolReturnedData{ToolCallID: d.ToolCallID}, 1<<30)
		}
	}
	require.Positive(t, refused)
	require.Len(t, h.Gaps, schema.MaxGaps)
	require.Len(t, h.Marks, schema.MaxMarks)
	require.Len(t, h.Interrupts, schema.MaxInterrupts)
	require.Len(t, h.CompletedPhases, schema.MaxCompletedPhases)
	b, err := schema.EncodeCheckpoint(&schema.Checkpoint{Head: h})
	require.NoError(t, err)
	t.Logf("%d bytes, %d open calls, %d closed ones of the turn", len(b), len(h.OpenCalls), len(h.TurnCalls))
	require.Greater(t, len(b), schema.MaxCheckpoint/2, "this is meant to be near the worst")
	require.Less(t, len(b), schema.MaxCheckpoint)
}
