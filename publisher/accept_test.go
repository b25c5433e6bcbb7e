package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func executor(name string) func(*publisher.Config) {
	return func(c *publisher.Config) { c.Executor = name }
}

// offered is a run with an offer.
func offered(tb testing.TB, f *publisher.Fleet) (*publisher.Run, publisher.Offer) {
	tb.Helper()
	run := start(tb, f, "r1")
	offer, err := run.Handoff(schema.HandoffOfferedData{Reason: "threshold_critical", HandoffID: "h1", Context: &schema.HandoffContext{Decisions: []string{"no cgo"}}}).Offer(tb.Context())
	require.NoError(tb, err)
	return run, offer
}

func TestOffer_Content_FromLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run, err := f.Start(t.Context(), publisher.RunSpec{
		ID: "r2", ResumedFrom: "r1", Handoff: &schema.HandoffSource{Run: "r1", HandoffID: "h0", OfferHash: fmt.Sprintf("%064d", 0)},
	})
	require.NoError(t, err)
	turn := openTurn(t, run)
	o := newOutside(t)
	var calls []publisher.ToolCall
	for i, name := range []string{"read", "write", "read", "write"} {
		calls = append(calls, publisher.ToolCall{ID: fmt.Sprint(i), Name: name})
	}
	_, err = turn.Answer(t.Context(), publisher.Answer{Message: assistant(), Calls: calls, Usage: &schema.Usage{InputTokens: 7, OutputTokens: 2}})
	require.NoError(t, err)
	for _, call := range calls[:3] {
		_, err := turn.Tool(t.Context(), call, o.tool)
		require.NoError(t, err)
	}
	_, err = turn.Tool(t.Context(), calls[3], func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		return publisher.ToolResult{}, errors.New("disk full")
	})
	require.ErrorIs(t, err, publisher.ErrToolFailed)
	require.NoError(t, run.Artifact(t.Context(), schema.ArtifactAddedData{ArtifactID: "a1", Name: "b.go"}))
	require.NoError(t, run.Artifact(t.Context(), schema.ArtifactAddedData{ArtifactID: "a2", URI: "s3://x/c"}))
	offer, err := run.Handoff(schema.HandoffOfferedData{Reason: "task_complete", NextAgent: "tester", Context: &schema.HandoffContext{FilesModified: []string{"a.go", "b.go", "a.go"}}}).Offer(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"a.go", "b.go", "s3://x/c"}, offer.Data.Context.FilesModified)
	require.Equal(t, int64(len("a.gob.gos3://x/c")), offer.Data.SizeChars)
	require.Equal(t, "handoff.1.tester", offer.HandoffID)
	w.requireSameFold(run)

	read, err := f.Offers(t.Context(), "r2")
	require.NoError(t, err)
	require.Equal(t, []publisher.Offer{offer}, read, "what is read is what was offered")
}

func TestAccept_Offer_ChildCarriesOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	_, offer := offered(t, w.fleet())
	second := w.fleet(executor("exec-2"))
	child, err := second.AcceptHandoff(t.Context(), offer, publisher.RunSpec{Task: "go on"})
	require.NoError(t, err)
	s := w.requireSameFold(child)
	require.Equal(t, &schema.HandoffSource{Run: "r1", HandoffID: "h1", OfferHash: offer.Hash}, s.Head.Handoff)
	require.Equal(t, "r1", s.Head.ResumedFrom)
	require.Equal(t, &schema.Parent{Run: "r1"}, s.Head.Parent)
	require.Equal(t, "coder", s.Head.Agent, "a continuation is the same agent's")
	accepted := w.fold("r1").Head.Handoffs[0]
	require.Equal(t, schema.HandoffStatusAccepted, accepted.Status)
	require.Equal(t, "exec-2", accepted.By)
	require.Equal(t, child.ID(), accepted.ChildRun)

	again, err := second.AcceptHandoff(t.Context(), offer, publisher.RunSpec{})
	require.NoError(t, err)
	require.Same(t, child, again, "the process keeps its handle")

	_, err = child.Handoff(schema.HandoffOfferedData{Reason: "error"}).Offer(t.Context())
	require.NoError(t, err)
	require.NoError(t, second.CloseHandoff(t.Context(), offer, "", "done"))
	require.Empty(t, w.fold("r1").Head.Handoffs)
}

