package standstill_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/standstill"
	"github.com/waymarkio/waymark/schema"
)

func TestOf_ARunThatGoesOn_HasNoReason(t *testing.T) {
	t.Parallel()
	for _, status := range []schema.Status{schema.StatusRunning, schema.StatusCompleted, schema.StatusFailed, schema.StatusCancelled} {
		require.Empty(t, standstill.Of(&schema.Head{Run: "r", Status: status}, false, false, nil), status)
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
		OpenCalls:  []schema.OpenCall{{CallKey: schema.CallKey{Turn: 1, ToolCallID: "c", Occurrence: 1}, Name: "mail", Replay: schema.ReplayHold, State: schema.CallHeld, Since: "s"}},
	}
	reasons := standstill.Of(h, false, false, []schema.Overdue{{Turn: 1, LimitMS: 1 << 62}})
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
	require.Equal(t, reasons[0].ID, standstill.Of(h, false, false, nil)[0].ID, "for every reader")
	h.Interrupts[0].Position.ID = "e4"
	require.NotEqual(t, reasons[0].ID, standstill.Of(h, false, false, nil)[0].ID, "asked again under its id")
	require.Equal(t, standstill.Quarantined, standstill.Of(&schema.Head{Run: "r", Status: schema.StatusOrphaned}, true, false, nil)[0].Kind)
}

func TestOf_RunWaitsForAPlace_NamesTheLimit(t *testing.T) {
	t.Parallel()
	full := []schema.Limit{{Scope: schema.Scope{Agent: "coder"}, AtWork: 5}}
	of := func(status schema.Status, quarantined bool) string {
		reasons := standstill.Of(&schema.Head{Run: "r", Status: status, Epoch: 2}, quarantined, false, nil, full...)
		if len(reasons) == 0 {
			return ""
		}
		return reasons[0].Why
	}
	require.Equal(t, "waits for a place: limit --agent coder, 5 at work; see: waymark limit ls", of(schema.StatusInterrupted, false))
	require.Contains(t, of(schema.StatusInterrupted, true), "quarantined")
	require.Empty(t, of(schema.StatusRunning, false), "it was given a place meanwhile")
}

func TestOf_ExecutorLeftInAHoldCall_NeedsAPerson(t *testing.T) {
	t.Parallel()
	for replay, kinds := range map[schema.Replay][]string{schema.ReplayHold: {standstill.Held, standstill.Interrupted}, schema.ReplayPure: {standstill.Interrupted}} {
		h := &schema.Head{Run: "r", Status: schema.StatusInterrupted, Epoch: 1, OpenCalls: []schema.OpenCall{{Name: "mail", Replay: replay, State: schema.CallBegun, Epoch: 1}}}
		var got []string
		for _, r := range standstill.Of(h, false, false, nil) {
			got = append(got, r.Kind)
		}
		require.Equal(t, kinds, got)
	}
}

func TestOf_CallIsHeldAgain_HasAnotherID(t *testing.T) {
	t.Parallel()
	key := schema.CallKey{Turn: 1, ToolCallID: "c", Occurrence: 1}
	held := func(epoch schema.Epoch, asked string) string {
		h := &schema.Head{Run: "r", OpenCalls: []schema.OpenCall{{CallKey: key, Name: "pay", State: schema.CallHeld, Since: "s", Epoch: epoch}}}
		if asked != "" {
			h.Interrupts = []schema.OpenInterrupt{{
				InterruptID: "d", Reason: schema.WaitToolInDoubt, Turn: 1, ToolCallID: "c", Occurrence: 1, Position: schema.Position{ID: asked},
			}}
		}
		return standstill.Of(h, false, false, nil)[0].ID
	}
	require.NotEqual(t, held(1, "e1"), held(1, "e2"), "its executor ran it again, and asks again")
	require.NotEqual(t, held(1, ""), held(2, ""), "another executor ran it again, and fell silent")
}

