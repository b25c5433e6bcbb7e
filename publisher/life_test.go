package publisher_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestPhase_Completed_SkippedOnResume(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	var ran []string
	work := func(name string, output any, err error) func(context.Context) (any, error) {
		return func(context.Context) (any, error) {
			ran = append(ran, name)
			return output, err
		}
	}
	run := start(t, f, "r1")
	out, err := run.Phase(t.Context(), "plan", work("plan", map[string]int{"steps": 2}, nil))
	require.NoError(t, err)
	require.JSONEq(t, `{"steps":2}`, string(out))
	_, err = run.Phase(t.Context(), "large", work("large", strings.Repeat("x", big), nil))
	require.NoError(t, err)
	crash := errors.New("power cut")
	_, err = run.Phase(t.Context(), "build", work("build", nil, crash))
	require.ErrorIs(t, err, crash)

	run = resume(t, f, "r1")
	require.Equal(t, "build", run.Head().Phase)
	out, err = run.Phase(t.Context(), "plan", work("plan", nil, nil))
	require.NoError(t, err)
	require.JSONEq(t, `{"steps":2}`, string(out))
	out, err = run.Phase(t.Context(), "large", work("large", nil, nil))
	require.NoError(t, err)
	require.Len(t, out, big+2)
	out, err = run.Phase(t.Context(), "build", work("build", nil, nil))
	require.NoError(t, err)
	require.Empty(t, out)
	require.Equal(t, []string{"plan", "large", "build", "build"}, ran)
	require.ErrorIs(t, run.Publish(t.Context(), &schema.PhaseStartedData{Phase: "plan"}, 0), publisher.ErrRejected)
	require.Equal(t, 2, w.requireSameFold(run).Phases[2].Attempts)
}

func TestHandoff_Offer_CollectsContext(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	h := run.Handoff(schema.HandoffOfferedData{
		Reason:    "threshold_critical",
		HandoffID: "h1",
		Kind:      "continuation",
		NextAgent: "coder",
		Completed: []schema.HandoffCompleted{{File: "a.go", Status: "done", Tests: &schema.HandoffTests{Passed: 3}}},
		Remaining: []schema.HandoffRemaining{{Description: "write b.go", Priority: "high"}},
		Context:   &schema.HandoffContext{Decisions: []string{"no cgo"}, Patterns: []string{"table tests"}, Issues: []string{"é is two bytes"}, FilesModified: []string{"a.go", "b.go", "a.go", "./b.go", "c.go"}},
	})
	require.Equal(t, []string{"a.go", "b.go", "c.go"}, h.Data().Context.FilesModified)
	require.Equal(t, int64(len("a.go"+"done"+"write b.go"+"high"+"no cgo"+"table tests"+"e is two bytes"+"a.gob.goc.go")), h.Data().SizeChars)
	offer, err := h.Offer(t.Context())
	require.NoError(t, err)
	require.False(t, offer.Data.TooLong())
	require.False(t, run.Head().SizeWarning)

	offer, err = run.Handoff(schema.HandoffOfferedData{Reason: "error", Context: &schema.HandoffContext{Issues: []string{strings.Repeat("x", schema.HandoffSizeWarning), "y"}}}).Offer(t.Context())
	require.NoError(t, err)
	require.True(t, offer.Data.TooLong(), "accepted and flagged")
	require.True(t, run.Head().SizeWarning)
	_, err = run.Handoff(schema.HandoffOfferedData{Reason: "because"}).Offer(t.Context())
	require.Error(t, err, "the reason is one of three")
	s := w.requireSameFold(run)
	require.Len(t, s.Handoffs, 2)
	require.Equal(t, "h1", s.Handoffs[0].HandoffID)
}

func TestRun_OtherEvents_Recorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run, err := f.Start(t.Context(), publisher.RunSpec{
		ID: "r1", Agent: "writer", Labels: map[string]string{"team": "x"}, Parent: &schema.Parent{Run: "r0", Turn: 2, ToolCallID: "c"}, MaxTurns: 3,
		ThreadID: "t1", Model: "m", ModelTier: "large", Provider: "p", ResumedFrom: "r9", Source: raw(`{"kept":null}`),
	})
	require.NoError(t, err)
	turn := openTurn(t, run)
	require.NoError(t, turn.AddMessage(t.Context(), user("go")))
	require.NoError(t, turn.Run().Publish(t.Context(), &schema.ToolDecidedData{ToolCallID: "c1", Decision: "deny", By: "policy"}, turn.Number()))
	require.NoError(t, run.Error(t.Context(), schema.Error{Type: "rate_limited", Retryable: true}, "turn"))
	require.NoError(t, run.Limit(t.Context(), "turns", 3, 3))
	require.NoError(t, run.Limit(t.Context(), "time", nil, nil))
	require.NoError(t, run.Artifact(t.Context(), schema.ArtifactAddedData{ArtifactID: "a1", Name: "report"}))
	require.NoError(t, run.Publish(t.Context(), &schema.CheckpointMarkedData{Name: "any"}, 0))
	require.NoError(t, turn.End(t.Context(), publisher.TurnEnd{Error: &schema.Error{Type: "x"}}))
	require.NoError(t, run.Compact(t.Context(), schema.ContextCompactedData{Summary: "s", ThroughTurn: 1}))
	require.NoError(t, run.Interrupt(t.Context(), "shutdown"))
	require.Equal(t, schema.StatusInterrupted, run.Head().Status)

	claimed, err := f.Resume(t.Context(), "r1", publisher.ResumeSpec{Reason: "claim", Agent: "writer"})
	require.NoError(t, err)
	require.NoError(t, claimed.End(t.Context(), publisher.RunEnd{Error: &schema.Error{Type: "gave_up"}}))
	require.Equal(t, schema.StatusFailed, claimed.Head().Status)
	s := w.requireSameFold(claimed)
	require.Equal(t, int32(1), s.Errors[0].Turn)
	require.Equal(t, `{"kept":null}`, string(s.Started.Source))
	claimed.View(func(seen *schema.State) { require.Equal(t, s, seen) })
	require.ErrorIs(t, run.Mark(t.Context(), "x"), publisher.ErrFenced)
}

func TestListAndHistory_Fleet_Answer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	start(t, f, "r1")
	list, err := f.List(t.Context(), schema.ListRequest{Agent: "coder"})
	require.NoError(t, err)
	require.Empty(t, list.Runs, "no folder, no checkpoints")
	_, err = f.History(t.Context(), "a.b")
	require.ErrorIs(t, err, publisher.ErrConfig)
}
