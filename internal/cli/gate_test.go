package cli

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// gated runs a phase that needs an approval, and counts how often its work ran.
func gated(t *testing.T, run *publisher.Run, name string, ran *int) (done <-chan error, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	result := make(chan error, 1)
	go func() {
		_, err := run.Phase(ctx, name, func(context.Context) (any, error) {
			*ran++
			return "released", nil
		}, publisher.AfterApproval("Release to production?"))
		result <- err
	}()
	return result, cancel
}

func result(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(startLimit):
		require.FailNow(t, "the phase does not end")
		return nil
	}
}

// offered is the command of the inbox that says this of what one run asks.
func (w *world) offered(word string) []string {
	w.t.Helper()
	_, out, _ := w.ask("100", "", "inbox")
	require.NotContains(w.t, out, "--text")
	for line := range strings.Lines(out) {
		if strings.HasSuffix(line, "--"+word+"\n") {
			return strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "waymark "))
		}
	}
	require.FailNow(w.t, "the inbox has no command that ends with --"+word, out)
	return nil
}

func TestPhase_AfterApproval_StartsOnceAPersonAllowsIt(t *testing.T) {
	t.Parallel()
	w := &world{waymarktest.Start(t), t}
	run, err := w.Fleet("ex-1", nil).Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder"})
	require.NoError(t, err)
	ran := 0
	done, stop := gated(t, run, "release", &ran)
	w.Await("r1", schema.StatusWaiting)
	require.Eventually(t, func() bool { // a list is of checkpoints, and may be a moment old
		_, out, _ := w.ask("100", "", "inbox")
		return strings.Contains(out, "waits for approval of a phase: Release to production?")
	}, 20*time.Second, 20*time.Millisecond)
	stop()
	require.ErrorIs(t, result(t, done), context.Canceled)
	require.Zero(t, ran, "nothing runs before the answer")

	// The next executor asks nothing again: the question is open, and is answered once.
	run, err = w.Fleet("ex-2", nil).Resume(t.Context(), "r1", publisher.ResumeSpec{})
	require.NoError(t, err)
	done, _ = gated(t, run, "release", &ran)
	code, _, complaints := w.ask("", "", w.offered("allow")...)
	require.Zero(t, code, complaints)
	require.NoError(t, result(t, done))
	require.Equal(t, 1, ran)
	done, _ = gated(t, run, "release", &ran)
	require.NoError(t, result(t, done), "a completed phase is skipped, and no person is asked")
	require.Equal(t, 1, ran)

	done, _ = gated(t, run, "announce", &ran)
	w.Await("r1", schema.StatusWaiting)
	require.Eventually(t, func() bool {
		_, out, _ := w.ask("100", "", "inbox")
		return strings.Contains(out, "approval.phase.announce")
	}, 20*time.Second, 20*time.Millisecond)
	code, _, complaints = w.ask("", "", append(w.offered("deny"), "--reason", "not on a Friday", "--by", "ann")...)
	require.Zero(t, code, complaints)
	err = result(t, done)
	require.ErrorIs(t, err, publisher.ErrPhaseDenied)
	require.ErrorContains(t, err, "by ann: not on a Friday")
	require.Equal(t, 1, ran)
	done, _ = gated(t, run, "announce", &ran)
	require.ErrorIs(t, result(t, done), publisher.ErrPhaseDenied, "the answer counts for the run")
	require.Equal(t, []string{"release"}, run.Head().CompletedPhases)
}
