package conform_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/conform"
	"github.com/waymarkio/waymark/schema"
)

// An executor runs the tool of a hold call without a begin, and the tool fails half-way.
func TestChecker_CallFailsWithoutABegin_IsABreach(t *testing.T) {
	r := newTape(t)
	r.start()
	r.answers(1, schema.RequestedCall{ToolCallID: "c1", Name: "tool", Replay: schema.ReplayHold})
	r.write(&schema.ToolFailedData{ToolCallID: "c1", Error: schema.Error{Type: "timeout"}, Attempt: 1, DurationMS: 3000}, 1)
	r.end()
	report := judge(t, r.out.Bytes())
	require.True(t, slices.ContainsFunc(report.Findings, func(f conform.Finding) bool { return f.Rule == "WM-E-071" }), "%+v", report.Findings)
}
