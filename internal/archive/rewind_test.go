package archive_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// publishEvent stores an event unchanged.
func (w *world) publishEvent(run string, e *schema.Event) {
	w.tb.Helper()
	header, body := e.Encode()
	_, err := w.js.PublishMsg(w.tb.Context(), &nats.Msg{Subject: schema.NamesOf(w.name, 0).EventSubject(run), Header: header, Data: body})
	require.NoError(w.tb, err)
}

// rewind takes a run over after one of its records, like the daemon.
func (w *world) rewind(run string, record int) {
	w.tb.Helper()
	var log []schema.Record
	require.NoError(w.tb, w.fleet.Events(w.tb.Context(), run, func(r schema.Record) error { log = append(log, r); return nil }))
	head := schema.NewHead(w.name, run)
	for i := range log[:record] {
		head.Apply(schema.NoKeys, &log[i])
	}
	at := head.Clone()
	later := schema.NewLater(&at)
	for i := range log[record:] {
		later.Behind(&head, head.Apply(schema.NoKeys, &log[record+i]))
	}
	to, err := schema.RewindTo(schema.Point{Kind: schema.PointRecord, Number: uint64(record)}, &at, later) //nolint:gosec // a small number
	require.NoError(w.tb, err)
	e, err := schema.NewControl(w.name, "daemon", run, head.Epoch+1, "rewind", &schema.RunResumedData{
		Executor: "exec-1", Reason: schema.TakeoverRewind, RequestID: "q-1",
		To:   to,
		From: schema.From{Epoch: head.Epoch, Sequence: head.Sequence, Digest: head.Digest},
	}, time.Now())
	require.NoError(w.tb, err)
	w.publishEvent(run, e)
}

// rewound is a run that was rewound and has ended.
func (w *world) rewound(id string, record int) {
	w.tb.Helper()
	r := w.start(id)
	w.turn(r, "c1", 1)
	w.turn(r, "c2", 2)
	w.rewind(id, record)
	resumed, err := w.fleet.Resume(w.tb.Context(), id, publisher.ResumeSpec{})
	require.NoError(w.tb, err)
	require.NoError(w.tb, resumed.End(w.tb.Context(), publisher.RunEnd{Status: schema.StatusCompleted}))
}

func TestImport_RewoundRun_ComesBack(t *testing.T) {
	t.Parallel()
	w, other := newWorld(t, "alpha"), newWorld(t, "alpha")
	w.rewound("r1", 4)
	b, _ := w.export(false, "r1")
	_, err := other.importing(b, nil)
	require.NoError(t, err)
	before, after := w.state("r1"), other.state("r1")
	require.Equal(t, texts(before), texts(after))
	require.Equal(t, before.Head.Superseded, after.Head.Superseded)
	require.Equal(t, before.Head.Counts, after.Head.Counts)
	require.Equal(t, before.Head.Digest, after.Head.Digest)
}
