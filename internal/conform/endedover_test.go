package conform_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/conform"
	"github.com/waymarkio/waymark/schema"
)

// WM-E-041 and WM-E-042 want an outcome of every call of the answer before a run is completed. The fold abandons a call that was not
// begun at run.ended.
func TestChecker_RunIsCompletedOverACallThatWasNeverMade_IsABreach(t *testing.T) {
	r := newTape(t)
	r.start()
	r.answers(1, schema.RequestedCall{ToolCallID: "c1", Name: "tool", Replay: schema.ReplayHold})
	r.end()
	report := judge(t, r.out.Bytes())
	require.True(t, slices.ContainsFunc(report.Findings, func(f conform.Finding) bool { return f.Rule == "WM-E-041" || f.Rule == "WM-E-042" }), "%+v", report.Findings)
}
