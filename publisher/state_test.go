package publisher_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

type todo struct {
	Text string `json:"text"`
	Done bool   `json:"done,omitzero"`
}

// valueOf reads a value of a run's state, which must be there.
func valueOf[T any](t *testing.T, run *publisher.Run, key string) (v T) {
	t.Helper()
	found, err := run.GetState(t.Context(), key, &v)
	require.NoError(t, err)
	require.True(t, found, key)
	return v
}

func keysIn(run *publisher.Run) (keys []string) {
	for _, v := range run.State().Values {
		keys = append(keys, v.Key)
	}
	return keys
}

func TestState_ExecutorDies_TheNextOneHasIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder", State: map[string]any{"plan": []todo{{Text: "look"}}, "note": nil}})
	require.NoError(t, err)
	require.Equal(t, []todo{{Text: "look"}}, valueOf[[]todo](t, run, "plan"))
	require.NoError(t, run.SetState(t.Context(), "plan", []todo{{Text: "look", Done: true}, {Text: "mend"}}))
	require.NoError(t, run.SetState(t.Context(), "big", json.RawMessage(`9007199254740993`)))
	require.NoError(t, run.SetState(t.Context(), "gone", 1))
	require.NoError(t, run.DeleteState(t.Context(), "gone"))
	require.NoError(t, run.DeleteState(t.Context(), "never there"))
	long := strings.Repeat("a long text ", 200<<10/12) // it goes to the blob store
	require.NoError(t, run.SetState(t.Context(), "long", long))

	next, err := w.fleet(func(c *publisher.Config) { c.Executor = "exec-2" }).Resume(t.Context(), "r1", publisher.ResumeSpec{})
	require.NoError(t, err)
	require.Equal(t, []string{"big", "long", "note", "plan"}, keysIn(next))
	require.Equal(t, []todo{{Text: "look", Done: true}, {Text: "mend"}}, valueOf[[]todo](t, next, "plan"))
	require.Equal(t, "9007199254740993", string(valueOf[jsontext.Value](t, next, "big")), "a number is as it was recorded")
	require.Equal(t, "null", string(valueOf[jsontext.Value](t, next, "note")))
	require.Equal(t, long, valueOf[string](t, next, "long"))
	found, err := next.GetState(t.Context(), "gone", new(int))
	require.NoError(t, err)
	require.False(t, found)
	_, err = next.GetState(t.Context(), "plan", new(int))
	require.ErrorContains(t, err, `state "plan" of run r1`)
}

func TestState_ForkPointAndRewind_HaveItAsItWasThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder", State: map[string]any{"n": 0}})
	require.NoError(t, err)
	for n := 1; n <= 3; n++ {
		require.NoError(t, run.SetState(t.Context(), "n", n)) // records 2 to 4
	}
	at := schema.Point{Kind: schema.PointRecord, Number: 3}
	there, err := f.GetAt(t.Context(), "r1", at)
	require.NoError(t, err)
	require.Equal(t, "2", string(there.Value("n").Value))
	fork, err := f.Fork(t.Context(), publisher.ForkSpec{ID: "r2", Base: "r1", At: at})
	require.NoError(t, err)
	require.Equal(t, 2, valueOf[int](t, fork, "n"))
	resumed, err := f.Resume(t.Context(), "r1", publisher.ResumeSpec{At: schema.Point{Kind: schema.PointRecord, Number: 1}})
	require.NoError(t, err)
	require.Equal(t, 0, valueOf[int](t, resumed, "n"), "the run began with it")
}

func TestState_HandOff_TheNextRunBeginsWithIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "r1")
	require.NoError(t, run.SetState(t.Context(), "todo", []todo{{Text: "mend"}}))
	long := strings.Repeat("long ", 40<<10)
	require.NoError(t, run.SetState(t.Context(), "long", long))
	child, err := run.Continue(t.Context(), run.Handoff(schema.HandoffOfferedData{Reason: "threshold_critical"}), publisher.RunSpec{ID: "r2"})
	require.NoError(t, err)
	require.Equal(t, []todo{{Text: "mend"}}, valueOf[[]todo](t, child, "todo"))

	// Another executor reads the offer, and the values from where the offering run has them.
	offering := start(t, f, "r3")
	require.NoError(t, offering.SetState(t.Context(), "long", long))
	_, err = offering.Handoff(schema.HandoffOfferedData{Reason: "task_complete", NextAgent: "tester"}).Offer(t.Context())
	require.NoError(t, err)
	other := w.fleet(func(c *publisher.Config) { c.Executor = "exec-2" })
	offers, err := other.Offers(t.Context(), "r3")
	require.NoError(t, err)
	taken, err := other.AcceptHandoff(t.Context(), offers[0], publisher.RunSpec{ID: "r4"})
	require.NoError(t, err)
	require.Equal(t, long, valueOf[string](t, taken, "long"))
}

func TestState_InATool_IsThatOfItsRun(t *testing.T) {
	t.Parallel()
	require.Nil(t, publisher.InvocationOf(t.Context()).Run())
	run := unrecorded(t, publisher.Config{Heartbeat: -1}, publisher.RunSpec{})
	plan := publisher.NewTool("plan", "Writes the plan down.", publisher.Pure, func(ctx context.Context, in todo) (string, error) {
		return "noted", publisher.InvocationOf(ctx).Run().SetState(ctx, "plan", in)
	})
	answers := []publisher.Answer{
		{Message: assistant(schema.Text("I plan.")), Calls: []publisher.ToolCall{{ID: "c1", Name: "plan", Arguments: raw(`{"text":"look"}`)}}},
		{Message: assistant(schema.Text("done"))},
	}
	loop := publisher.Loop{Tools: []publisher.Tool{plan}, Model: func(_ context.Context, q publisher.ModelRequest) (publisher.Answer, error) {
		return answers[q.Turn-1], nil
	}}
	err := loop.Work(t.Context(), run)
	require.NoError(t, err)
	require.Equal(t, todo{Text: "look"}, valueOf[todo](t, run, "plan"))
	require.Equal(t, int32(1), run.State().Value("plan").Turn)
}

func TestState_WhatCannotBeDone_IsAnErrorThatNamesIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder"})
	require.NoError(t, err)
	require.ErrorIs(t, run.SetState(t.Context(), "", 1), publisher.ErrConfig)
	require.ErrorContains(t, run.SetState(t.Context(), "f", func() {}), `state "f": value of type func()`)
	require.Error(t, run.SetState(t.Context(), strings.Repeat("k", schema.MaxIdentifier+1), 1))
	require.NoError(t, run.SetState(t.Context(), "a", 1), "and the run goes on")
	_, err = f.Start(t.Context(), publisher.RunSpec{ID: "r2", Agent: "coder", State: map[string]any{"": 1}})
	require.ErrorIs(t, err, publisher.ErrConfig)
}

func TestSubmit_OtherState_IsAnotherRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	spec := publisher.RunSpec{ID: "r1", Agent: "coder", State: map[string]any{"n": 1, "list": []int{1}}}
	for _, fresh := range []bool{true, false} {
		got, err := f.Submit(t.Context(), spec)
		require.NoError(t, err)
		require.Equal(t, fresh, got)
	}
	spec.State = map[string]any{"n": 2, "list": []int{1}}
	_, err := f.Submit(t.Context(), spec)
	require.ErrorContains(t, err, "run r1 already exists with another state")
}
