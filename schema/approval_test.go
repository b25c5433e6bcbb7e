package schema_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// Closing a call withdraws the questions to people about it.
func TestApproval_CallIsClosedWithoutAnAnswer_RunIsClaimable(t *testing.T) {
	for name, closing := range map[string]func(r *testRun) schema.Verdict{
		"failed": func(r *testRun) schema.Verdict {
			return r.write(&schema.ToolFailedData{ToolCallID: "a", Error: schema.Error{Type: "timeout"}}, 1)
		},
		"settled by a person": func(r *testRun) schema.Verdict {
			return r.operator(&schema.ToolSettledData{ToolCallID: "a", How: schema.SettledDecided, Result: []byte(`1`), By: "ann"}, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTestRun(t)
			r.start()
			mustApply(t, r.write(answerOf(1, schema.RequestedCall{ToolCallID: "a", Name: "n", Replay: schema.ReplayPure}), 1))
			mustApply(t, r.write(&schema.ToolDecidedData{ToolCallID: "a", Decision: schema.DecisionAsk}, 1))
			mustApply(t, r.write(&schema.RunWaitingData{InterruptID: "i", Reason: schema.WaitToolApproval, ToolCallID: "a"}, 1))
			r.takeover("ex-2")
			mustApply(t, closing(r))
			require.Empty(t, r.head.OpenCalls)
			require.False(t, r.head.TurnOpen)
			mustApply(t, r.write(&schema.RunInterruptedData{Reason: schema.InterruptedShutdown}, 0))
			require.Empty(t, r.head.Interrupts, "the question is about a call that is closed")
			require.True(t, r.head.Status.Claimable(), "the run is %s", r.head.Status)
		})
	}
}
