package runs

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/lineage"
	"github.com/waymarkio/waymark/schema"
)

func TestTree_Print_IsDrawnWithinItsWidth(t *testing.T) {
	t.Parallel()
	node := func(run string, depth int, tie string) lineage.Node {
		n := lineage.Node{Run: run, Agent: "coder", Status: schema.StatusRunning, Text: "running", Depth: depth, Tie: tie}
		if tie == lineage.TieParent {
			n.Parent = &schema.Parent{Turn: 2, ToolCallID: "call-1"}
		}
		return n
	}
	reply := lineage.Tree{Run: "b", Root: "a", Runs: []lineage.Node{
		node("a", 0, ""), node("b", 1, lineage.TieParent), node("c", 2, lineage.TieHandoff), node("d", 3, lineage.TieResumed), node("e", 2, lineage.TieParent),
		node("f", 1, lineage.TieParent),
	}}
	reply.Runs[1].Handoffs = []schema.OpenHandoff{
		{HandoffID: "half", Status: schema.HandoffStatusAccepted, Kind: schema.HandoffTransfer, Reason: "error", ChildRun: "c", By: "x"},
		{HandoffID: "rest", Status: schema.HandoffStatusOffered, Kind: schema.HandoffTransfer, Reason: "error", NextAgent: "roofer"},
	}
	reply.Runs[2].Handoff = &schema.HandoffSource{Run: "b", HandoffID: "half"}
	reply.Runs[5].Missing = true
	var stdout bytes.Buffer
	a := &base.App{Stdout: &stdout, Now: time.Now}
	require.NoError(t, printTree(a, &reply))
	require.Equal(t, strings.Join([]string{
		"RUN                    AGENT   STATUS             TURN  BY",
		"a                      coder   running",
		"├─ b ◀                 coder   running                  call call-1 of turn 2",
		"│  │  · hand-off rest  roofer  offered                  transfer",
		"│  ├─ c                coder   running                  hand-off half, accepted",
		"│  │  └─ d             coder   running                  continues it",
		"│  └─ e                coder   running                  call call-1 of turn 2",
		"└─ f                   coder   not in this fleet        call call-1 of turn 2",
		"",
	}, "\n"), stdout.String())

	deep := lineage.Tree{Run: "r0", Root: "r0"}
	for i := range 60 {
		deep.Runs = append(deep.Runs, node(fmt.Sprintf("r%d", i), i, lineage.TieParent))
	}
	stdout.Reset()
	require.NoError(t, printTree(a, &deep))
	require.NotContains(t, stdout.String(), "…")
	stdout.Reset()
	a.Stdout = output.NewPage(&stdout, func(string) string { return "80" })
	require.NoError(t, printTree(a, &deep))
	require.Regexp(t, `└─ r59 +running`, stdout.String(), "its id is whole")
}
