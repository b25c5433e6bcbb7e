package referencefold_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/referencefold"
	"github.com/waymarkio/waymark/schema"
)

// aLog is a short run with a takeover, an open call, something said, something waited for and an offer.
func aLog(t *testing.T) []schema.Record {
	t.Helper()
	w := schema.Writer{Fleet: "f", Run: "r1", Executor: "ex-1", Epoch: 1}
	var log []schema.Record
	add := func(d schema.Data, turn int32) {
		e, err := w.Event(d, turn, time.Unix(1_700_000_000, 0), 0)
		require.NoError(t, err)
		require.NoError(t, w.Commit(e))
		header, body := e.Encode()
		log = append(log, schema.NewRecord(schema.StreamSequence(len(log)+1), header, body))
	}
	add(&schema.RunStartedData{Agent: "a", Executor: "ex-1"}, 0)
	add(&schema.PhaseCompletedData{Phase: "p1"}, 0)
	add(&schema.TurnStartedData{Turn: 1, Messages: []schema.Message{{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("hello")}}}}, 1)
	add(&schema.ToolCalledData{ToolCallID: "c1", Name: "read"}, 1)
	add(&schema.ToolReturnedData{ToolCallID: "c1", Result: []byte(`"text"`)}, 1)
	add(&schema.ToolCalledData{ToolCallID: "c2", Name: "read"}, 1)
	add(&schema.RunWaitingData{InterruptID: "i1", Reason: schema.WaitAuth}, 1)
	header, body := mustControl(t, &schema.SignalSentData{SignalID: "s1", Name: "note"}).Encode()
	log = append(log, schema.NewRecord(schema.StreamSequence(len(log)+1), header, body))
	add(&schema.HandoffOfferedData{HandoffID: "h1", Reason: "task_complete"}, 0)
	return log
}

func mustControl(t *testing.T, d schema.Data) *schema.Event {
	t.Helper()
	e, err := schema.NewControl("f", "daemon", "r1", 1, "n1", d, time.Unix(1_700_000_000, 0))
	require.NoError(t, err)
	return e
}

func folded(t *testing.T) (*referencefold.Model, *schema.State) {
	t.Helper()
	log := aLog(t)
	s := schema.NewState("f", "r1")
	for i := range log {
		require.Equal(t, schema.Applied, s.Apply(schema.NoKeys, &log[i]).Kind)
	}
	return referencefold.Fold(schema.NoKeys, "f", "r1", log), s
}

func TestReferenceFold_RandomLogs_EqualFold(t *testing.T) {
	m, s := folded(t)
	require.Empty(t, m.StateDifferences(s))
	digests := m.Digests()
	require.Len(t, digests, len(m.Accepted)+1)
	require.Equal(t, s.Head.Digest, digests[len(m.Accepted)])
}

func TestDiff_EveryDifference_Seen(t *testing.T) {
	breaks := map[string]func(*schema.State){
		"events":                  func(s *schema.State) { s.Head.Counts.Events++ },
		"digest":                  func(s *schema.State) { s.Head.Digest = "" },
		"epoch":                   func(s *schema.State) { s.Head.Epoch++ },
		"sequence":                func(s *schema.State) { s.Head.Sequence-- },
		"position":                func(s *schema.State) { s.Head.Position.Stream++ },
		"agent":                   func(s *schema.State) { s.Head.Agent = "b" },
		"executor":                func(s *schema.State) { s.Head.Executor = "ex-2" },
		"instance":                func(s *schema.State) { s.Head.Instance = "i" },
		"request":                 func(s *schema.State) { s.Head.RequestID = "q" },
		"status":                  func(s *schema.State) { s.Head.Status = schema.StatusRunning },
		"unattended":              func(s *schema.State) { s.Head.Unattended = schema.StatusOrphaned },
		"claims without progress": func(s *schema.State) { s.Head.Stalled++ },
		"cancel requested":        func(s *schema.State) { s.Head.CancelRequested = true },
		"turn":                    func(s *schema.State) { s.Head.Turn++ },
		"turn open":               func(s *schema.State) { s.Head.TurnOpen = false },
		"open calls":              func(s *schema.State) { s.Head.OpenCalls[0].State = schema.CallInDoubt },
		"waits":                   func(s *schema.State) { s.Head.Interrupts = nil },
		"hand-offs":               func(s *schema.State) { s.Head.Handoffs[0].Status = schema.HandoffStatusAccepted },
		"signals":                 func(s *schema.State) { s.Head.Signals[0].Turn = 1 },
		"records":                 func(s *schema.State) { s.Head.Records++ },
		"superseded":              func(s *schema.State) { s.Head.Superseded = []schema.Superseded{{After: 1, Through: 2}} },
		"completed phases":        func(s *schema.State) { s.Head.CompletedPhases = nil },
		"messages":                func(s *schema.State) { s.Messages = nil },
		"calls":                   func(s *schema.State) { s.Calls[0].Result = []byte(`"other"`) },
	}
	for what, broken := range breaks {
		t.Run(what, func(t *testing.T) {
			m, s := folded(t)
			broken(s)
			d := m.StateDifferences(s)
			require.Len(t, d, 1)
			require.Equal(t, what, d[0].What)
			require.NotEqual(t, d[0].Model, d[0].Fold)
		})
	}
}
