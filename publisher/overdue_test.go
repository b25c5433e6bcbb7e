package publisher_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// A tool, and then a model, that ignore the end of their context.
func TestHeartbeat_WorkBeyondItsTimeout_IsNamedUntilItReturns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	next := w.heartbeats()
	f := w.fleet(func(c *publisher.Config) { c.Heartbeat = 20 * time.Millisecond })
	release, stuck := make(chan struct{}), make(chan struct{}, 10)
	asked := 0
	loop := publisher.Loop{
		Model: func(context.Context, publisher.ModelRequest) (publisher.Answer, error) {
			if asked++; asked == 1 {
				return calls(call("c1", "look", `{"at":1}`)), nil
			}
			stuck <- struct{}{}
			<-release
			return publisher.Answer{Message: assistant(schema.Text("Done."))}, nil
		},
		Tools: []publisher.Tool{publisher.NewTool("look", "", publisher.Pure, func(context.Context, place) (string, error) {
			stuck <- struct{}{}
			<-release
			return "seen", nil
		})},
		ToolTimeout: time.Millisecond, ModelTimeout: time.Millisecond,
	}
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- loop.Work(t.Context(), run) }()
	overdue := func() (h schema.Heartbeat) {
		require.Eventually(t, func() bool {
			h = next()
			return len(h.Overdue) > 0
		}, patience, time.Millisecond)
		return h
	}
	<-stuck
	h := overdue()
	require.Len(t, h.Overdue, 1)
	require.NotEmpty(t, h.Overdue[0].Since)
	h.Overdue[0].Since = ""
	require.Equal(t, schema.Overdue{Run: "r1", Epoch: 1, Turn: 1, ToolCallID: "c1", Occurrence: 1, Tool: "look", LimitMS: 1}, h.Overdue[0])
	release <- struct{}{}
	<-stuck
	require.Eventually(t, func() bool {
		h := next()
		return len(h.Overdue) == 1 && h.Overdue[0].Turn == 2
	}, patience, time.Millisecond)
	h = overdue()
	h.Overdue[0].Since = ""
	require.Equal(t, schema.Overdue{Run: "r1", Epoch: 1, Turn: 2, LimitMS: 1}, h.Overdue[0])
	release <- struct{}{}
	require.NoError(t, <-done)
	require.Eventually(t, func() bool { return len(next().Overdue) == 0 }, patience, time.Millisecond)
}
