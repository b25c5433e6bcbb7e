package publisher_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// A phase that waits for a person starts behind an answer to its own question alone. An agent cannot ask another question under its id.
func TestApprovalID_QuestionOfTheAgent_IsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "r1")
	for _, id := range []string{"approval.phase.publish", "approval.1.c1.1", "approval."} {
		ask := schema.RunWaitingData{InterruptID: id, Reason: schema.WaitHumanInput, Message: "May I read the news?"}
		_, err := run.Ask(t.Context(), ask)
		for _, err := range []error{err, run.Wait(t.Context(), ask), run.Publish(t.Context(), &ask, 0)} {
			require.ErrorIs(t, err, publisher.ErrConfig)
			require.ErrorContains(t, err, "are reserved for the waits of the SDK")
		}
	}
	require.Empty(t, w.fold("r1").Head.Interrupts)

	started := make(chan error, 1)
	go func() {
		_, err := run.Phase(t.Context(), "publish", func(context.Context) (any, error) { return 1, nil }, publisher.AfterApproval("Publish it?"))
		started <- err
	}()
	require.Eventually(t, func() bool {
		return f.Input(t.Context(), "r1", publisher.Input{InterruptID: "approval.phase.publish", EventID: questionOf(t, f, "r1", "approval.phase.publish"), Payload: raw(`{"decision":"allow"}`), By: "ann"}) == nil
	}, patience, 20*time.Millisecond)
	require.NoError(t, <-started)
}
