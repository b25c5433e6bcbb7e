package waymarktest_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// working is an executor whose agents wait for the test.
func working(go_ <-chan struct{}) publisher.ExecutorSpec {
	return publisher.ExecutorSpec{Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
		"agent": func(context.Context, *publisher.Run) (publisher.Work, error) {
			return func(ctx context.Context, run *publisher.Run) error {
				if _, err := run.Phase(ctx, "begin", func(context.Context) (any, error) { return 1, nil }); err != nil {
					return err
				}
				select {
				case <-go_:
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}, nil
		},
	}}
}

func submit(t *testing.T, f *publisher.Fleet, run string) {
	t.Helper()
	_, err := f.Submit(t.Context(), publisher.RunSpec{ID: run, Agent: "agent", Task: "work"})
	require.NoError(t, err)
}

func phased(w *waymarktest.World, run string) func() bool {
	return func() bool { return slices.Contains(w.State(run).Head.CompletedPhases, "begin") }
}

// A killed executor is silent once the time has moved; one that lives keeps its run.
func TestAdvance_ExecutorWasKilled_AnotherGoesOn(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{15 * time.Second, time.Hour} {
		w := waymarktest.Start(t)
		end := make(chan struct{})
		lives := w.Serve("lives", working(end), nil)
		submit(t, lives.Fleet(), "kept")
		require.Eventually(t, phased(w, "kept"), time.Minute, time.Millisecond)
		dies := w.Serve("dies", working(nil), nil)
		_, err := dies.Fleet().Start(t.Context(), publisher.RunSpec{ID: "left", Agent: "agent"})
		require.NoError(t, err)
		dies.Kill()
		require.Nil(t, dies.Fleet())
		w.Advance(d)
		w.Await("left", schema.StatusOrphaned, schema.StatusRunning)
		close(end)
		require.Equal(t, schema.StatusCompleted, w.Ended("left").Status)
		require.Equal(t, schema.StatusCompleted, w.Ended("kept").Status)
		left, kept := w.State("left"), w.State("kept")
		require.Len(t, left.Takeovers, 1)
		require.Equal(t, "lives", left.Head.Executor)
		require.Len(t, kept.Takeovers, 1, "its executor lives")
	}
}

// A wait with a deadline expires when the clock passes it.
func TestAdvance_PastAWait_WaitExpires(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	f := w.Fleet("ex-1", nil)
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "agent"})
	require.NoError(t, err)
	expires := time.Now().Add(time.Hour).UTC().Format(time.RFC3339Nano)
	waiting := make(chan error, 1)
	go func() {
		_, err := run.Ask(t.Context(), schema.RunWaitingData{InterruptID: "q1", Reason: schema.WaitExternalSystem, Message: "Go on?", ExpiresAt: expires})
		waiting <- err
	}()
	w.Await("r1", schema.StatusWaiting)
	w.Advance(59 * time.Minute)
	require.Equal(t, schema.StatusWaiting, w.Status("r1"))
	w.Advance(2 * time.Minute)
	require.ErrorIs(t, <-waiting, publisher.ErrInputExpired)
}

// Server and daemon are stopped and started, and the daemon is killed, under an executor that works on.
func TestWorld_EachPartIsKilledAndStopped_NothingIsLost(t *testing.T) {
	t.Parallel()
	w := waymarktest.StartWith(t, waymarktest.Config{Silence: 2 * time.Second})
	f := w.Fleet("ex-1", nil)
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "agent"})
	require.NoError(t, err)
	say := func(text string) {
		require.NoError(t, run.AddMessage(t.Context(), message("user", text)))
	}
	for _, broken := range []struct{ end, start func() }{
		{w.Daemon.Stop, w.Daemon.Start}, {w.Daemon.Kill, w.Daemon.Start}, {w.Server.Stop, w.Server.Start},
	} {
		broken.end()
		broken.end() // once is enough
		w.Advance(time.Millisecond)
		broken.start()
		broken.start()
		say("still here")
	}
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{Status: schema.StatusCompleted}))
	require.Equal(t, schema.StatusCompleted, w.Ended("r1").Status)
	require.Len(t, w.State("r1").Messages, 3)
}

func TestExecutor_Stopped_LeavesItsRuns(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	end := make(chan struct{})
	e := w.Serve("ex-1", working(end), nil)
	submit(t, e.Fleet(), "r1")
	require.Eventually(t, phased(w, "r1"), time.Minute, time.Millisecond)
	e.Stop()
	w.Await("r1", schema.StatusInterrupted)
	close(end)
	e.Start()
	require.Equal(t, schema.StatusCompleted, w.Ended("r1").Status)
}

// Many worlds run at once, each with a run from start to end.
func TestStart_ManyAtOnce_WorldsAreSeparate(t *testing.T) {
	t.Parallel()
	many := 200
	if testing.Short() {
		many = 8
		t.Logf("short: %d worlds of 200", many)
	}
	for range many {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			w := waymarktest.Start(t)
			e := w.Serve("ex-1", publisher.ExecutorSpec{Loops: map[string]publisher.Loop{"agent": {
				Model: func(context.Context, publisher.ModelRequest) (publisher.Answer, error) {
					return publisher.Answer{Message: message("assistant", "done")}, nil
				},
			}}}, nil)
			submit(t, e.Fleet(), "r1")
			require.Equal(t, "done", w.Ended("r1").Summary)
		})
	}
}

func message(role, text string) schema.Message {
	return schema.Message{Role: role, Parts: []schema.Part{{Type: schema.PartText, Content: &text}}}
}
