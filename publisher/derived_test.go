package publisher_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// toldFirst is the first request of a loop's model in a run.
func toldFirst(t *testing.T, run *publisher.Run) string {
	t.Helper()
	m := new(scripted)
	require.NoError(t, publisher.Loop{Model: m.model}.Work(t.Context(), run))
	require.NotEmpty(t, m.sent())
	return strings.Join(m.sent()[0], "\n")
}

// offersToPaint offers the work of a run.
func offersToPaint(t *testing.T, run *publisher.Run) publisher.Offer {
	t.Helper()
	offer, err := run.Handoff(schema.HandoffOfferedData{Reason: "task_complete", NextAgent: "coder", Remaining: []schema.HandoffRemaining{{Description: "PAINT THE SHED"}}}).Offer(t.Context())
	require.NoError(t, err)
	return offer
}

func TestLoop_ChildOfAHandoff_ForkAndRewoundChildAreToldTheOffer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	offer := offersToPaint(t, start(t, f, "p1"))
	child, err := f.AcceptHandoff(t.Context(), offer, publisher.RunSpec{ID: "c1", Task: "carry on"})
	require.NoError(t, err)
	require.NoError(t, f.CloseHandoff(t.Context(), offer, "", "its child has the work"))
	require.Contains(t, toldFirst(t, child), "PAINT THE SHED", "the hand-off is closed")

	begin := schema.Point{Kind: schema.PointTurn, Number: 0}
	fork, err := f.Fork(t.Context(), publisher.ForkSpec{Base: "c1", ID: "c2", At: begin})
	require.NoError(t, err)
	require.Contains(t, toldFirst(t, fork), "PAINT THE SHED")
	again, err := f.Resume(t.Context(), "c1", publisher.ResumeSpec{At: begin})
	require.NoError(t, err)
	require.Contains(t, toldFirst(t, again), "PAINT THE SHED")
}

func TestLoop_OfferingRunRemoved_ChildIsToldTheOffer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	offer := offersToPaint(t, start(t, f, "p1"))
	child, err := f.AcceptHandoff(t.Context(), offer, publisher.RunSpec{})
	require.NoError(t, err)
	w.mark(t, "p1", "n1")
	require.Contains(t, toldFirst(t, child), "PAINT THE SHED")
}

func TestContinue_BehindARewind_HandsOnAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, id string
		closed   bool
	}{
		{name: "derived id, closed", closed: true},
		{name: "derived id, the abandoned child goes on"},
		{name: "id of the agent, closed", id: "h1", closed: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.serve()
			f := w.fleet()
			run := start(t, f, "p1")
			_, err := openTurn(t, run).Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text("hand it on"))})
			require.NoError(t, err)
			handOn := func(run *publisher.Run) (*publisher.Run, error) {
				return run.Continue(t.Context(), run.Handoff(schema.HandoffOfferedData{Reason: "task_complete", NextAgent: "coder", HandoffID: c.id}), publisher.RunSpec{})
			}
			at := schema.Point{Kind: schema.PointRecord, Number: uint64(run.Head().Records)} //nolint:gosec // a small number
			child, err := handOn(run)
			require.NoError(t, err)
			if c.closed {
				offers, err := f.Offers(t.Context(), "p1")
				require.NoError(t, err)
				require.NoError(t, f.CloseHandoff(t.Context(), offers[0], "", "done"))
			}
			again, err := f.Resume(t.Context(), "p1", publisher.ResumeSpec{At: at})
			require.NoError(t, err)
			second, err := handOn(again)
			require.NoError(t, err)
			require.NotEqual(t, child.ID(), second.ID())
			require.Equal(t, schema.StatusCompleted, again.Head().Status)
		})
	}
}

// An answer to a question of the abandoned records is no answer to the one that is asked again.
func TestApproval_BehindARewind_HasAnotherID(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	n := 0
	f := w.fleet(fixed(ask(), &n))
	run := start(t, f, "r1")
	call := publisher.ToolCall{ID: "c1", Name: "mail"}
	at := schema.Point{Kind: schema.PointRecord, Number: 1}
	asked := func(run *publisher.Run) string {
		t.Helper()
		answers(t, openTurn(t, run), call)
		tool := make(chan error, 1)
		go func() {
			var ran atomic.Int64
			_, err := run.Turn(1).Tool(t.Context(), call, counted(&ran, "sent"))
			tool <- err
		}()
		require.Eventually(t, func() bool { return len(w.fold("r1").Head.Interrupts) == 1 }, patience, time.Millisecond)
		id := w.fold("r1").Head.Interrupts[0].InterruptID
		require.NoError(t, f.Input(t.Context(), "r1", publisher.Input{InterruptID: id, EventID: questionOf(t, f, "r1", id), Payload: raw(`{"decision":"allow"}`), By: "ann"}))
		require.NoError(t, <-tool)
		return id
	}
	require.Equal(t, "approval.1.c1.1", asked(run))
	again, err := f.Resume(t.Context(), "r1", publisher.ResumeSpec{At: at})
	require.NoError(t, err)
	require.Equal(t, "approval.1.c1.1@2", asked(again))
}

func TestFork_TaskBehindATurn_RefusedAndAMessageIsTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "r1")
	require.NotContains(t, toldFirst(t, run), "PAINT THE SHED")
	spec := publisher.ForkSpec{Base: "r1", ID: "r2", Task: "PAINT THE SHED", At: schema.Point{Kind: schema.PointTurn, Number: 1}}
	_, err := f.Fork(t.Context(), spec)
	require.ErrorIs(t, err, publisher.ErrConfig)
	require.ErrorContains(t, err, "by a message")
	_, err = f.Head(t.Context(), "r2")
	require.ErrorIs(t, err, publisher.ErrRunNotFound)

	spec.Task = ""
	fork, err := f.Fork(t.Context(), spec)
	require.NoError(t, err)
	require.NoError(t, fork.AddMessage(t.Context(), user("PAINT THE SHED")))
	require.Contains(t, toldFirst(t, fork), "PAINT THE SHED")

	spec.ID, spec.Task, spec.At.Number = "r3", "PAINT THE SHED", 0
	fork, err = f.Fork(t.Context(), spec)
	require.NoError(t, err)
	require.Contains(t, toldFirst(t, fork), "PAINT THE SHED")
}

func TestLoop_OfferEncrypted_ChildIsToldAndTheServerReadsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet(encrypted(secretKeys("k1")))
	offer := offersToPaint(t, start(t, f, "p1"))
	child, err := f.AcceptHandoff(t.Context(), offer, publisher.RunSpec{ID: "c1"})
	require.NoError(t, err)
	require.NoError(t, child.Interrupt(t.Context(), schema.InterruptedPreempted))
	child, err = w.fleet(named("exec-2"), encrypted(secretKeys("k1"))).Resume(t.Context(), "c1", publisher.ResumeSpec{})
	require.NoError(t, err)
	require.Contains(t, toldFirst(t, child), "PAINT THE SHED")
	require.Empty(t, w.found("PAINT THE SHED"))
}
