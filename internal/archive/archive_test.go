package archive_test

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/archive"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestImport_ExportedRun_Equal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha")
	w.eventful("r1")
	b, m := w.export(false, "r1")
	require.Len(t, m.Runs, 1)
	require.Equal(t, 2, m.Runs[0].Blobs)

	other := newWorld(t, "alpha")
	done, err := other.importing(b, nil)
	require.NoError(t, err)
	require.Equal(t, archive.FateImported, done[0].Fate)
	require.Equal(t, w.recordsOf("r1"), other.recordsOf("r1"), "every message, byte for byte")
	before, after := w.state("r1"), other.state("r1")
	require.Equal(t, before.Head.Digest, after.Head.Digest)
	require.Equal(t, before.Head.Digest, done[0].Digest)
	require.Equal(t, m.Runs[0].Digest, done[0].Digest)
	require.Equal(t, before.Messages, after.Messages)
	require.Equal(t, before.Calls, after.Calls)
	require.NotZero(t, after.Head.Counts.DeadLetters)
	require.Equal(t, before.Head.Counts, after.Head.Counts)
}

func texts(s *schema.State) []string {
	var list []string
	for i := range s.Messages {
		for _, p := range s.Messages[i].Parts {
			if p.Content != nil {
				list = append(list, *p.Content)
			}
		}
	}
	return list
}

func TestImport_SameArchiveAgain_ChangesNothing(t *testing.T) {
	t.Parallel()
	w, other := newWorld(t, "alpha"), newWorld(t, "alpha")
	w.eventful("r1")
	b, _ := w.export(false, "r1")
	_, err := other.importing(b, nil)
	require.NoError(t, err)
	was := other.recordsOf("r1")
	done, err := other.importing(b, nil)
	require.NoError(t, err)
	require.Equal(t, archive.FateThere, done[0].Fate)
	require.Zero(t, done[0].Since)
	require.Equal(t, was, other.recordsOf("r1"))
	// The original run is unchanged, too.
	done, err = w.importing(b, nil)
	require.NoError(t, err)
	require.Equal(t, archive.FateThere, done[0].Fate)
	r, err := w.executor("exec-3").Resume(t.Context(), "r1", publisher.ResumeSpec{Reason: schema.TakeoverReopen})
	require.NoError(t, err)
	require.NoError(t, r.End(t.Context(), publisher.RunEnd{Status: schema.StatusFailed}))
	done, err = w.importing(b, nil)
	require.NoError(t, err)
	require.Equal(t, archive.FateThere, done[0].Fate)
	require.EqualValues(t, 2, done[0].Since, "it went on since")
}

// Events name their fleet, in their source.
func TestImport_FleetOfAnotherName_IsRefused(t *testing.T) {
	t.Parallel()
	w, other := newWorld(t, "alpha"), newWorld(t, "omega")
	require.NoError(t, w.start("r1").End(t.Context(), publisher.RunEnd{Status: schema.StatusCompleted}))
	b, _ := w.export(false, "r1")
	_, err := other.importing(b, nil)
	require.ErrorIs(t, err, archive.ErrOtherFleet)
	_, err = other.fleet.Get(t.Context(), "r1")
	require.ErrorIs(t, err, publisher.ErrRunNotFound)
}

func TestImport_ExistingRun_Refused(t *testing.T) {
	t.Parallel()
	w, other := newWorld(t, "alpha"), newWorld(t, "alpha")
	w.eventful("r1")
	b, _ := w.export(false, "r1")
	x := other.start("r1")
	require.NoError(t, x.End(t.Context(), publisher.RunEnd{Status: schema.StatusCompleted}))
	was := other.recordsOf("r1")
	_, err := other.importing(b, nil)
	require.ErrorIs(t, err, archive.ErrRunExists)
	_, err = other.importing(b, func(to *archive.Target) { to.Continue = true })
	require.ErrorIs(t, err, archive.ErrRunExists)
	require.Equal(t, was, other.recordsOf("r1"), "nothing was written")
	_, err = other.fleet.Get(t.Context(), "r1-child")
	require.ErrorIs(t, err, publisher.ErrRunNotFound)
}

