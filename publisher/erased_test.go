package publisher_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// mark stores run.erased behind the last event of a run.
func (w *world) mark(t *testing.T, run, id string) {
	t.Helper()
	names := schema.NamesOf("default", 0)
	last, _, err := eventlog.Last(t.Context(), w.js, names, run)
	require.NoError(t, err)
	e, err := schema.NewErased("daemon", &schema.Removal{Fleet: "default", Run: run, ID: id, By: "tester", At: schema.FormatTime(time.Now()), Position: schema.PositionOf(&last)}, "1", time.Now())
	require.NoError(t, err)
	header, body := e.Encode()
	_, err = w.js.PublishMsg(t.Context(), &nats.Msg{Subject: names.EventSubject(run), Header: header, Data: body}, jetstream.WithExpectLastSequencePerSubject(uint64(last.Stream)))
	require.NoError(t, err)
}

func TestRemoval_OpenHandle_EndsAndIDStaysTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "gone")
	w.mark(t, "gone", "n1")
	purged := start(t, f, "purged")
	w.mark(t, "purged", "n2")
	names := schema.NamesOf("default", 0)
	last, _, err := eventlog.Last(t.Context(), w.js, names, "purged")
	require.NoError(t, err)
	stream, err := w.js.Stream(t.Context(), names.EventStream())
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject(names.EventSubject("purged")), jetstream.WithPurgeSequence(uint64(last.Stream))))
	require.ErrorIs(t, purged.End(t.Context(), publisher.RunEnd{}), publisher.ErrRunErased)
	_, err = run.StartTurn(t.Context(), publisher.TurnSpec{Messages: []schema.Message{user("go")}})
	require.ErrorIs(t, err, publisher.ErrRunErased)
	require.ErrorIs(t, run.End(t.Context(), publisher.RunEnd{}), publisher.ErrRunErased)
	_, err = f.Start(t.Context(), publisher.RunSpec{ID: "gone", Agent: "coder"})
	require.ErrorIs(t, err, publisher.ErrRunExists)
}

func TestFork_BaseRemoved_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	turnWith(t, start(t, f, "base"), "c1", 1)
	w.mark(t, "base", "n1")
	_, err := f.Fork(t.Context(), publisher.ForkSpec{ID: "fork", Base: "base"})
	require.ErrorIs(t, err, publisher.ErrRunErased)
	_, err = f.Head(t.Context(), "fork")
	require.ErrorIs(t, err, publisher.ErrRunNotFound, "nothing of the fork was written")
}

// The process that forks is killed behind the fork's first event, while the base is removed: the base stays, and any
// executor goes on with the fork.
func TestFork_KilledBehindItsFirstEvent_KeepsItsBase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "base")
	turnWith(t, run, "c1", 1)
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{}))
	_, err := w.fleet(named("killed")).Fork(t.Context(), publisher.ForkSpec{ID: "fork", Base: "base"}) // and nothing after it
	require.NoError(t, err)
	for _, body := range []string{`{"by":"tester"}`, `{"by":"tester","force":true}`} {
		m, err := w.nc.RequestWithContext(t.Context(), schema.ServiceSubject(schema.VerbErase, "default", "base"), []byte(body))
		require.NoError(t, err)
		require.NotEmpty(t, m.Header.Get(schema.HeaderErrorCode), "%s", m.Data)
		require.Contains(t, string(m.Data), "fork fork stands on run base")
	}
	again, err := w.fleet(named("next")).Resume(t.Context(), "fork", publisher.ResumeSpec{})
	require.NoError(t, err)
	require.NoError(t, again.End(t.Context(), publisher.RunEnd{}))
}

// A removal of the base comes between the mark and the first event of the fork: it takes the id of the fork.
func TestFork_BaseRemovedBeforeItBegins_NotStarted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "base")
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{}))
	for _, request := range []struct{ verb, body string }{{schema.VerbFork, `{"fork":"fork","by":"tester"}`}, {schema.VerbErase, `{"by":"tester"}`}} {
		m, err := w.nc.RequestWithContext(t.Context(), schema.ServiceSubject(request.verb, "default", "base"), []byte(request.body))
		require.NoError(t, err)
		require.Empty(t, m.Header.Get(schema.HeaderErrorCode), "%s: %s", request.verb, m.Data)
	}
	_, err := f.Start(t.Context(), publisher.RunSpec{ID: "fork", Agent: "coder"})
	require.ErrorIs(t, err, publisher.ErrRunExists)
	require.ErrorIs(t, err, publisher.ErrRunErased)
	_, err = f.Head(t.Context(), "fork")
	require.ErrorIs(t, err, publisher.ErrRunErased)
}
