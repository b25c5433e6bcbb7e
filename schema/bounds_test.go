package schema_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// ordinaryRun plays a run of so many turns, two calls each, and passes every record to yield.
func ordinaryRun(tb testing.TB, turns int, yield func(*schema.Record)) {
	tb.Helper()
	w := schema.Writer{Fleet: "default", Run: "run-01hq3v8j5k", Executor: "builder-7f9c", Epoch: 1}
	n := schema.StreamSequence(0)
	at := newTestRun(tb).now()
	write := func(d schema.Data, turn int32) {
		e, err := w.Event(d, turn, at, 0)
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
			Turn: turn, Usage: &schema.Usage{InputTokens: 900, OutputTokens: 80},
			Messages: []schema.Message{{Role: schema.RoleTool, Parts: []schema.Part{responsePart("toolu_01A"), responsePart("toolu_01B")}}},
		}, turn)
		if turn%500 == 0 {
			write(&schema.PhaseCompletedData{Phase: fmt.Sprintf("phase-%d", turn/500)}, turn)
			write(&schema.CheckpointMarkedData{Name: fmt.Sprintf("after %d turns", turn)}, turn)
		}
	}
}

func TestCheckpoint_OrdinaryRun_StaysSmall(t *testing.T) {
	h, shown := schema.NewHead("default", "run-01hq3v8j5k"), schema.Overview{}
	largest, events := 0, 0
	ordinaryRun(t, 2000, func(rec *schema.Record) {
		v := h.Apply(schema.NoKeys, rec)
		require.Equal(t, schema.Applied, v.Kind)
		shown.Apply(&h, &v)
		events++
		if events%7 == 0 || h.TurnOpen && events%5 == 0 {
			b, err := schema.EncodeCheckpoint(&schema.Checkpoint{
				Overview: shown.Of(&h, 0), Head: h, Incarnation: "2026-03-01T12:00:00.123456789Z", TailBytes: 123456,
				Segments: schema.SegmentIndex{Count: 50, Bytes: 20 << 20, Events: 13000, Last: h.Position, Digest: h.Digest},
			})
			require.NoError(t, err)
			largest = max(largest, len(b))
		}
	})
	require.Equal(t, int64(2000), h.Counts.Turns)
	t.Logf("%d events, largest checkpoint %d bytes", events, largest)
	require.Less(t, largest, 4<<10)
}

func TestCheckpoint_WorstRun_Bounded(t *testing.T) {
	t.Parallel()
	for name, base := range map[string]func(h *schema.Head, text string){
		"no fork": nil,
		"a fork of forged phases": func(h *schema.Head, text string) {
			for range schema.MaxCompletedPhases {
				h.CompletedPhases = append(h.CompletedPhases, text)
			}
		},
		"a fork of forged interrupts": func(h *schema.Head, text string) {
			for range schema.MaxInterrupts {
				h.Interrupts = append(h.Interrupts, schema.OpenInterrupt{
					InterruptID: text, ToolCallID: text, Message: text, Position: schema.Position{ID: text},
				})
			}
		},
		"a fork of forged closed calls": func(h *schema.Head, text string) {
			for range schema.MaxTurnCalls {
				h.TurnCalls = append(h.TurnCalls, text)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireBounded(t, base)
		})
	}
}

// forgedBase is the largest base that a run.started may name, made by forge.
func forgedBase(t *testing.T, letter string, forge func(h *schema.Head, text string)) *schema.Base {
	t.Helper()
	for size := 6 * schema.MaxIdentifier; size > 0; size-- {
		h := schema.NewHead("f", "other")
		h.Digest = strings.Repeat("0", 64)
		forge(&h, strings.Repeat(letter, size))
		b := &schema.Base{BaseRef: schema.BaseRef{Run: "other", Position: schema.Position{ID: "x"}, Records: 1, Digest: h.Digest}, Head: h}
		text, err := schema.MarshalData(&schema.RunStartedData{Agent: "a", Executor: "e", ResumedFrom: "other", Base: b})
		if err == nil && len(text) < 500<<10 {
			t.Logf("%d bytes of base, with texts of %d", len(text), size)
			return b
		}
	}
	return nil
}

