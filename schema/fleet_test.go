package schema_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// fullHead is a head with a value in every field that the live index uses.
func fullHead() schema.Head {
	return schema.Head{
		Fleet: "f", Run: "r1", Agent: "coder", Executor: "ex-1", Instance: "a1", Labels: map[string]string{"team": "blue"},
		Status: schema.StatusWaiting, Epoch: 3, Stalled: 2, CancelRequested: true, UpdatedAt: "2026-03-01T12:00:05Z",
		Interrupts: []schema.OpenInterrupt{
			{InterruptID: "i1"},
			{InterruptID: "i2", ExpiresAt: "2026-03-01T14:30:00+02:00"},
			{InterruptID: "i3", ExpiresAt: "2026-03-01T13:00:00Z"},
		},
		Handoffs: []schema.OpenHandoff{
			{HandoffID: "h1", Status: schema.HandoffStatusOffered, NextAgent: "tester"},
			{HandoffID: "h2", Status: schema.HandoffStatusAccepted, NextAgent: "reviewer"},
			{HandoffID: "h3", Status: schema.HandoffStatusOffered},
			{HandoffID: "h4", Status: schema.HandoffStatusOffered, NextAgent: "tester"},
		},
	}
}

func TestLiveEntry_Fields_ForLivenessAndClaims(t *testing.T) {
	h := fullHead()
	l := schema.LiveOf(&h)
	require.Equal(t, schema.Live{
		Format: schema.LiveFormat, Run: "r1", Agent: "coder", Executor: "ex-1", Instance: "a1", Labels: map[string]string{"team": "blue"},
		Status: schema.StatusWaiting, Epoch: 3, Stalled: 2, Attended: true, Driven: true, Since: "2026-03-01T12:00:05Z",
		ExpiresAt: "2026-03-01T14:30:00+02:00", // half an hour before 13:00 in UTC, though the text sorts behind it
		Offers:    []string{"tester", ""},
		Attention: l.Attention,
	}, l)
	require.NotEmpty(t, l.Attention)
	h.Labels["team"] = "red"
	require.Equal(t, "blue", l.Labels["team"], "the entry shares nothing with the head")
}

func TestLiveEntry_UnchangedFields_Equal(t *testing.T) {
	h := fullHead()
	a, b := schema.LiveOf(&h), schema.LiveOf(&h)
	b.Since = "2026-03-01T12:00:06Z"
	require.True(t, a.Same(&b), "only when it last changed differs")
	h.Status = schema.StatusCompleted
	done := schema.LiveOf(&h)
	h.CompletedBy = "finish"
	other := schema.LiveOf(&h)
	require.False(t, done.Same(&other), "how it ended")
	for name, change := range map[string]func(h *schema.Head){
		"run":       func(h *schema.Head) { h.Run = "r2" },
		"agent":     func(h *schema.Head) { h.Agent = "tester" },
		"executor":  func(h *schema.Head) { h.Executor = "ex-2" },
		"tier":      func(h *schema.Head) { h.ModelTier = "large" },
		"instance":  func(h *schema.Head) { h.Instance = "b2" },
		"keys":      func(h *schema.Head) { h.KeyIDs = []string{"k1"} },
		"label":     func(h *schema.Head) { h.Labels = map[string]string{"team": "red"} },
		"no labels": func(h *schema.Head) { h.Labels = nil },
		"status":    func(h *schema.Head) { h.Status = schema.StatusOrphaned },
		"epoch":     func(h *schema.Head) { h.Epoch++ },
		"claims":    func(h *schema.Head) { h.Stalled++ },
		"cancel":    func(h *schema.Head) { h.CancelRequested = false },
		"paused":    func(h *schema.Head) { h.Paused = true },
		"attention": func(h *schema.Head) { h.Counts.Gaps = 1 },
		"expiry":    func(h *schema.Head) { h.Interrupts = h.Interrupts[:1] },
		"offers":    func(h *schema.Head) { h.Handoffs = h.Handoffs[1:2] },
	} {
		t.Run(name, func(t *testing.T) {
			h := fullHead()
			change(&h)
			b := schema.LiveOf(&h)
			require.False(t, a.Same(&b))
			require.False(t, b.Same(&a))
		})
	}
}

