package schema_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func answerOf(turn int32, calls ...schema.RequestedCall) *schema.TurnAnsweredData {
	return &schema.TurnAnsweredData{Turn: turn, Message: assistantMessage(schema.Text("x")), Calls: calls}
}

func mustApply(t *testing.T, v schema.Verdict) {
	t.Helper()
	require.Equal(t, schema.Applied, v.Kind, v.Detail)
}

// findPoint walks the log like consumer.search; it returns the number of records before the point, or -1.
func findPoint(t *testing.T, r *testRun, p schema.Point) int {
	t.Helper()
	f := schema.NewFinder(p, nil)
	h := schema.NewHead("f", "r1")
	for i := range r.log {
		pr := schema.Prepare(schema.NoKeys, &r.log[i])
		before := f.Before(&h)
		v := h.ApplyPrepared(&pr)
		switch {
		case before && f.Confirmed(v):
			return i
		case f.Behind(&h, v):
			return i + 1
		}
	}
	if f.AtEnd(&h) {
		return len(r.log)
	}
	return -1
}

func TestAnswered_RerunOfEarlierTurn_Allowed(t *testing.T) {
	r := newTestRun(t)
	r.start()
	mustApply(t, r.write(answerOf(1, schema.RequestedCall{ToolCallID: "a", Name: "n"}), 1))
	mustApply(t, r.write(&schema.ToolCalledData{ToolCallID: "a", Name: "n"}, 1))
	r.takeover("ex-2")
	// The executor goes on; the held call stays in doubt.
	mustApply(t, r.write(answerOf(2, schema.RequestedCall{ToolCallID: "b", Name: "n"}), 2))
	// A person says: run it again.
	mustApply(t, r.operator(&schema.ToolSettledData{ToolCallID: "a", How: schema.SettledRerun, By: "ann"}, 1))
	v := r.write(&schema.ToolCalledData{ToolCallID: "a", Occurrence: 1, Name: "n"}, 1)
	require.Equal(t, schema.Applied, v.Kind, "a call that a person wants run again can be begun: %s", v.Detail)
}

func TestAnswered_RerunOfEarlierTurn_AbandonedSilently(t *testing.T) {
	r := newTestRun(t)
	r.start()
	mustApply(t, r.write(answerOf(1, schema.RequestedCall{ToolCallID: "a", Name: "n"}), 1))
	mustApply(t, r.write(&schema.ToolCalledData{ToolCallID: "a", Name: "n"}, 1))
	r.takeover("ex-2")
	mustApply(t, r.write(answerOf(2, schema.RequestedCall{ToolCallID: "b", Name: "n", Replay: schema.ReplayPure}), 2))
	mustApply(t, r.operator(&schema.ToolSettledData{ToolCallID: "a", How: schema.SettledRerun, By: "ann"}, 1))
	mustApply(t, r.write(&schema.ToolReturnedData{ToolCallID: "b", Result: []byte(`1`)}, 2))
	mustApply(t, r.write(answerOf(3), 3))
	c := r.state.Call(schema.CallKey{Turn: 1, ToolCallID: "a", Occurrence: 1})
	require.NotEqual(t, schema.OutcomeAbandoned, c.Outcome, "the person's word is lost")
}

func TestAnswered_NewTurn_RoomCountsAbandoned(t *testing.T) {
	answer := func(turn int32) *schema.TurnAnsweredData {
		var calls []schema.RequestedCall
		for i := range 400 {
			calls = append(calls, schema.RequestedCall{ToolCallID: fmt.Sprintf("%0200d", i), Name: "n"})
		}
		return answerOf(turn, calls...)
	}
	r := newTestRun(t)
	r.start()
	mustApply(t, r.write(answer(1), 1))
	v := r.write(answer(2), 2)
	require.Equal(t, schema.Applied, v.Kind, "all of turn 1 is abandoned by it, so turn 2 has as much room: %s", v.Detail)
}

func TestAnswered_TurnEndsUnchanged_NoProgress(t *testing.T) {
	r := newTestRun(t)
	r.start()
	mustApply(t, r.write(answerOf(1), 1))
	for range 5 {
		r.takeover("ex-2")
		mustApply(t, r.write(&schema.TurnEndedData{Turn: 1}, 1))
	}
	require.Equal(t, 5, r.head.Stalled, "a later turn.ended changes nothing")
}

func TestAnswered_AgainAfterEachTakeover_NoProgress(t *testing.T) {
	r := newTestRun(t)
	r.start()
	mustApply(t, r.write(answerOf(1, schema.RequestedCall{ToolCallID: "a", Name: "crash", Replay: schema.ReplayPure}), 1))
	for i := range 5 {
		r.takeover("ex-2")
		mustApply(t, r.write(answerOf(int32(i+2), schema.RequestedCall{ToolCallID: "a", Name: "crash", Replay: schema.ReplayPure}), int32(i+2)))
	}
	require.Positive(t, r.head.Stalled, "no turn, call or phase was closed")
}

