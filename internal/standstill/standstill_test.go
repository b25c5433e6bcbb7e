package standstill_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/standstill"
	"github.com/waymarkio/waymark/schema"
)

func TestOf_ARunThatGoesOn_HasNoReason(t *testing.T) {
	t.Parallel()
	for _, status := range []schema.Status{schema.StatusRunning, schema.StatusCompleted, schema.StatusFailed, schema.StatusCancelled} {
		require.Empty(t, standstill.Of(&schema.Head{Run: "r", Status: status}, false, nil), status)
	}
}

func TestOf_EachReason_HasItsKindAndAnIDOfItsOwn(t *testing.T) {
	t.Parallel()
	wait := func(id, reason, event string) schema.OpenInterrupt {
		return schema.OpenInterrupt{InterruptID: id, Reason: reason, Position: schema.Position{ID: event}}
	}
	h := &schema.Head{
		Fleet: "default", Run: "r", Status: schema.StatusOrphaned, Epoch: 2, Counts: schema.Counts{Gaps: 1},
		Interrupts: []schema.OpenInterrupt{wait("q", schema.WaitHumanInput, "e1"), wait("s", schema.WaitExternalSystem, "e2"), wait("d", schema.WaitToolInDoubt, "e3")},
		OpenCalls:  []schema.OpenCall{{CallKey: schema.CallKey{Turn: 1, ToolCallID: "c", Occurrence: 1}, Name: "mail", Replay: schema.ReplayHold, InDoubt: true, Held: true, Since: "s"}},
	}
	reasons := standstill.Of(h, false, []schema.Overdue{{Turn: 1, LimitMS: 1 << 62}})
	var kinds []string
	needs, ids := 0, map[string]bool{}
	for i := range reasons {
		kinds = append(kinds, reasons[i].Kind)
		ids[reasons[i].ID] = true
		if reasons[i].NeedsPerson() {
			needs++
		}
	}
	require.Equal(t, []string{standstill.Waiting, standstill.Waiting, standstill.Held, standstill.Overdue, standstill.Incomplete}, kinds)
	require.Len(t, ids, len(reasons))
	require.Equal(t, 3, needs, "the question, the call, and what is missing")
	require.Equal(t, reasons[0].ID, standstill.Of(h, false, nil)[0].ID, "whoever looks")
	h.Interrupts[0].Position.ID = "e4"
	require.NotEqual(t, reasons[0].ID, standstill.Of(h, false, nil)[0].ID, "asked again under its id")
	require.Equal(t, standstill.Quarantined, standstill.Of(&schema.Head{Run: "r", Status: schema.StatusOrphaned}, true, nil)[0].Kind)
}