func TestAccept_ManyTakers_OneGetsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	_, offer := offered(t, w.fleet())
	requireOneTaker(t, w, offer)
}

// The taker died before it started the child, and many go on in its name.
func TestAccept_DeadTakersChild_StartedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	_, offer := offered(t, f)
	w.control("r1", 1, &schema.HandoffAcceptedData{HandoffID: "h1", By: "exec-2", ChildRun: "c1", OfferHash: offer.Hash})
	offers, err := f.Offers(t.Context(), "r1")
	require.NoError(t, err)
	requireOneTaker(t, w, offers[0])
}

// requireOneTaker lets many take the offer at once: one gets the child, the others hear who that is.
func requireOneTaker(t *testing.T, w *world, offer publisher.Offer) {
	t.Helper()
	var group sync.WaitGroup
	var mu sync.Mutex
	var children []*publisher.Run
	var taken []*publisher.HandoffTakenError
	for i := range 6 {
		f := w.fleet(executor(fmt.Sprintf("taker-%d", i)))
		group.Go(func() {
			child, err := f.AcceptHandoff(t.Context(), offer, publisher.RunSpec{})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				children = append(children, child)
				return
			}
			lost, ok := errors.AsType[*publisher.HandoffTakenError](err)
			if !ok || !errors.Is(err, publisher.ErrHandoffTaken) {
				t.Errorf("taker %d: %v", i, err)
				return
			}
			taken = append(taken, lost)
		})
	}
	group.Wait()
	require.Len(t, children, 1)
	head := children[0].Head()
	require.Equal(t, schema.Epoch(1), head.Epoch)
	require.Len(t, taken, 5)
	for _, lost := range taken {
		require.Equal(t, head.Executor, lost.By)
		require.Equal(t, head.Run, lost.ChildRun)
	}
}

// Two machines may run under one executor's name.
func TestAccept_ManyInstances_OneGetsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	_, offer := offered(t, w.fleet())
	first, second := w.fleet(executor("exec-2")), w.fleet(executor("exec-2"))
	child, err := first.AcceptHandoff(t.Context(), offer, publisher.RunSpec{})
	require.NoError(t, err)
	_, err = second.AcceptHandoff(t.Context(), offer, publisher.RunSpec{})
	taken, ok := errors.AsType[*publisher.HandoffTakenError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, "exec-2", taken.By)
	require.Equal(t, first.Instance(), taken.Instance)
	require.ErrorContains(t, err, first.Instance(), "the name alone would not tell them apart")
	require.NoError(t, child.Mark(t.Context(), "still here"), "the first is not fenced")
	require.Equal(t, schema.Epoch(1), w.fold(child.ID()).Head.Epoch)
}

func TestAccept_OwnChild_Continues(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	_, offer := offered(t, w.fleet())
	same := func(c *publisher.Config) { c.Executor, c.Heartbeat = "exec-2", -1 }
	_, err := w.fleet(same).AcceptHandoff(t.Context(), offer, publisher.RunSpec{})
	require.NoError(t, err)
	child, err := w.fleet(same).AcceptHandoff(t.Context(), offer, publisher.RunSpec{})
	require.NoError(t, err, "without an instance, it may be a handle that the process lost")
	require.Equal(t, schema.Epoch(2), child.Epoch())
}

