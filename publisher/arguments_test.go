package publisher_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// An answer has arguments that are no JSON. Handed to Tool, the call gives the recorded failure, for the model to read.
func TestAnswer_ArgumentsAreNoJSON_ToolReturnsTheRecordedFailure(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct{ id, arguments string }{
		{"cut", `{"path":"a`}, {"surrogate", `{"path":"\ud800"}`}, {"twice", `{"path":1,"path":2}`},
	} {
		run := start(t, w.fleet(), c.id)
		turn := openTurn(t, run)
		call := publisher.ToolCall{ID: "c1", Name: "read", Arguments: raw(c.arguments), Replay: schema.ReplayPure}
		answers(t, turn, call)
		var n atomic.Int64
		_, err := turn.Tool(t.Context(), call, counted(&n, 1))
		require.Zero(t, n.Load())
		if !errors.Is(err, publisher.ErrToolFailed) {
			t.Errorf("%s: Tool returned %v", c.id, err)
		}
	}
}
