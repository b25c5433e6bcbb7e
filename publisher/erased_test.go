package publisher_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// mark leaves the mark of a removal behind the last event of a run.
func (w *world) mark(t *testing.T, run, id string) {
	t.Helper()
	header, body := schema.NewErased("default", "daemon", run, id+".1", time.Now()).Encode()
	_, err := w.js.PublishMsg(t.Context(), &nats.Msg{Subject: schema.NamesOf("default", 0).EventSubject(run), Header: header, Data: body})
	require.NoError(t, err)
}

func TestRemoval_OpenHandle_EndsAndIDStaysTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "gone")
	w.mark(t, "gone", "n1")
	_, err := run.StartTurn(t.Context(), publisher.TurnSpec{Messages: []schema.Message{user("go")}})
	require.ErrorIs(t, err, publisher.ErrRunErased)
	require.ErrorIs(t, run.End(t.Context(), publisher.RunEnd{}), publisher.ErrRunErased)
	_, err = f.Start(t.Context(), publisher.RunSpec{ID: "gone", Agent: "coder"})
	require.ErrorIs(t, err, publisher.ErrRunExists)
}

func TestFork_RemovalOrdered_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "base")
	turnWith(t, run, "c1", 1)
	settings, _, err := kvstore.NewFleets(w.js).Get(t.Context(), "default")
	require.NoError(t, err)
	shard, err := kvstore.OpenShard(w.js, settings, 0, "daemon")
	require.NoError(t, err)
	order := &schema.Erasure{Fleet: "default", Run: "base", ID: "n1", By: "tester", AskedAt: schema.FormatTime(time.Now())}
	rev, err := shard.Erasures.Order(t.Context(), order, 0)
	require.NoError(t, err)
	short := w.fleet(func(c *publisher.Config) { c.RequestTimeout = 2 * time.Second })
	_, err = short.Fork(t.Context(), publisher.ForkSpec{ID: "fork", Base: "base"})
	require.ErrorIs(t, err, publisher.ErrUnavailable, "no point is returned before the decision")
	order.DecidedAt = schema.FormatTime(time.Now())
	_, err = shard.Erasures.Order(t.Context(), order, rev)
	require.NoError(t, err)
	w.mark(t, "base", "n1")
	_, err = f.Fork(t.Context(), publisher.ForkSpec{ID: "fork", Base: "base"})
	require.ErrorIs(t, err, publisher.ErrRunErased)
	_, err = f.Head(t.Context(), "fork")
	require.ErrorIs(t, err, publisher.ErrRunNotFound, "nothing of the fork was written")
}