func TestAccept_OfferNotOpen_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run, offer := offered(t, f)
	newer, err := run.Handoff(schema.HandoffOfferedData{Reason: "threshold_critical", HandoffID: "h1", Context: &schema.HandoffContext{Decisions: []string{"cgo after all"}}}).Offer(t.Context())
	require.NoError(t, err)
	_, err = f.AcceptHandoff(t.Context(), offer, publisher.RunSpec{})
	var taken *publisher.HandoffTakenError
	require.ErrorAs(t, err, &taken)
	require.Empty(t, taken.By)
	require.ErrorContains(t, err, "was replaced by another offer")

	require.NoError(t, f.DeclineHandoff(t.Context(), newer, "anna", "no time"))
	_, err = f.AcceptHandoff(t.Context(), newer, publisher.RunSpec{})
	require.ErrorIs(t, err, publisher.ErrUnknownHandoff)
	require.Equal(t, "declined", w.fold("r1").Handoffs[0].Status)
	require.Equal(t, "no time", w.fold("r1").Handoffs[0].Reason)
	require.ErrorIs(t, f.DeclineHandoff(t.Context(), publisher.Offer{Run: "r1", HandoffID: "h9"}, "", ""), publisher.ErrUnknownHandoff)

	for name, bad := range map[string]struct {
		offer publisher.Offer
		spec  publisher.RunSpec
	}{
		"no run":              {offer: publisher.Offer{HandoffID: "h1", Hash: newer.Hash}},
		"no hash":             {offer: publisher.Offer{Run: "r1", HandoffID: "h1"}},
		"its own child":       {offer: newer, spec: publisher.RunSpec{ID: "r1"}},
		"continues something": {offer: newer, spec: publisher.RunSpec{ResumedFrom: "r7"}},
	} {
		_, err := f.AcceptHandoff(t.Context(), bad.offer, bad.spec)
		require.ErrorIs(t, err, publisher.ErrConfig, name)
	}
}

func TestAccept_ChildIDTaken_FoundBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	_, offer := offered(t, f)
	start(t, f, "r2")
	_, err := f.AcceptHandoff(t.Context(), offer, publisher.RunSpec{ID: "r2"})
	require.ErrorIs(t, err, publisher.ErrRunExists)
	require.Equal(t, schema.HandoffStatusOffered, w.fold("r1").Head.Handoffs[0].Status)
}

func TestOffer_AlreadyAccepted_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run, offer := offered(t, f)
	_, err := w.fleet(executor("exec-2")).AcceptHandoff(t.Context(), offer, publisher.RunSpec{})
	require.NoError(t, err)
	require.NoError(t, run.Sync(t.Context()))
	_, err = run.Handoff(schema.HandoffOfferedData{Reason: "error", HandoffID: "h1"}).Offer(t.Context())
	require.ErrorIs(t, err, publisher.ErrHandoffTaken)
}