func TestAnswered_TurnZero_BeforeTurnOpenedByCall(t *testing.T) {
	r := newTestRun(t)
	r.start()
	mustApply(t, r.write(&schema.ToolCalledData{ToolCallID: "a", Name: "n"}, 1))
	require.Equal(t, 1, findPoint(t, r, schema.Point{Kind: schema.PointTurn, Number: 0}))
}

func TestAnswered_ApprovalOfAbandonedCall_Refused(t *testing.T) {
	r := newTestRun(t)
	r.start()
	mustApply(t, r.write(answerOf(1, schema.RequestedCall{ToolCallID: "a", Name: "n"}), 1))
	mustApply(t, r.write(&schema.ToolDecidedData{ToolCallID: "a", Occurrence: 1, Decision: schema.DecisionAsk}, 1))
	mustApply(t, r.write(&schema.RunWaitingData{InterruptID: "i", Reason: schema.WaitToolApproval, ToolCallID: "a"}, 1))
	mustApply(t, r.write(&schema.TurnEndedData{Turn: 1}, 1))
	require.Empty(t, r.head.OpenCalls)
	mustApply(t, r.write(&schema.RunInterruptedData{Reason: schema.InterruptedShutdown}, 0))
	require.Equal(t, schema.StatusInterrupted, r.head.Status, "it waits for an approval of a call that can no longer run, so the run is not claimable")
}

func TestAnswered_ForkWithMostCalls_Fits(t *testing.T) {
	r := newTestRun(t)
	r.start()
	var calls []schema.RequestedCall
	for i := range schema.MaxTurnCalls {
		calls = append(calls, schema.RequestedCall{ToolCallID: fmt.Sprint(i), Name: "n", Replay: schema.ReplayPure})
	}
	mustApply(t, r.write(answerOf(1, calls...), 1))
	mustApply(t, r.write(&schema.ToolReturnedData{ToolCallID: "0", Result: []byte(`1`)}, 1))
	require.Equal(t, schema.ReasonTooMany, r.write(&schema.ToolCalledData{ToolCallID: "more", Name: "n", Replay: schema.ReplayPure}, 1).Reason)
	for i := 1; i < schema.MaxTurnCalls; i++ {
		mustApply(t, r.write(&schema.ToolReturnedData{ToolCallID: fmt.Sprint(i), Result: []byte(`1`)}, 1))
	}
	require.NoError(t, schema.Validate(&schema.RunStartedData{Agent: "a", Executor: "e", Base: schema.BaseOf(schema.Point{}, 8, &r.head)}), "%d turn calls", len(r.head.TurnCalls))
}

func TestAnswered_ClosedCallsBeyondTheCaps_AreNotInTheHead(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	var calls []schema.RequestedCall
	for i := range schema.MaxTurnCalls + 50 {
		calls = append(calls, schema.RequestedCall{ToolCallID: fmt.Sprint(i), Name: "n", Replay: schema.ReplayPure})
	}
	fit := r.head.CallRoom(1, calls)
	require.Equal(t, schema.MaxTurnCalls, fit)
	require.Equal(t, schema.ReasonTooMany, r.write(answerOf(1, calls...), 1).Reason)
	for i := range calls[fit:] {
		calls[fit+i].Error = &schema.Error{Type: "too_many_calls"}
	}
	v := r.write(answerOf(1, calls...), 1)
	mustApply(t, v)
	require.Len(t, v.Calls, len(calls))
	require.Len(t, r.head.OpenCalls, fit)
	require.Empty(t, r.head.TurnCalls)
	require.EqualValues(t, 50, r.head.Counts.ToolFailures)
	require.Len(t, r.state.Calls, len(calls))
	for i := range fit {
		mustApply(t, r.write(&schema.ToolReturnedData{ToolCallID: fmt.Sprint(i), Result: []byte(`1`)}, 1))
	}
	require.False(t, r.head.TurnOpen)
	require.NoError(t, schema.Validate(&schema.RunStartedData{Agent: "a", Executor: "e", Base: schema.BaseOf(schema.Point{}, 8, &r.head)}))
}

func TestAnswered_IDsBeyondTheirCap_EndTheRoom(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	var calls []schema.RequestedCall
	for i := range 1000 {
		calls = append(calls, schema.RequestedCall{ToolCallID: fmt.Sprintf("%0*d", schema.MaxIdentifier, i), Name: "n", Replay: schema.ReplayPure})
	}
	fit := r.head.CallRoom(1, calls)
	require.Equal(t, schema.MaxCallBytes/(schema.MaxIdentifier+1), fit)
	mustApply(t, r.write(answerOf(1, calls[:fit]...), 1))
	require.Equal(t, schema.MaxCallBytes/(schema.MaxIdentifier+1), r.head.CallRoom(2, calls), "what was requested is abandoned by the next turn")
}

