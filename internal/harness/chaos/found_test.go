//go:build waymark_failpoints

package chaos_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/failpoint"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// An event whose answer was lost, and after which another executor took the run over, is in the log: its call must
// not report otherwise. The next call reports that the handle is fenced. (Seed 19.)
func TestHandle_StoredEvent_NotReportedFenced(t *testing.T) {
	w, err := newWorld(t.Context(), &plan{executors: 2, runs: 1, batch: 4, seal: 100})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.close()) })
	x, other := w.executors[0], w.executors[1]
	run, err := x.fleet.Start(t.Context(), publisher.RunSpec{ID: "run-1"})
	require.NoError(t, err)
	var once atomic.Bool
	ctx := failpoint.With(t.Context(), func(ctx context.Context, p failpoint.Point) error {
		if p != failpoint.AfterPublish || !once.CompareAndSwap(false, true) {
			return nil
		}
		_, err := other.fleet.Resume(context.WithoutCancel(t.Context()), "run-1", publisher.ResumeSpec{RequestID: "q1"})
		if err != nil {
			return err
		}
		return errLost
	})
	said := schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("stored")}}
	require.NoError(t, run.AddMessage(ctx, said), "it is stored")
	require.True(t, once.Load())
	require.ErrorIs(t, run.AddMessage(ctx, said), publisher.ErrFenced)
	state, err := other.fleet.Get(t.Context(), "run-1")
	require.NoError(t, err)
	require.Len(t, state.Messages, 1)
	require.EqualValues(t, 2, state.Head.Epoch)
}

// A tool whose call was stored just before another took the run over is the other's: the handle knows that it is fenced, and runs no
// tool any more. The call is in doubt there.
func TestHandle_KnownFenced_RunsNoTool(t *testing.T) {
	w, err := newWorld(t.Context(), &plan{executors: 2, runs: 1, batch: 4, seal: 100})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.close()) })
	x, other := w.executors[0], w.executors[1]
	run, err := x.fleet.Start(t.Context(), publisher.RunSpec{ID: "run-1"})
	require.NoError(t, err)
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{Messages: []schema.Message{{Role: schema.RoleUser}}})
	require.NoError(t, err)
	var once atomic.Bool
	ctx := failpoint.With(t.Context(), func(_ context.Context, p failpoint.Point) error {
		if p != failpoint.AfterPublish || !once.CompareAndSwap(false, true) {
			return nil
		}
		if _, err := other.fleet.Resume(context.WithoutCancel(t.Context()), "run-1", publisher.ResumeSpec{RequestID: "q1"}); err != nil {
			return err
		}
		return errLost
	})
	ran := false
	_, err = turn.Tool(ctx, publisher.ToolCall{ID: "c1", Name: "charge", Replay: schema.ReplayHold}, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		ran = true
		return publisher.Result("charged")
	})
	require.ErrorIs(t, err, publisher.ErrFenced)
	require.True(t, once.Load())
	require.False(t, ran)
	state, err := other.fleet.Get(t.Context(), "run-1")
	require.NoError(t, err)
	require.Len(t, state.Head.OpenCalls, 1)
	require.True(t, state.Head.OpenCalls[0].State.InDoubt())
}
