package publisher_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// handsOn is a loop whose model hands its work to the reviewer in its first turn.
func handsOn(m *scripted) publisher.Loop {
	m.answers = map[int32]publisher.Answer{1: calls(call("h1", "hand_over", `{"agent":"reviewer","remaining":["READ a.go"]}`))}
	return publisher.Loop{Model: m.model, Tools: []publisher.Tool{publisher.HandoffTool("hand_over", "Hands the work over.", "reviewer")}}
}

func TestHandoffTool_Called_OtherAgentContinuesWithTaskAndOffer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	reviewer := new(scripted)
	s := serveRuns(t, w.fleet(), nil, func(spec *publisher.ExecutorSpec) {
		spec.Capacity = 10
		spec.Loops = map[string]publisher.Loop{"coder": handsOn(new(scripted)), "reviewer": {Model: reviewer.model}}
	})
	_, err := s.Start(t.Context(), publisher.RunSpec{ID: "r1", Task: "MEND THE PARSER"})
	require.NoError(t, err)
	var child string
	for range 2 {
		got := <-s.outcomes
		require.Equal(t, publisher.OutcomeCompleted, got.outcome, "%s: %v", got.run, got.err)
		if got.run != "r1" {
			child = got.run
		}
	}
	parent := w.fold("r1")
	require.Equal(t, "continued by run "+child, parent.Head.Summary)
	require.Equal(t, schema.OutcomeReturned, parent.Calls[0].Outcome)
	require.Equal(t, "reviewer", w.fold(child).Head.Agent)
	told := strings.Join(reviewer.sent()[0], "\n")
	require.Contains(t, told, "MEND THE PARSER")
	require.Contains(t, told, "READ a.go")
}

func TestHandoffTool_AgentThatIsNotNamed_TheModelIsTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := new(scripted)
	loop := handsOn(m)
	m.answers[1].Calls[0].Arguments = raw(`{"agent":"admin","remaining":[]}`)
	run := start(t, w.fleet(), "r1")
	require.NoError(t, loop.Work(t.Context(), run))
	require.Equal(t, "invalid_arguments", w.fold("r1").Calls[0].Error.Type)
	require.Empty(t, w.fold("r1").Head.Handoffs)
	require.ErrorIs(t, publisher.Loop{Model: m.model, Tools: []publisher.Tool{publisher.HandoffTool("hand_over", "")}}.Validate(), publisher.ErrConfig)
}

// The executor dies behind each event of the hand-off: one child has the work, and the run ends.
func TestHandoffTool_EachCrash_OneChild(t *testing.T) {
	t.Parallel()
	for step := range 7 {
		w := newWorld(t)
		w.serve()
		// A whole hand-off, of which the next world gets the first events.
		run := start(t, w.fleet(), "r1")
		require.NoError(t, handsOn(new(scripted)).Work(t.Context(), run))
		log := w.log("r1")
		require.Equal(t, []string{"run.started", "turn.started", "turn.answered", "tool.returned", "handoff.offered", "handoff.accepted", "run.ended"}, names(log))

		after := newWorld(t)
		after.serve()
		for i := range log[:min(step+1, 6)] {
			e, err := schema.Decode(log[i].Header, log[i].Body)
			require.NoError(t, err)
			after.put(e)
		}
		status := schema.StatusInterrupted // the executors of its agent may claim it
		if step == 6 {
			status = schema.StatusRunning // the first executor started it, and has it
			first := after.fleet()
			offers, err := first.Offers(t.Context(), "r1")
			require.NoError(t, err)
			_, err = first.AcceptHandoff(t.Context(), offers[0], publisher.RunSpec{})
			require.NoError(t, err)
		}
		again := resume(t, after.fleet(named("exec-2")), "r1")
		require.NoError(t, handsOn(new(scripted)).Work(context.WithoutCancel(t.Context()), again))
		state := after.requireSameFold(again)
		require.Equal(t, schema.StatusCompleted, state.Head.Status)
		require.Len(t, state.Head.Handoffs, 1)
		child := after.fold(state.Head.Handoffs[0].ChildRun)
		require.Equal(t, status, child.Head.Status)
		require.Equal(t, "reviewer", child.Head.Agent)
	}
}