func TestImport_Interrupted_ContinuesOnRequest(t *testing.T) {
	t.Parallel()
	w, other := newWorld(t, "alpha"), newWorld(t, "alpha")
	w.eventful("r1")
	b, m := w.export(false, "r1")
	// A crash between two batches leaves the run's beginning.
	for _, r := range w.recordsOf("r1")[:7] {
		_, err := other.js.PublishMsg(t.Context(), &nats.Msg{Subject: schema.NamesOf("alpha", 0).EventSubject("r1"), Header: r.Header, Data: r.Body})
		require.NoError(t, err)
	}
	_, err := other.importing(b, nil)
	require.ErrorIs(t, err, archive.ErrPartly)
	done, err := other.importing(b, func(to *archive.Target) { to.Continue = true })
	require.NoError(t, err)
	require.Equal(t, archive.FateContinued, done[0].Fate)
	require.EqualValues(t, 7, done[0].Before)
	require.Equal(t, m.Runs[0].Digest, other.state("r1").Head.Digest)
}

func TestImport_UnendedRun_OnlyWithFlag(t *testing.T) {
	t.Parallel()
	w, other := newWorld(t, "alpha"), newWorld(t, "alpha")
	w.turn(w.start("r1"), "c1", 1)
	b, _ := w.export(false, "r1")
	_, err := other.importing(b, nil)
	require.ErrorIs(t, err, archive.ErrNotEnded)
	_, err = other.importing(b, func(to *archive.Target) { to.Live = true })
	require.NoError(t, err)
	// It can be taken over and continues, like any run.
	r, err := other.fleet.Resume(t.Context(), "r1", publisher.ResumeSpec{})
	require.NoError(t, err)
	other.turn(r, "c2", 2)
	require.Len(t, other.state("r1").Calls, 2)
}

func TestExport_Fork_IncludesBase(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha")
	origin := w.start("origin")
	w.turn(origin, "c1", 1)
	w.turn(origin, "c2", large)
	fork, err := w.fleet.Fork(t.Context(), publisher.ForkSpec{ID: "fork", Base: "origin", At: schema.Point{Kind: schema.PointTurn, Number: 2}})
	require.NoError(t, err)
	w.turn(fork, "f3", 3)
	second, err := w.fleet.Fork(t.Context(), publisher.ForkSpec{ID: "second", Base: "fork"})
	require.NoError(t, err)
	w.turn(second, "s4", 4)
	w.turn(origin, "c3", 3)
	for _, r := range []*publisher.Run{origin, fork, second} {
		require.NoError(t, r.End(t.Context(), publisher.RunEnd{Status: schema.StatusCompleted}))
	}
	lone, _ := w.export(false, "second")
	whole, m := w.export(true, "second")
	require.Equal(t, []string{"origin", "fork", "second"}, []string{m.Runs[0].Run, m.Runs[1].Run, m.Runs[2].Run})

	other := newWorld(t, "alpha")
	_, err = other.importing(lone, nil)
	require.ErrorIs(t, err, archive.ErrBase)
	_, err = other.importing(whole, nil)
	require.NoError(t, err)
	before, after := w.state("second"), other.state("second")
	require.Equal(t, texts(before), texts(after), "with what it took over")
	require.Len(t, after.Calls, 4)
	require.Equal(t, before.Calls[1].Result, after.Calls[1].Result)
	require.Equal(t, "fork", after.Head.Base.Run)
	require.Zero(t, after.Head.Counts.DeadLetters)
	done, err := other.importing(whole, nil)
	require.NoError(t, err)
	require.Equal(t, archive.FateThere, done[2].Fate)
	// The bases are there now.
	done, err = other.importing(lone, nil)
	require.NoError(t, err)
	require.Equal(t, archive.FateThere, done[0].Fate)
	// A base in the fleet is as good as one in the archive.
	third := newWorld(t, "alpha")
	bases, _ := w.export(true, "fork")
	_, err = third.importing(bases, nil)
	require.NoError(t, err)
	done, err = third.importing(lone, nil)
	require.NoError(t, err)
	require.Equal(t, archive.FateImported, done[0].Fate)
	require.Equal(t, texts(before), texts(third.state("second")))
}

