package publisher_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Two executors die one after the other within a turn without an answer.
func TestTurn_RestartedTwice_ACallIsMadeAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	allow := func(cfg *publisher.Config) {
		cfg.Policy = func(context.Context, *publisher.Run, publisher.ToolCall) (publisher.Decision, error) {
			return publisher.Decision{}, errors.New("the policy's server is away")
		}
	}
	f := w.fleet(allow)
	run := start(t, f, "r1")
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{Messages: []schema.Message{user("go")}})
	require.NoError(t, err)
	call := publisher.ToolCall{ID: "c1", Name: "read", Replay: schema.ReplayPure}
	var n atomic.Int64
	_, err = turn.Tool(t.Context(), call, counted(&n, 1))
	require.Error(t, err)
	w.serve()
	for i := range 2 {
		run, err = w.fleet().Resume(t.Context(), "r1", publisher.ResumeSpec{})
		require.NoError(t, err)
		turn, err = run.StartTurn(t.Context(), publisher.TurnSpec{Number: 1})
		require.NoError(t, err)
		if i == 0 {
			continue // dies right behind the start
		}
	}
	_, err = turn.Tool(t.Context(), call, counted(&n, 1))
	require.NoError(t, err, "the call was abandoned by a start of the turn, and is to be made again")
	require.Equal(t, int64(1), n.Load())
}
