package waymarktest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestAwait_RunThatDoesNotGetThere_FailureSaysWhereItIs(t *testing.T) {
	t.Parallel()
	require.Equal(t, "not there", (&standing{&schema.Head{}}).String())
	x := schema.Head{Run: "r1", Status: schema.StatusRunning, Epoch: 2, Turn: 3, Executor: "box-1", LastError: &schema.Error{Message: "it broke"}}
	look, pay := schema.OpenCall{Name: "look"}, schema.OpenCall{Name: "pay", State: schema.CallInDoubt}
	look.ToolCallID, pay.ToolCallID = "a", "b"
	x.OpenCalls = []schema.OpenCall{look, pay}
	require.Equal(t, "running in epoch 2, turn 3, with executor box-1, call a of look open, call b of pay open and in doubt, last error: it broke", (&standing{&x}).String())
}