func TestFork_LargestHeads_OnlyThoseThatFitAreBases(t *testing.T) {
	t.Parallel()
	for calls, fits := range map[int]bool{500: true, schema.MaxOpenCalls: false} {
		r := newTestRun(t)
		r.start()
		var requested []schema.RequestedCall
		for i := range calls {
			requested = append(requested, schema.RequestedCall{ToolCallID: fmt.Sprintf("%076d", i), Name: strings.Repeat("n", 20)})
		}
		mustApply(t, r.write(answerOf(1, requested...), 1))
		point := schema.Point{Kind: schema.PointRecord, Number: 2}
		b := schema.BaseOf(point, 2, &r.head)
		_, err := schema.RewindTo(point, &r.head, nil)
		if fits {
			require.NoError(t, err)
			require.NoError(t, b.Fits())
			require.NoError(t, schema.Validate(&schema.RunStartedData{Agent: "a", Executor: "e", Base: b}))
			continue
		}
		for _, err := range []error{err, b.Fits(), schema.Validate(&schema.RunStartedData{Agent: "a", Executor: "e", Base: b})} {
			require.ErrorContains(t, err, "take a point with fewer open calls")
		}
	}
}

func TestAnswered_TurnEndedByNext_IsPoint(t *testing.T) {
	r := newTestRun(t)
	r.start()
	mustApply(t, r.write(answerOf(1, schema.RequestedCall{ToolCallID: "a", Name: "n"}), 1))
	mustApply(t, r.write(answerOf(2), 2))
	require.NotEmpty(t, r.state.Turns[0].EndedAt, "the state says that turn 1 has ended")
	require.NotEqual(t, -1, findPoint(t, r, schema.Point{Kind: schema.PointTurn, Number: 1}), "and turn:1 is no point")
}

// A settlement keeps the provider's details of its result.
func TestToolSettled_VerifiedWithSource_KeepsIt(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	requested := schema.RequestedCall{ToolCallID: "a", Name: "n", Replay: schema.ReplayVerify, VerifySubject: "tools.n"}
	mustApply(t, r.write(answerOf(1, requested), 1))
	mustApply(t, r.write(&schema.ToolCalledData{ToolCallID: "a", Name: "n"}, 1))
	r.takeover("ex-2")
	require.Len(t, r.head.InDoubt(), 1)
	settled := &schema.ToolSettledData{ToolCallID: "a", How: schema.SettledVerified, Result: []byte(`1`), Source: []byte(`{"x":1}`)}
	mustApply(t, r.write(settled, 1))
	require.False(t, r.head.TurnOpen)
	require.JSONEq(t, `{"x":1}`, string(r.state.Calls[0].ResultSource))
}

// A person decides the outcome of a call that is open when its run ends.
func TestHeldCalls_VerifyCallOpenAtTheEnd_Counts(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	requested := schema.RequestedCall{ToolCallID: "a", Name: "n", Replay: schema.ReplayVerify, VerifySubject: "tools.n"}
	mustApply(t, r.write(answerOf(1, requested), 1))
	mustApply(t, r.write(&schema.ToolCalledData{ToolCallID: "a", Name: "n"}, 1))
	mustApply(t, r.write(&schema.RunEndedData{Status: string(schema.StatusFailed)}, 0))
	require.Len(t, r.head.HeldCalls(), 1)
}

func TestResumed_ByPerson_ForgetsTheErrorBefore(t *testing.T) {
	r := newTestRun(t)
	r.start()
	failed := &schema.TurnEndedData{Turn: 1, Error: &schema.Error{Type: "config", Message: "no such repository"}}
	mustApply(t, r.write(&schema.TurnStartedData{Turn: 1}, 1))
	mustApply(t, r.write(failed, 1))
	r.takeover("ex-2")
	require.Equal(t, "no such repository", r.head.LastError.Message, "a claim explains nothing away")
	mustApply(t, r.event(r.makeControl(&schema.RunResumedData{
		Executor: "ex-3", Reason: schema.TakeoverRequest, RequestID: "q",
		From: schema.From{Epoch: r.head.Epoch, Sequence: r.head.Sequence, Digest: r.head.Digest},
	}, r.head.Epoch+1)))
	require.Nil(t, r.head.LastError)
}

func TestLastError_AnswerCame_IsForgotten(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	mustApply(t, r.write(&schema.ErrorRaisedData{Error: schema.Error{Type: "error", Message: "429"}, Scope: "turn"}, 0))
	mustApply(t, r.write(&schema.RunWaitingData{InterruptID: "retry.1.1", Reason: schema.WaitTimer, ExpiresAt: "2126-01-01T00:00:00Z"}, 0))
	require.Equal(t, "429", r.head.LastError.Message, "the next try may fail, too")
	mustApply(t, r.write(answerOf(1), 1))
	require.Nil(t, r.head.LastError)
	mustApply(t, r.write(&schema.RunEndedData{Status: string(schema.StatusFailed), Error: &schema.Error{Type: "error", Message: "500"}}, 0))
	require.Equal(t, "500", r.head.LastError.Message)
}