// A signal comes when the child has the work already: the model is told, and no second child begins.
func TestHandoffTool_SignalBehindAccept_ToldAndOneChild(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	require.NoError(t, handsOn(new(scripted)).Work(t.Context(), start(t, w.fleet(), "r1")))
	log := w.log("r1")

	after := newWorld(t)
	after.daemon()
	for i := range log[:6] {
		e, err := schema.Decode(log[i].Header, log[i].Body)
		require.NoError(t, err)
		after.put(e)
	}
	offers, err := after.fleet().Offers(t.Context(), "r1")
	require.NoError(t, err)
	_, err = after.fleet().AcceptHandoff(t.Context(), offers[0], publisher.RunSpec{})
	require.NoError(t, err)
	require.NoError(t, after.fleet(named("ann")).Signal(t.Context(), "r1", publisher.SignalSpec{Name: "hurry"}))

	m := new(scripted)
	loop := handsOn(m)
	m.answers[2] = calls(call("h2", "hand_over", `{"agent":"reviewer","remaining":["READ a.go"]}`))
	require.NoError(t, loop.Work(context.WithoutCancel(t.Context()), resume(t, after.fleet(named("exec-2")), "r1")))
	state := after.fold("r1")
	require.Equal(t, schema.StatusCompleted, state.Head.Status)
	require.Empty(t, state.Head.Signals)
	require.Contains(t, strings.Join(m.sent()[0], "\n"), "hurry")
	require.Len(t, state.Head.Handoffs, 1)
}

// The signal comes between the offer and the end.
func TestHandoffTool_SignalWhileItHandsOver_IsTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	run := start(t, w.fleet(), "r1")
	sent := make(chan error, 1)
	go func() {
		for t.Context().Err() == nil && !slices.Contains(names(w.log("r1")), "handoff.offered") {
			continue
		}
		sent <- w.fleet(named("ann")).Signal(t.Context(), "r1", publisher.SignalSpec{Name: "hurry"})
	}()
	require.NoError(t, handsOn(new(scripted)).Work(t.Context(), run))
	if err := <-sent; err != nil {
		require.ErrorIs(t, err, publisher.ErrRunEnded)
	}
	require.Empty(t, w.fold("r1").Head.Signals)
	require.Len(t, w.fold("r1").Head.Handoffs, 1)
}

// The other agent has tools of its own, and the executors that the labels choose.
func TestHandoffTool_RunWithContractAndLabels_ChildHasLimitsAndLabels(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	writer, reviewer := handsOn(new(scripted)), new(scripted)
	writer.Complete = "finish"
	writer.Tools = append(writer.Tools, publisher.NewTool("finish", "", publisher.Pure, func(context.Context, struct{}) (string, error) { return "", nil }))
	s := serveRuns(t, w.fleet(), nil, func(spec *publisher.ExecutorSpec) {
		spec.Capacity = 10
		spec.Loops = map[string]publisher.Loop{"coder": writer, "reviewer": {Model: reviewer.model}}
	})
	_, err := s.Start(t.Context(), publisher.RunSpec{ID: "r1", Task: "MEND", Complete: "finish", MaxTurns: 9, Labels: map[string]string{"team": "blue"}})
	require.NoError(t, err)
	for range 2 {
		got := <-s.outcomes
		require.Equal(t, publisher.OutcomeCompleted, got.outcome, "%s: %v", got.run, got.err)
	}
	child := w.fold(w.fold("r1").Head.Handoffs[0].ChildRun)
	require.Equal(t, map[string]string{"team": "blue"}, child.Started.Labels)
	require.Equal(t, int32(9), child.Head.MaxTurns)
	require.Empty(t, child.Head.CompletionTool)
}