func TestLive_Attention_ChangesWithWhatNeedsAPerson(t *testing.T) {
	seen := map[string]string{}
	call := schema.OpenCall{CallKey: schema.CallKey{Turn: 1, ToolCallID: "c1", Occurrence: 1}, Name: "pay", Replay: schema.ReplayHold, Since: "s"}
	held := call
	held.State = schema.CallHeld
	asks := func(reason, event string) schema.OpenInterrupt {
		return schema.OpenInterrupt{InterruptID: "q", Reason: reason, Position: schema.Position{ID: event}}
	}
	for name, h := range map[string]schema.Head{
		"asks":              {Status: schema.StatusWaiting, Interrupts: []schema.OpenInterrupt{asks(schema.WaitHumanInput, "e1")}},
		"asks again":        {Status: schema.StatusWaiting, Interrupts: []schema.OpenInterrupt{asks(schema.WaitHumanInput, "e2")}},
		"asks twice":        {Status: schema.StatusWaiting, Interrupts: []schema.OpenInterrupt{asks(schema.WaitHumanInput, "e1"), asks(schema.WaitAuth, "e3")}},
		"held":              {Status: schema.StatusRunning, OpenCalls: []schema.OpenCall{held}},
		"held, and waits":   {Status: schema.StatusWaiting, Interrupts: []schema.OpenInterrupt{asks(schema.WaitHumanInput, "e1")}, OpenCalls: []schema.OpenCall{held}},
		"ended with a call": {Status: schema.StatusFailed, OpenCalls: []schema.OpenCall{call, held}},
		"events missing":    {Status: schema.StatusRunning, Counts: schema.Counts{Gaps: 1}},
	} {
		got := schema.LiveOf(&h).Attention
		require.NotEmpty(t, got, name)
		require.Empty(t, seen[got], name)
		require.True(t, h.InLiveIndex(), name)
		seen[got] = name
	}
	for name, h := range map[string]schema.Head{
		"runs a call":              {Status: schema.StatusRunning, OpenCalls: []schema.OpenCall{call}},
		"waits for another system": {Status: schema.StatusWaiting, Interrupts: []schema.OpenInterrupt{asks(schema.WaitExternalSystem, "e1")}},
		"ended, events missing":    {Status: schema.StatusCompleted, Counts: schema.Counts{Gaps: 1}},
		"erased":                   {Status: schema.StatusErased},
	} {
		require.Empty(t, schema.LiveOf(&h).Attention, name)
	}
	require.False(t, (&schema.Head{Status: schema.StatusErased, OpenCalls: []schema.OpenCall{call}}).InLiveIndex())
}

func TestLiveEntry_Run_UntilEndedWithoutOffers(t *testing.T) {
	offered := []schema.OpenHandoff{{HandoffID: "h1", Status: schema.HandoffStatusOffered}}
	accepted := []schema.OpenHandoff{{HandoffID: "h1", Status: schema.HandoffStatusAccepted}}
	for _, status := range []schema.Status{schema.StatusRunning, schema.StatusWaiting, schema.StatusInterrupted, schema.StatusOrphaned} {
		require.True(t, (&schema.Head{Status: status}).Live(), status)
	}
	for _, status := range []schema.Status{schema.StatusCompleted, schema.StatusFailed, schema.StatusCancelled} {
		require.False(t, (&schema.Head{Status: status}).Live(), status)
		require.True(t, (&schema.Head{Status: status, Handoffs: offered}).Live(), "%s, and offered", status)
		require.False(t, (&schema.Head{Status: status, Handoffs: accepted}).Live(), "%s, and taken", status)
	}
}

func TestQuarantine_ClaimsWithoutProgress_Reached(t *testing.T) {
	for _, tc := range []struct {
		status       schema.Status
		stalled, max int
		want         bool
	}{
		{schema.StatusOrphaned, 2, 0, false},
		{schema.StatusOrphaned, 3, 0, true},
		{schema.StatusInterrupted, 4, 0, true},
		{schema.StatusRunning, 3, 0, false}, // the third try is under way
		{schema.StatusWaiting, 3, 0, false},
		{schema.StatusFailed, 3, 0, false},
		{schema.StatusOrphaned, 1, 1, true},
		{schema.StatusOrphaned, 3, 4, false},
		{schema.StatusOrphaned, 1000, -1, false},
	} {
		h := schema.Head{Status: tc.status, Stalled: tc.stalled}
		l := schema.LiveOf(&h)
		require.Equal(t, tc.want, h.Quarantined(tc.max), "%+v", tc)
		require.Equal(t, tc.want, l.Quarantined(tc.max), "%+v", tc)
	}
}

func TestClaimable_Status_OrphanedOrInterrupted(t *testing.T) {
	for status, want := range map[schema.Status]bool{
		schema.StatusRunning: false, schema.StatusWaiting: false, schema.StatusOrphaned: true, schema.StatusInterrupted: true,
		schema.StatusCompleted: false, schema.StatusFailed: false, schema.StatusCancelled: false,
	} {
		require.Equal(t, want, status.Claimable(), status)
	}
}
