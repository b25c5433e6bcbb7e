package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestSubmit_ARunForOthers_IsWorkedOnOnceAndItsResultIsThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "submit", `{"result":"`+strings.Repeat("x", 300<<10)+`"}`))}}
	worker := serveRuns(t, w.fleet(), nil, func(spec *publisher.ExecutorSpec) {
		spec.Capacity = 0
		spec.Loops = map[string]publisher.Loop{"coder": {Model: m.model, Tools: []publisher.Tool{submit()}, Complete: "submit"}}
	})
	f := w.fleet(func(c *publisher.Config) { c.Executor = "submitter" })
	spec := publisher.RunSpec{ID: "r1", Task: "write it", ThreadID: "t1"}
	var all sync.WaitGroup
	var began atomic.Int64
	for range 4 {
		all.Go(func() {
			fresh, err := f.Submit(t.Context(), spec)
			require.NoError(t, err)
			if fresh {
				began.Add(1)
			}
		})
	}
	result, err := f.Result(t.Context(), "r1")
	require.NoError(t, err)
	all.Wait()
	require.Equal(t, schema.StatusCompleted, result.Status)
	require.Equal(t, "a", result.CompletedBy)
	require.Len(t, result.Output, 300<<10+2)
	require.Equal(t, publisher.OutcomeCompleted, worker.outcome(t, "r1").outcome)
	require.EqualValues(t, 1, began.Load())
	fresh, err := f.Submit(t.Context(), spec)
	require.NoError(t, err, "it has ended since")
	require.False(t, fresh)
	require.Len(t, m.asked, 1)

	for _, other := range []publisher.RunSpec{
		{ID: "r1", Task: "write another", ThreadID: "t1"},
		{ID: "r1", Task: "write it"},
		{ID: "r1", Task: "write it", ThreadID: "t1", Agent: "tester"},
		{ID: "r1", Task: "write it", ThreadID: "t1", MaxTurns: 3},
		{ID: "r1", Task: "write it", ThreadID: "t1", Labels: map[string]string{"a": "b"}},
		{ID: "r1", Task: "write it", ThreadID: "t1", Model: "m"},
		{ID: "r1", Task: "write it", ThreadID: "t1", Parent: &schema.Parent{Run: "r0"}},
	} {
		_, err := f.Submit(t.Context(), other)
		require.ErrorIs(t, err, publisher.ErrConflict)
	}
	_, err = f.Submit(t.Context(), publisher.RunSpec{ID: "no id"})
	require.ErrorIs(t, err, publisher.ErrConfig)
	_, err = f.Result(t.Context(), "r2")
	require.ErrorIs(t, err, publisher.ErrRunNotFound)
}

// The start was stored, and the submitter did not hear of it or did not come to let the run go. Submitting again does that, and a run that
// this process works on stays in its hands.
func TestSubmit_StartedBefore_IsLetGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	other := w.fleet(func(c *publisher.Config) { c.Executor = "exec-2" })
	spec := publisher.RunSpec{ID: "r1", Task: "write it"}
	run := start(t, f, "r1")
	again := func(f *publisher.Fleet, spec publisher.RunSpec) {
		fresh, err := f.Submit(t.Context(), spec)
		require.NoError(t, err)
		require.False(t, fresh)
	}
	again(other, spec)
	again(f, spec)
	require.Equal(t, schema.StatusRunning, w.fold("r1").Head.Status, "a handle of this process works on it")
	require.NoError(t, run.AddMessage(t.Context(), user("hello")))

	began := schema.Writer{Fleet: "default", Run: "r2", Executor: "exec-1", Epoch: 1}
	e, err := began.Event(&schema.RunStartedData{Agent: "coder", Executor: "exec-1", Instance: f.Instance(), Task: "write it"}, 0, time.Now(), 0)
	require.NoError(t, err)
	w.put(e)
	again(other, publisher.RunSpec{ID: "r2", Task: "write it"})
	require.Equal(t, schema.StatusRunning, w.fold("r2").Head.Status, "its executor lives, or is found silent")
	again(f, publisher.RunSpec{ID: "r2", Task: "write it"})
	require.Equal(t, schema.StatusInterrupted, w.fold("r2").Head.Status)
}

func TestResult_ARunThatFailed_SaysWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "r1")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := f.Result(ctx, "r1")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	done := make(chan error, 1)
	go func() {
		result, err := f.Result(t.Context(), "r1")
		if err == nil && (result.Status != schema.StatusFailed || result.Summary != "half done" || result.Error.Message != "no paper") {
			err = fmt.Errorf("%+v", result)
		}
		done <- err
	}()
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{Summary: "half done", Error: &schema.Error{Type: "error", Message: "no paper"}}))
	require.NoError(t, <-done)
}

func TestResult_NoDaemon_WaitsForOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet(func(c *publisher.Config) { c.RequestTimeout = 200 * time.Millisecond })
	run := start(t, f, "r1")
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{Summary: "done"}))
	done := make(chan error, 1)
	go func() {
		result, err := f.Result(t.Context(), "r1")
		if err == nil && result.Summary != "done" {
			err = errors.New(result.Summary)
		}
		done <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := f.Result(ctx, "r1")
	require.ErrorIs(t, err, context.DeadlineExceeded) // whether a question was under way then is a matter of time
	w.serve()
	require.NoError(t, <-done)
}