func requireBounded(t *testing.T, forge func(h *schema.Head, text string)) {
	t.Helper()
	h, shown := schema.NewHead("f", strings.Repeat("r", schema.MaxName)), schema.Overview{}
	fold := func(rec *schema.Record) schema.Verdict {
		v := h.Apply(schema.NoKeys, rec)
		shown.Apply(&h, &v)
		return v
	}
	w := schema.Writer{Fleet: "f", Run: h.Run, Executor: strings.Repeat("e", schema.MaxName), Epoch: 1}
	at := newTestRun(t).now().Add(123456789)
	n := schema.StreamSequence(1 << 60)
	apply := func(d schema.Data, turn int32) schema.Verdict {
		t.Helper()
		e, err := w.Event(d, turn, at, 0)
		require.NoError(t, err)
		require.NoError(t, w.Commit(e))
		n++
		header, body := e.Encode()
		rec := schema.NewRecord(n, header, body)
		return fold(&rec)
	}
	// Every quote takes two bytes in JSON; a control character in free text takes six.
	id := func(i int) string { return fmt.Sprintf("%04d%s", i, strings.Repeat(`"`, schema.MaxIdentifier-4)) }
	free := strings.Repeat("\x01", 5000)
	labels := map[string]string{}
	for i := range schema.MaxLabels {
		labels[fmt.Sprintf("%02d%s", i, strings.Repeat("\x01", schema.MaxLabelKey-2))] = free[:schema.MaxLabelValue]
	}
	started := &schema.RunStartedData{
		Agent: strings.Repeat("a", schema.MaxName), Executor: w.Executor, Task: free, ThreadID: id(1), Labels: labels, Model: free, ModelTier: free,
		Parent: &schema.Parent{Run: h.Run, ToolCallID: id(1)}, Instance: strings.Repeat("i", schema.MaxName), ResumedFrom: h.Run,
		Handoff: &schema.HandoffSource{Run: h.Run, HandoffID: id(1), OfferHash: strings.Repeat("0", 64)},
	}
	if forge != nil {
		require.Nil(t, forgedBase(t, "\x01", forge), "a base with control characters, which take six bytes each, is allowed")
		started.Base, started.ResumedFrom = forgedBase(t, `"`, forge), "other"
		require.NotNil(t, started.Base)
	}
	require.Equal(t, schema.Applied, apply(started, 0).Kind)
	failure := schema.Error{Type: free, Message: free, Code: free}
	require.Equal(t, schema.Applied, apply(&schema.ErrorRaisedData{Error: failure}, 0).Kind)
	for i := range 70 {
		apply(&schema.RunWaitingData{InterruptID: id(i), Reason: "external_system", Message: free, ToolCallID: id(i), ExpiresAt: schema.FormatTime(at)}, 0)
		e := &schema.Event{ // a mark's position has a plain event's id of the maximal length
			ID: id(i), Source: "urn:x", Type: schema.TypeOf(schema.CheckpointMarked), Data: mustJSON(t, &schema.CheckpointMarkedData{Name: id(i)}),
		}
		header, body := e.Encode()
		n++
		rec := schema.NewRecord(n, header, body)
		fold(&rec)
		e = &schema.Event{ID: "x" + id(i)[1:], Source: "urn:x", Type: "x", Epoch: schema.Epoch(1<<30 + i)}
		header, body = e.Encode()
		n++
		rec = schema.NewRecord(n, header, body)
		require.Equal(t, schema.ReasonEpochAhead, fold(&rec).Reason)
	}
	control := func(d schema.Data) schema.Verdict {
		n++
		epoch := h.Epoch
		if d.EventName() == schema.RunResumed {
			epoch++
		}
		e, err := schema.NewControl("f", "daemon", h.Run, epoch, fmt.Sprint(n), d, at)
		require.NoError(t, err)
		header, body := e.Encode()
		rec := schema.NewRecord(n, header, body)
		return fold(&rec)
	}
	for i := range schema.MaxForks {
		require.Equal(t, schema.Applied, control(&schema.CheckpointMarkedData{Name: fmt.Sprintf("%0*d", schema.MaxName, i), Fork: true, By: free, Claimed: free}).Kind)
	}
	_, err := schema.MarshalData(&schema.CheckpointMarkedData{Name: id(1), Fork: true})
	require.ErrorContains(t, err, "is no valid run id")
	handoffs := 0
	for i := range schema.MaxHandoffs + 3 {
		v := apply(&schema.HandoffOfferedData{HandoffID: id(i), Kind: schema.HandoffContinuation, Reason: "threshold_critical", NextAgent: strings.Repeat("a", schema.MaxName)}, 0)
		if v.Reason == schema.ReasonTooMany {
			continue
		}
		handoffs++
		require.Equal(t, schema.Applied, control(&schema.HandoffAcceptedData{HandoffID: id(i), By: free, ChildRun: h.Run}).Kind)
	}
	require.Equal(t, schema.MaxHandoffs, handoffs)
	apply(&schema.LimitReachedData{Limit: "context"}, 0)
	for i := range 300 {
		apply(&schema.PhaseCompletedData{Phase: id(i)}, 0)
	}
	apply(&schema.PhaseStartedData{Phase: id(999)}, 0)
	// As many open calls as possible, which together use all bytes; then in doubt, held, with late results.
	short := func(i int) string {
		return fmt.Sprintf("%04d%s", i, strings.Repeat(`"`, schema.MaxCallBytes/schema.MaxOpenCalls/2-4))
	}
	for i := range schema.MaxOpenCalls {
		require.Equal(t, schema.Applied, apply(&schema.ToolCalledData{ToolCallID: short(i), Name: short(i)}, 1<<30).Kind)
	}
	require.Equal(t, schema.ReasonTooMany, apply(&schema.ToolCalledData{ToolCallID: "c", Name: "n"}, 1<<30).Reason)
	for i := range schema.MaxOpenCalls {
		require.Equal(t, schema.Applied, apply(&schema.ToolDecidedData{ToolCallID: short(i), Decision: schema.DecisionDeny}, 1<<30).Kind)
	}
	// The texts for people, at their maximal length.
	apply(&schema.MessageAddedData{Message: userMessage(strings.Repeat(`"`, 5000))}, 1<<30)
	apply(&schema.MessageAddedData{Message: assistantMessage(schema.Text(strings.Repeat(`"`, 5000)))}, 1<<30)
	apply(&schema.ErrorRaisedData{Error: failure, Turn: 1 << 30}, 1<<30)
	require.Equal(t, schema.Applied, control(&schema.RunResumedData{
		Executor: w.Executor, Instance: h.Instance, Reason: "claim", RequestID: id(1),
		From: schema.From{Epoch: 1, Sequence: h.Sequence, Digest: h.Digest},
	}).Kind)
	for i := range schema.MaxOpenCalls {
		require.Equal(t, schema.Evidence, apply(&schema.ToolReturnedData{ToolCallID: short(i)}, 1<<30).Kind)
	}
	require.Len(t, h.InDoubt(), schema.MaxOpenCalls)
	for range schema.MaxRequests + 1 {
		n++
		e, err := schema.NewControl("f", "daemon", h.Run, h.Epoch, schema.RequestNonce(schema.RequestName(fmt.Sprint(n))), &schema.CheckpointMarkedData{Name: id(0)}, at)
		require.NoError(t, err)
		header, body := e.Encode()
		rec := schema.NewRecord(n, header, body)
		require.Equal(t, schema.Applied, fold(&rec).Kind)
	}
	require.Equal(t, schema.MaxRequests, h.Requests.Len())
	require.Len(t, h.Gaps, schema.MaxGaps)
	require.Len(t, h.Marks, schema.MaxMarks)
	require.Len(t, h.Forks, schema.MaxForks)
	require.Len(t, h.Interrupts, schema.MaxInterrupts)
	require.Len(t, h.Handoffs, schema.MaxHandoffs)
	require.Len(t, h.CompletedPhases, schema.MaxCompletedPhases)
	require.NotNil(t, shown.Turn.Answer)
	b, err := schema.EncodeCheckpoint(&schema.Checkpoint{
		Overview: shown.Of(&h, 0), Head: h, Incarnation: schema.FormatTime(at), TailBytes: 1 << 62, TailEvents: 1 << 62,
		Segments: schema.SegmentIndex{Count: 1 << 60, Bytes: 1 << 62, Events: 1 << 62, Last: h.Position, Digest: h.Digest},
	})
	require.NoError(t, err)
	t.Logf("%d bytes, %d open calls, %d closed ones of the turn", len(b), len(h.OpenCalls), len(h.TurnCalls))
	require.Greater(t, len(b), schema.MaxCheckpoint*9/10, "this is meant to be the worst")
	require.Less(t, len(b), schema.MaxCheckpoint)
}
