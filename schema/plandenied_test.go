package schema_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// A person's rerun withdraws a denial, and the SDK runs the tool. The plan must show that.
func TestPlan_PersonTookADenialBack_CallIsRunAgain(t *testing.T) {
	r := newTestRun(t)
	r.start()
	mustApply(t, r.write(answerOf(1, schema.RequestedCall{ToolCallID: "a", Name: "n", Replay: schema.ReplayPure}), 1))
	mustApply(t, r.write(&schema.ToolDecidedData{ToolCallID: "a", Decision: schema.DecisionDeny}, 1))
	r.takeover("ex-2")
	mustApply(t, r.operator(&schema.ToolSettledData{ToolCallID: "a", How: schema.SettledRerun, By: "ann"}, 1))
	require.Empty(t, r.head.OpenCalls[0].Decision, "the denial is taken back")
	plan := schema.PlanOf(r.state)
	require.NotEqual(t, schema.CallDeny, plan.Calls[0].Action, plan.Calls[0].Why)
}
