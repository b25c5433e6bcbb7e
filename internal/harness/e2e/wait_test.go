package e2e_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// TestWaitingRun_EveryProcessKilled_FinishedByAnother lets a run ask a person, kills and restarts everything, and
// answers with the operator's command.
func TestWaitingRun_EveryProcessKilled_FinishedByAnother(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	const run = "asks"
	w := newWorld(t, shortSilence...)
	settings := workerSettings{Name: "first", Start: []string{run}, Turns: 2, Capacity: 1, Ask: true, Calls: []workerCall{{ID: "tool"}}}
	first := w.worker(t, settings)
	fleet := w.fleet(t, "reader")
	awaitStatus(t, fleet, run, schema.StatusWaiting)
	first.kill9(t)
	w.server.kill9(t)
	w.serve(t, shortSilence...)

	settings.Name, settings.Start = "second", nil
	w.worker(t, settings).ready(t)
	head, err := fleet.Head(t.Context(), run)
	require.NoError(t, err)
	require.Equal(t, schema.StatusWaiting, head.Status)
	require.EqualValues(t, 1, head.Epoch, "no executor takes it while it waits")
	require.Equal(t, "word", head.Interrupts[0].InterruptID)

	// An answer that the schema forbids does not reach the run.
	_, stderr, err := w.try(t, "input", run, "word", "--json-value", `{"word":7}`, "--by", "person")
	require.Error(t, err)
	require.Contains(t, stderr, "/word")
	w.cli(t, "input", run, "word", "--json-value", `{"word":"yes"}`, "--by", "person")

	awaitStatus(t, fleet, run, schema.StatusCompleted)
	state, err := fleet.Get(t.Context(), run)
	require.NoError(t, err)
	require.Equal(t, "second", state.Head.Executor)
	require.EqualValues(t, 2, state.Head.Epoch)
	require.Len(t, state.Turns, 2)
	require.Len(t, state.Calls, 2)
	answers := 0
	for _, e := range w.history(t) {
		if e.Op == opAnswered {
			answers++
			require.JSONEq(t, `{"word":"yes"}`, e.Note)
		}
	}
	require.Equal(t, 1, answers, "the answer reached the run once")
	waits := 0
	require.NoError(t, fleet.Events(t.Context(), run, func(rec schema.Record) error {
		e, err := schema.Decode(rec.Header, rec.Body)
		if err == nil && e.Name() == schema.RunWaiting {
			waits++
		}
		return err
	}))
	require.Equal(t, 1, waits, "it was asked once")
	require.Zero(t, w.deadLetters(t))
}
