package e2e_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// The service must refuse several actions on one run, one after the other.
func TestExecutor_ForbiddenOperation_TypedError(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	w := newWorld(t)
	older, newer := w.fleet(t, "older"), w.fleet(t, "newer")
	question := schema.RunWaitingData{
		InterruptID: "q", Reason: schema.WaitHumanInput,
		ResponseSchema: []byte(`{"type":"object","properties":{"plots":{"type":"array","items":{"type":"integer"}}},"required":["plots"]}`),
	}
	tests := []struct {
		name string
		// refused does it, on a run that was started.
		refused func(t *testing.T, run *publisher.Run) error
		is      error
		// says must be in the error's text, hint in its next step.
		says, hint string
	}{
		{"a resumed run asks for something else", func(t *testing.T, run *publisher.Run) error {
			t.Helper()
			turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
			require.NoError(t, err)
			asked := publisher.ToolCall{ID: "c", Name: "water", Arguments: []byte(`{"bed":"A"}`), Replay: schema.ReplayPure}
			_, err = turn.Answer(t.Context(), publisher.Answer{Message: text("assistant", "It is dry."), Calls: []publisher.ToolCall{asked}})
			require.NoError(t, err)
			again, err := newer.Resume(t.Context(), run.ID(), publisher.ResumeSpec{})
			require.NoError(t, err)
			_, err = again.OpenTurn().Tool(t.Context(), publisher.ToolCall{ID: "c", Name: "water", Arguments: []byte(`{"bed":"B"}`)}, nil)
			return err
		}, publisher.ErrDiverged, `water({"bed":"A"}) and is now requested as water({"bed":"B"})`, "request the recorded call"},
		{"an active run is claimed", func(t *testing.T, run *publisher.Run) error {
			t.Helper()
			_, err := newer.Claim(t.Context(), publisher.ClaimSpec{Labels: map[string]string{"id": run.ID()}})
			return err
		}, publisher.ErrNothing, "no run to claim", "ask again in"},
		{"a run is claimed twice", func(t *testing.T, run *publisher.Run) error {
			t.Helper()
			require.NoError(t, run.Interrupt(t.Context(), "shutdown"))
			spec := publisher.ClaimSpec{Labels: map[string]string{"id": run.ID()}}
			claim(t, newer, spec)
			_, err := older.Claim(t.Context(), spec)
			return err
		}, publisher.ErrNothing, "no run to claim", "ask again in"},
		{"an executor continues a run that was claimed from it", func(t *testing.T, run *publisher.Run) error {
			t.Helper()
			require.NoError(t, run.Interrupt(t.Context(), "shutdown"))
			claim(t, newer, publisher.ClaimSpec{Labels: map[string]string{"id": run.ID()}})
			return run.AddMessage(t.Context(), text("user", "too late"))
		}, publisher.ErrFenced, "newer holds epoch 2", "stop working on the run"},
		{"an answer to something that is not waited for", func(t *testing.T, run *publisher.Run) error {
			t.Helper()
			require.NoError(t, run.Wait(t.Context(), question))
			return newer.Input(t.Context(), run.ID(), publisher.Input{InterruptID: "other", Payload: []byte(`{"plots":[1]}`), By: "person"})
		}, publisher.ErrUnknownInterrupt, `"other"`, `it waits for "q"`},
		{"an answer that fails its schema", func(t *testing.T, run *publisher.Run) error {
			t.Helper()
			require.NoError(t, run.Wait(t.Context(), question))
			return newer.Input(t.Context(), run.ID(), publisher.Input{InterruptID: "q", Payload: []byte(`{"plots":[1,"two"]}`), By: "person"})
		}, publisher.ErrInvalidAnswer, "/plots/1", "Correct the answer"},
		{"a hand-off is accepted twice", func(t *testing.T, run *publisher.Run) error {
			t.Helper()
			_, err := run.Handoff("task_complete").Offer(t.Context())
			require.NoError(t, err)
			offers, err := newer.Offers(t.Context(), run.ID())
			require.NoError(t, err)
			require.Len(t, offers, 1)
			_, err = newer.AcceptHandoff(t.Context(), offers[0], publisher.RunSpec{ID: "child-one", Agent: "a"})
			require.NoError(t, err)
			_, err = older.AcceptHandoff(t.Context(), offers[0], publisher.RunSpec{ID: "child-two", Agent: "a"})
			return err
		}, publisher.ErrHandoffTaken, "child-one", "leave it to that executor"},
		{"a hand-off that was never offered", func(t *testing.T, run *publisher.Run) error {
			t.Helper()
			return newer.DeclineHandoff(t.Context(), publisher.Offer{Run: run.ID(), HandoffID: "no-such"}, "person", "no")
		}, publisher.ErrUnknownHandoff, "no-such", "waymark.get shows"},
	}
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			id := "run-" + string(rune('a'+i))
			run, err := older.Start(t.Context(), publisher.RunSpec{ID: id, Agent: "a", Labels: map[string]string{"id": id}})
			require.NoError(t, err)
			err = test.refused(t, run)
			require.ErrorIs(t, err, test.is)
			require.NotEmpty(t, test.hint)
			require.ErrorContains(t, err, test.says)
			require.ErrorContains(t, err, test.hint)
			if said, ok := errors.AsType[*schema.ServiceError](err); ok {
				require.NotEmpty(t, said.Hint, "%v", err)
			}
			t.Log(err)
		})
	}
	require.Zero(t, w.deadLetters(t))
}

// claim claims one run; the daemon may learn of it a moment after the log.
func claim(t *testing.T, fleet *publisher.Fleet, spec publisher.ClaimSpec) *publisher.Run {
	t.Helper()
	var run *publisher.Run
	require.Eventually(t, func() bool {
		var err error
		run, err = fleet.Claim(t.Context(), spec)
		if !errors.Is(err, publisher.ErrNothing) {
			require.NoError(t, err)
		}
		return err == nil
	}, patience, 50*time.Millisecond, "nothing to claim")
	return run
}