func TestOf_HandoffNotTaken_IsAReasonOfEndedRunsToo(t *testing.T) {
	t.Parallel()
	h := &schema.Head{Run: "r", Agent: "coder", Status: schema.StatusCompleted, Handoffs: []schema.OpenHandoff{
		{HandoffID: "a", Status: schema.HandoffStatusOffered, NextAgent: "reviewer", Since: "s", OfferHash: "1"},
		{HandoffID: "b", Status: schema.HandoffStatusOffered, OfferHash: "2"},
		{HandoffID: "c", Status: schema.HandoffStatusAccepted, ChildRun: "child", OfferHash: "3"},
	}}
	reasons := standstill.Of(h, false, false, nil)
	require.Len(t, reasons, 2, "whether the child of an accepted one has begun its head does not say")
	require.Equal(t, "offered: no executor of reviewer has taken hand-off a", reasons[0].Why)
	require.Equal(t, "s", reasons[0].Since)
	require.Equal(t, "offered: no executor of coder has taken hand-off b", reasons[1].Why)
	require.NotEqual(t, reasons[0].ID, reasons[1].ID)
	require.False(t, reasons[0].NeedsPerson(), "an executor of the agent ends it")
	late := standstill.OfNotBegun(h, &h.Handoffs[2])
	require.Equal(t, "accepted: run child, which carries out hand-off c, has not started", late.Why)
	h.Handoffs[0].OfferHash = "4"
	require.NotEqual(t, reasons[0].ID, standstill.Of(h, false, false, nil)[0].ID, "another offer under its id")
}

func TestOf_Quarantined_SaysTheLastError(t *testing.T) {
	t.Parallel()
	h := &schema.Head{Run: "r", Status: schema.StatusOrphaned, Stalled: 3}
	require.Equal(t, "quarantined: 3 claims in a row made no progress", standstill.Of(h, true, false, nil)[0].Why)
	h.LastError = &schema.Error{Type: "config", Message: "no such repository"}
	require.Equal(t, "quarantined: 3 claims in a row made no progress; the last error: no such repository", standstill.Of(h, true, false, nil)[0].Why)
}

func TestOf_HeldCall_SaysWhatItsWaitSays(t *testing.T) {
	t.Parallel()
	key := schema.CallKey{Turn: 1, ToolCallID: "c1", Occurrence: 1}
	h := &schema.Head{Run: "r", Status: schema.StatusWaiting, OpenCalls: []schema.OpenCall{{CallKey: key, Name: "mail", State: schema.CallHeld}}, Interrupts: []schema.OpenInterrupt{
		{InterruptID: "a", Reason: schema.WaitToolInDoubt, Turn: 1, ToolCallID: "c2", Occurrence: 1, Message: "of another call"},
		{InterruptID: "b", Reason: schema.WaitToolInDoubt, Turn: 1, ToolCallID: "c1", Occurrence: 1, Message: "it is in doubt and cannot run again here"},
	}}
	require.Equal(t, "held: mail may have run (turn 1, call c1): it is in doubt and cannot run again here", standstill.Of(h, false, false, nil)[0].Why)
}

func TestWaitText_Timer_SaysForWhatAndUntilWhen(t *testing.T) {
	t.Parallel()
	for want, w := range map[string]schema.OpenInterrupt{
		"waits for the provider until 14:10 UTC: 429 Too Many Requests": {InterruptID: "retry.1.1", Message: "429 Too Many Requests", ExpiresAt: "2026-09-03T14:10:59Z"},
		"waits for another try of mail until 2026-09-04 00:10 UTC":      {InterruptID: "retry.1.1", ToolCallID: "c", ExpiresAt: "2026-09-04T02:10:00+02:00"},
		"waits until 14:10 UTC": {InterruptID: "night", ExpiresAt: "2026-09-03T14:10:00Z"},
	} {
		w.Reason, w.Since = schema.WaitTimer, "2026-09-03T14:00:00Z"
		require.Equal(t, want, standstill.WaitText(&w, "mail"))
		require.False(t, w.NeedsPerson())
	}
}

func TestOf_BuildGoesFirst_IsNamed(t *testing.T) {
	t.Parallel()
	for status, want := range map[schema.Status]string{
		schema.StatusOrphaned:    "orphaned: its executor is gone; it waits for build v1 while one of its executors is alive",
		schema.StatusInterrupted: "interrupted: no executor has claimed it; it waits for build v1 while one of its executors is alive",
	} {
		require.Equal(t, want, standstill.Of(&schema.Head{Run: "r", Status: status, Build: "v1"}, false, false, nil)[0].Why)
	}
}