// The taker dies behind each step of the transaction.
func TestAccept_Repeated_Continues(t *testing.T) {
	t.Parallel()
	accepted := func(w *world, offer publisher.Offer, child string) {
		w.control("r1", 1, &schema.HandoffAcceptedData{HandoffID: "h1", By: "exec-2", ChildRun: child, OfferHash: offer.Hash})
	}
	begin := func(w *world, offer publisher.Offer, by, child string) *publisher.Run {
		run, err := w.fleet(executor(by)).Start(w.tb.Context(), publisher.RunSpec{
			ID: child, ResumedFrom: "r1", Handoff: &schema.HandoffSource{Run: "r1", HandoffID: "h1", OfferHash: offer.Hash},
		})
		require.NoError(w.tb, err)
		return run
	}
	tests := map[string]struct {
		before func(w *world, offer publisher.Offer)
		// reread: the taker reads the offers again.
		by     string
		reread bool
		epoch  schema.Epoch
		want   error
	}{
		"before the acceptance": {before: func(*world, publisher.Offer) {}, by: "exec-2", epoch: 1},
		"behind the acceptance": {before: func(w *world, o publisher.Offer) { accepted(w, o, "c1") }, by: "exec-2", epoch: 1},
		"behind the acceptance, and another comes": {
			before: func(w *world, o publisher.Offer) { accepted(w, o, "c1") }, by: "exec-3", want: publisher.ErrHandoffTaken,
		},
		"behind the acceptance, and another goes on in its name": {
			before: func(w *world, o publisher.Offer) { accepted(w, o, "c1") }, by: "exec-3", reread: true, epoch: 1,
		},
		"accepted for another child": {
			before: func(w *world, o publisher.Offer) { accepted(w, o, "c9") }, by: "exec-2", reread: true, want: publisher.ErrHandoffTaken,
		},
		"behind the start of the child, which was orphaned": {
			before: func(w *world, o publisher.Offer) {
				accepted(w, o, "c1")
				begin(w, o, "exec-2", "c1")
				w.control("c1", 1, &schema.RunOrphanedData{Executor: "exec-2"})
			}, by: "exec-2", epoch: 2,
		},
		"behind the start of the child, which was orphaned as it waited": {
			before: func(w *world, o publisher.Offer) {
				accepted(w, o, "c1")
				require.NoError(w.tb, begin(w, o, "exec-2", "c1").Wait(w.tb.Context(), question))
				w.control("c1", 1, &schema.RunOrphanedData{Executor: "exec-2"})
			}, by: "exec-2", epoch: 2,
		},
		"behind the start of the child, which was released": {
			before: func(w *world, o publisher.Offer) {
				accepted(w, o, "c1")
				require.NoError(w.tb, begin(w, o, "exec-2", "c1").Interrupt(w.tb.Context(), "preempted"))
			}, by: "exec-2", epoch: 2,
		},
		"behind the start of the child, which another instance still drives": {
			before: func(w *world, o publisher.Offer) { accepted(w, o, "c1"); begin(w, o, "exec-2", "c1") }, by: "exec-2", want: publisher.ErrHandoffTaken,
		},
		"behind the start of the child, and another comes": {
			before: func(w *world, o publisher.Offer) { accepted(w, o, "c1"); begin(w, o, "exec-2", "c1") }, by: "exec-3", want: publisher.ErrHandoffTaken,
		},
		"behind the end of the child": {
			before: func(w *world, o publisher.Offer) {
				accepted(w, o, "c1")
				require.NoError(w.tb, begin(w, o, "exec-2", "c1").End(w.tb.Context(), publisher.RunEnd{}))
			},
			by: "exec-2", want: publisher.ErrRunEnded,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.serve()
			_, offer := offered(t, w.fleet())
			test.before(w, offer)
			f := w.fleet(executor(test.by))
			if test.reread {
				offers, err := f.Offers(t.Context(), "r1")
				require.NoError(t, err)
				offer = offers[0]
			}
			child, err := f.AcceptHandoff(t.Context(), offer, publisher.RunSpec{ID: "c1"})
			require.ErrorIs(t, err, test.want)
			if taken, ok := errors.AsType[*publisher.HandoffTakenError](err); ok {
				require.Equal(t, "exec-2", taken.By)
				require.Contains(t, []string{"c1", "c9"}, taken.ChildRun)
			}
			if test.want == nil {
				require.Equal(t, test.epoch, child.Epoch())
				require.Equal(t, test.by, child.Head().Executor)
				w.requireSameFold(child)
			}
			parent := w.fold("r1")
			require.Zero(t, parent.Head.Counts.DeadLetters)
			require.Len(t, parent.Head.Handoffs, 1)
			if !errors.Is(test.want, publisher.ErrHandoffTaken) {
				require.Equal(t, "c1", parent.Head.Handoffs[0].ChildRun)
			}
		})
	}
}