// Calls that the other run began after the point are recorded in the fork when it is made, and are imported with it.
func TestImport_Fork_KeepsBaseCallsBegunLater(t *testing.T) {
	t.Parallel()
	w, other := newWorld(t, "alpha"), newWorld(t, "alpha")
	origin := w.start("origin")
	publish := func(data schema.Data) { require.NoError(t, origin.Publish(t.Context(), data, 1)) }
	publish(&schema.TurnAnsweredData{
		Turn: 1, Message: schema.Message{Role: schema.RoleAssistant},
		Calls: []schema.RequestedCall{{ToolCallID: "c1", Name: "pay"}, {ToolCallID: "c2", Name: "pay"}},
	})
	publish(&schema.ToolCalledData{ToolCallID: "c1", Name: "pay"})
	publish(&schema.ToolReturnedData{ToolCallID: "c1", Result: []byte("1")})
	require.NoError(t, origin.End(t.Context(), publisher.RunEnd{Status: schema.StatusFailed}))
	fork, err := w.fleet.Fork(t.Context(), publisher.ForkSpec{ID: "fork", Base: "origin", At: schema.Point{Kind: schema.PointStep, Number: 1}})
	require.NoError(t, err)
	require.NoError(t, fork.Publish(t.Context(), &schema.ToolCalledData{ToolCallID: "c2", Name: "pay"}, 1))
	require.NoError(t, fork.Publish(t.Context(), &schema.ToolReturnedData{ToolCallID: "c2", Result: []byte("2")}, 1))

	b, _ := w.export(true, "fork")
	_, err = other.importing(b, func(to *archive.Target) { to.Live = true })
	require.NoError(t, err)
	before, after := w.state("fork"), other.state("fork")
	require.Zero(t, after.Head.Counts.DeadLetters)
	require.Equal(t, "origin", before.Head.OpenCalls[0].Scope)
	require.Equal(t, before.Head.OpenCalls, after.Head.OpenCalls)
	require.Len(t, after.Head.HeldCalls(), 1, "c1 had its effect in the run that was forked")
	require.Equal(t, schema.OutcomeReturned, after.Calls[1].Outcome)
}

func TestExport_LongRun_SeveralEntries(t *testing.T) {
	t.Parallel()
	w, other := newWorld(t, "alpha"), newWorld(t, "alpha")
	// A plain executor's events: no sequence.
	subject := schema.NamesOf("alpha", 0).EventSubject("r1")
	for i := range 2300 {
		e := schema.Event{
			ID: "plain-" + string(rune('a'+i%26)) + schema.EventID("r1", 0, schema.Sequence(i), schema.Hash{}), Source: "urn:other", Type: "com.example.thing", Subject: "r1",
			Time: "2026-01-31T12:00:00Z", Data: []byte(`"` + large[:4000] + `"`),
		}
		header, body := e.Encode()
		_, err := w.js.PublishMsgAsync(&nats.Msg{Subject: subject, Header: header, Data: body}, jetstream.WithStallWait(1<<40))
		require.NoError(t, err)
	}
	<-w.js.PublishAsyncComplete()
	b, m := w.export(false, "r1")
	require.Len(t, m.Entries, 3)
	require.EqualValues(t, 2300, m.Runs[0].Records)
	_, err := other.importing(b, func(to *archive.Target) { to.Live = true })
	require.NoError(t, err)
	require.Equal(t, w.recordsOf("r1"), other.recordsOf("r1"))
}

func TestExport_UnknownRun_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "alpha")
	_, err := archive.Write(t.Context(), new(discard), w.fleet, archive.Export{Fleet: "alpha", Runs: []string{"r1"}})
	require.ErrorIs(t, err, publisher.ErrRunNotFound)
}

type discard struct{}

func (*discard) Write(b []byte) (int, error) { return len(b), nil }
