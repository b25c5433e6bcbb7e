package publisher_test

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestPlan_Resume_Same(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	turn := openTurn(t, start(t, f, "r1"))
	var n atomic.Int64
	read := publisher.ToolCall{ID: "c1", Name: "read", Replay: schema.ReplayPure}
	answers(t, turn, read, publisher.ToolCall{ID: "c2", Name: "deploy"})
	_, err := turn.Tool(t.Context(), read, counted(&n, "text"))
	require.NoError(t, err)
	require.NoError(t, turn.Begin(t.Context(), schema.CallKey{Turn: 1, ToolCallID: "c2", Occurrence: 1}))
	w.serve()
	before := len(w.log("r1"))
	plan, err := f.Plan(t.Context(), "r1")
	require.NoError(t, err)
	require.Len(t, w.log("r1"), before, "a plan takes nothing over")
	require.Equal(t, schema.CallReuse, plan.Reused[0].Action)
	require.Equal(t, schema.CallHold, plan.Calls[0].Action)

	run := resume(t, f, "r1")
	require.Equal(t, plan.Epoch, run.Epoch())
	require.Equal(t, plan.Turn.Turn, run.OpenTurn().Number())
	result, err := run.Turn(1).Tool(t.Context(), read, counted(&n, "text"))
	require.NoError(t, err)
	require.True(t, result.Recorded)
	_, err = run.Turn(1).Tool(t.Context(), publisher.ToolCall{ID: "c2", Name: "deploy"}, counted(&n, "done"))
	var held *publisher.HeldError
	require.ErrorAs(t, err, &held)
	for _, command := range plan.Calls[0].Commands {
		require.Contains(t, held.Command, command)
	}

	_, err = f.Plan(t.Context(), "r2")
	require.ErrorIs(t, err, publisher.ErrRunNotFound)
}
