package runs

import (
	"bytes"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/schema"
)

func TestPlanTexts_RequestedCallAndNoTurn_AreCounted(t *testing.T) {
	t.Parallel()
	require.Equal(t, "1 make, 1 hold", story.NotReusedText(&schema.Plan{Calls: []schema.PlanCall{{Action: schema.CallHold}, {Action: schema.CallMake}}}))
}

func TestPrintTable_Terminal_CutsProseAndDropsColumnsAndKeepsIDs(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", schema.MaxName)
	runs := []schema.RunSummary{
		{Run: long, Agent: long, Status: schema.StatusInterrupted, Gapped: true, InDoubt: 12, Epoch: 1 << 31, Turn: 1 << 30, Events: 1 << 60, ToolCalls: 1 << 60},
		{Run: "short", Status: schema.StatusRunning},
		{Run: "wide-界界界界界", Agent: strings.Repeat("界", 60), Status: schema.StatusRunning, UpdatedAt: "2026-01-02T03:04:05Z"},
	}
	for _, width := range []string{"40", "80", "100", "200", ""} {
		var b bytes.Buffer
		require.NoError(t, printRuns(output.NewPage(&b, func(string) string { return width }), runs, time.Unix(0, 0)))
		lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		require.Len(t, lines, 4)
		require.Contains(t, lines[1], long+"  ")
		require.Contains(t, lines[1], "gapped, 12 in doubt")
		require.Contains(t, lines[2], "short")
		require.NotContains(t, b.String(), "…")
		require.Equal(t, width == "", strings.Contains(lines[0], "AGENT"), "a pipe gets all columns: %s", lines[0])
		for _, l := range lines {
			require.Equal(t, strings.TrimRight(l, " "), l)
		}
	}
}

func TestPrintRuns_FailedRun_SaysItsError(t *testing.T) {
	t.Parallel()
	h := schema.Head{Run: "r1", Status: schema.StatusFailed, LastError: &schema.Error{Type: "error", Message: "no route to the provider, " + strings.Repeat("again ", 20)}}
	runs := []schema.RunSummary{schema.SummaryOf(&h)}
	runs[0].Agent = "coder"
	for _, width := range []string{"", "100"} {
		var b bytes.Buffer
		require.NoError(t, printRuns(output.NewPage(&b, func(string) string { return width }), runs, time.Unix(0, 0)))
		require.Contains(t, b.String(), "no route to the provider, again again ag…")
		require.Contains(t, b.String(), "coder")
	}
	h.LastError.Message = ""
	require.Equal(t, "error", schema.SummaryOf(&h).Error)
	h.Status = schema.StatusRunning
	require.Empty(t, schema.SummaryOf(&h).Error, "it goes on")
}

// A narrow page drops the executor first and the agent last.
func TestPrintRuns_NarrowPage_DropsColumnsInOrder(t *testing.T) {
	t.Parallel()
	runs := []schema.RunSummary{{
		Run: "review-7f3a9c2e", Agent: "reviewer", Executor: "worker-host-12", Status: schema.StatusRunning, Epoch: 12, Turn: 34, ToolCalls: 567,
		OpenCalls: 1, Events: 8910, UpdatedAt: "2026-01-02T03:04:05Z",
	}}
	now := time.Date(2026, 1, 2, 3, 5, 0, 0, time.UTC)
	var got []string
	for width := 120; width >= 50; width-- {
		var b bytes.Buffer
		require.NoError(t, printRuns(output.NewPage(&b, func(string) string { return strconv.Itoa(width) }), runs, now))
		line, _, _ := strings.Cut(b.String(), "\n")
		require.LessOrEqual(t, len(line), width)
		if titles := strings.Join(strings.Fields(line), " "); len(got) == 0 || got[len(got)-1] != titles {
			got = append(got, titles)
		}
		if width == 80 {
			require.Equal(t, "RUN AGENT STATUS EPOCH TURN CALLS OPEN EVENTS UPDATED", got[len(got)-1])
		}
	}
	require.Equal(t, []string{
		"RUN AGENT EXECUTOR STATUS EPOCH TURN CALLS OPEN EVENTS UPDATED",
		"RUN AGENT STATUS EPOCH TURN CALLS OPEN EVENTS UPDATED",
		"RUN AGENT STATUS EPOCH TURN CALLS OPEN UPDATED",
		"RUN AGENT STATUS TURN CALLS OPEN UPDATED",
		"RUN AGENT STATUS TURN OPEN UPDATED",
		"RUN STATUS TURN OPEN UPDATED",
	}, got)
}
