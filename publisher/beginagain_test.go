package publisher_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// A process began a hold call by Begin and died in its tool. It is started again with the same request id, so that its epoch is the same
// and the call is not in doubt. Tool and Begin both hold it.
func TestBegin_RepeatedTakeover_CallThatWasBegunIsHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	start(t, f, "r1")
	w.serve()
	spec := publisher.ResumeSpec{Reason: "restart", RequestID: "q1"}
	one, err := f.Resume(t.Context(), "r1", spec)
	require.NoError(t, err)
	turn := openTurn(t, one)
	call := publisher.ToolCall{ID: "a", Name: "mail", Replay: schema.ReplayHold}
	answers(t, turn, call)
	key := one.Head().OpenCalls[0].CallKey
	require.NoError(t, turn.Begin(t.Context(), key), "the tool runs, and the process dies")
	two, err := f.Resume(t.Context(), "r1", spec)
	require.NoError(t, err)
	require.Equal(t, one.Head().Epoch, two.Head().Epoch)
	_, err = two.OpenTurn().Tool(t.Context(), call, nil)
	require.ErrorIs(t, err, publisher.ErrHeld)
	require.ErrorIs(t, two.OpenTurn().Begin(t.Context(), key), publisher.ErrHeld, "the tool would run twice")
}
