package conform_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/conform"
	"github.com/waymarkio/waymark/schema"
)

// A person's rerun takes back an earlier denial: the head lets the call be begun. The checker still calls its result a breach.
func TestChecker_RerunAfterDenial_ResultIsNoBreach(t *testing.T) {
	r := newTape(t)
	r.start()
	r.answers(1, schema.RequestedCall{ToolCallID: "c1", Name: "tool", Replay: schema.ReplayHold})
	r.write(&schema.ToolCalledData{ToolCallID: "c1", Name: "tool"}, 1)
	r.write(&schema.ToolDecidedData{ToolCallID: "c1", Decision: schema.DecisionDeny}, 1)
	r.takeover("ex-2", "claim")
	v := r.control(&schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledRerun, By: "ann"}, 1)
	require.Equal(t, schema.Applied, v.Kind)
	r.write(&schema.ToolCalledData{ToolCallID: "c1", Name: "tool"}, 1)
	r.result("c1", 1)
	r.end()
	report := judge(t, r.out.Bytes())
	for _, f := range report.Findings {
		require.NotEqual(t, conform.Must, f.Level, "%s %s: expected %s, found %s", f.Rule, f.Text, f.Expected, f.Found)
	}
}
