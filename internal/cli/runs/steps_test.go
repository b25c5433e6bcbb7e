package runs

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/schema"
)

func TestSteps_Run_NameItsServer(t *testing.T) {
	t.Parallel()
	h := &schema.Head{
		Run: "r", Status: schema.StatusWaiting,
		Interrupts: []schema.OpenInterrupt{
			{InterruptID: "may-i", Reason: schema.WaitToolApproval, Turn: 1, ToolCallID: "c1"},
			{InterruptID: "colour", Reason: schema.WaitHumanInput},
			{InterruptID: "next", Reason: schema.WaitSignal},
			{InterruptID: "doubt", Reason: schema.WaitToolInDoubt, Turn: 1, ToolCallID: "c2"},
		},
		OpenCalls: []schema.OpenCall{{CallKey: schema.CallKey{Turn: 1, ToolCallID: "c2", Occurrence: 1}, State: schema.CallHeld}},
		Handoffs:  []schema.OpenHandoff{{HandoffID: "half", Status: schema.HandoffStatusOffered}},
	}
	p := prompt.Prompt{Flags: "--nats a "}
	commands := 0
	list := append(steps(p, h, true), verifySteps(p, h, &schema.PlanCall{CallKey: h.OpenCalls[0].CallKey, VerifySubject: "v"})...)
	for _, step := range list {
		commands += strings.Count(step, "waymark --nats a ")
		require.NotContains(t, strings.ReplaceAll(step, "waymark --nats a ", ""), "waymark ", step)
	}
	require.Equal(t, 14, commands)
	require.Contains(t, list, "it goes on with the next message: waymark --nats a signal r NAME --text TEXT")
}
