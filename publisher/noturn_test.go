package publisher_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Calls of a run in which no turn was started. The executor is killed in the last one, and the next executor runs the
// program again: each call has its documented key at both.
func TestTool_NoTurnStarted_TakeoverHasSameKeys(t *testing.T) {
	t.Parallel()
	call := func(id string, occurrence int) publisher.ToolCall {
		return publisher.ToolCall{ID: id, Name: "pay", Replay: publisher.Idempotent, Occurrence: occurrence}
	}
	calls := []publisher.ToolCall{call("a", 1), call("b", 1), call("a", 2), call("c", 1)}
	want := []string{"r1.1.a.1", "r1.1.b.1", "r1.1.a.2", "r1.1.c.1"}
	// play runs the program, and cuts the last call off.
	play := func(t *testing.T, run *publisher.Run, cut bool) (keys []string) {
		t.Helper()
		ctx, die := context.WithCancel(t.Context())
		defer die()
		for i, c := range calls {
			_, err := run.Turn(0).Tool(ctx, c, func(ctx context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
				keys = append(keys, inv.IdempotencyKey)
				if cut && i == len(calls)-1 {
					die()
				}
				return publisher.ToolResult{}, context.Cause(ctx)
			})
			if cut && i == len(calls)-1 {
				require.ErrorIs(t, err, context.Canceled)
			} else {
				require.NoError(t, err)
			}
		}
		return keys
	}
	tests := map[string]func(t *testing.T, run *publisher.Run) []string{
		"Turn.Tool": func(t *testing.T, run *publisher.Run) []string {
			t.Helper()
			return play(t, run, true)
		},
		// A recorder writes the events itself, names no turn, and makes the keys by the page.
		"events": func(t *testing.T, run *publisher.Run) []string {
			t.Helper()
			for i, c := range calls {
				require.NoError(t, run.Publish(t.Context(), &schema.ToolCalledData{ToolCallID: c.ID, Name: c.Name, Replay: c.Replay}, 0))
				if i < len(calls)-1 {
					require.NoError(t, run.Publish(t.Context(), &schema.ToolReturnedData{ToolCallID: c.ID}, 0))
				}
			}
			return want
		},
	}
	for name, first := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.serve()
			require.Equal(t, want, first(t, start(t, w.fleet(), "r1")))
			two := resume(t, w.fleet(), "r1")
			require.Equal(t, want[3:], play(t, two, false), "only the call in doubt runs again")
			require.NoError(t, two.Turn(0).End(t.Context(), publisher.TurnEnd{}))
			require.Zero(t, w.requireSameFold(two).Head.Counts.DeadLetters)
		})
	}
}