// The executor dies behind each step of a continuation; the executor that resumes the parent continues it.
func TestContinue_Repeated_Continues(t *testing.T) {
	t.Parallel()
	const child = "r1-child" // as the acceptance names it
	offers := func(w *world, parent *publisher.Run) publisher.Offer {
		offer, err := parent.Handoff(schema.HandoffOfferedData{Reason: "threshold_critical", HandoffID: "h1"}).Offer(w.tb.Context())
		require.NoError(w.tb, err)
		return offer
	}
	accepts := func(w *world, parent *publisher.Run) publisher.Offer {
		offer := offers(w, parent)
		w.control("r1", 1, &schema.HandoffAcceptedData{HandoffID: "h1", By: "exec-1", ChildRun: child, OfferHash: offer.Hash})
		return offer
	}
	starts := func(w *world, parent *publisher.Run) *publisher.Run {
		offer := accepts(w, parent)
		run, err := w.fleet().Start(w.tb.Context(), publisher.RunSpec{
			ID: child, ResumedFrom: "r1", Handoff: &schema.HandoffSource{Run: "r1", HandoffID: "h1", OfferHash: offer.Hash},
		})
		require.NoError(w.tb, err)
		return run
	}
	tests := map[string]struct {
		before func(w *world, parent *publisher.Run)
		by     string
		epoch  schema.Epoch
		want   error
	}{
		"before the offer":              {before: func(*world, *publisher.Run) {}, by: "exec-1", epoch: 1},
		"behind the offer":              {before: func(w *world, p *publisher.Run) { offers(w, p) }, by: "exec-1", epoch: 1},
		"behind the acceptance":         {before: func(w *world, p *publisher.Run) { accepts(w, p) }, by: "exec-1", epoch: 1},
		"behind the acceptance, others": {before: func(w *world, p *publisher.Run) { accepts(w, p) }, by: "exec-2", epoch: 1},
		"behind the start, orphaned": {before: func(w *world, p *publisher.Run) {
			starts(w, p)
			w.orphan(child, 1)
		}, by: "exec-1", epoch: 2},
		"behind the start, driven": {before: func(w *world, p *publisher.Run) { starts(w, p) }, by: "exec-1", want: publisher.ErrHandoffTaken},
		"behind the start, others": {before: func(w *world, p *publisher.Run) { starts(w, p) }, by: "exec-2", want: publisher.ErrHandoffTaken},
		"behind the child's end": {
			before: func(w *world, p *publisher.Run) {
				require.NoError(w.tb, starts(w, p).End(w.tb.Context(), publisher.RunEnd{}))
			}, by: "exec-2", want: publisher.ErrRunEnded,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.serve()
			test.before(w, start(t, w.fleet(), "r1"))
			accepted := slices.Contains(names(w.log("r1")), "handoff.accepted")
			f := w.fleet(executor(test.by))
			parent := resume(t, f, "r1")
			got, err := parent.Continue(t.Context(), parent.Handoff(schema.HandoffOfferedData{Reason: "threshold_critical", HandoffID: "h1"}), publisher.RunSpec{})
			require.ErrorIs(t, err, test.want)
			s := w.requireSameFold(parent)
			require.Len(t, s.Head.Handoffs, 1)
			child := s.Head.Handoffs[0].ChildRun
			if accepted {
				require.Equal(t, "r1-child", child)
			}
			if test.want == nil {
				require.Equal(t, child, got.ID())
				require.Equal(t, test.epoch, got.Epoch())
				require.Equal(t, test.by, got.Head().Executor)
				require.Equal(t, "r1", got.Head().Handoff.Run)
			} else {
				require.Nil(t, got)
			}
			require.Equal(t, schema.StatusCompleted, s.Head.Status)
			require.Equal(t, "continued by run "+child, s.Head.Summary)
		})
	}
}

func TestAccept_ChildWithOpenCall_NotContinuedElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "r1")
	_, err := openTurn(t, run).Call(t.Context(), publisher.ToolCall{ID: "c1", Name: "deploy"})
	require.NoError(t, err)
	before := len(w.log("r1"))
	_, err = run.Continue(t.Context(), run.Handoff(schema.HandoffOfferedData{Reason: "threshold_critical"}), publisher.RunSpec{})
	require.ErrorIs(t, err, publisher.ErrConflict)
	require.ErrorContains(t, err, "deploy")
	require.Len(t, w.log("r1"), before)
	_, err = run.Continue(t.Context(), start(t, f, "r2").Handoff(schema.HandoffOfferedData{Reason: "error"}), publisher.RunSpec{})
	require.ErrorIs(t, err, publisher.ErrConfig)
}
