package publisher_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestRequest_ConnectionLost_RetriedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	asked := make(chan *nats.Msg, 4)
	sub, err := w.nc.ChanSubscribe(schema.ServiceSubject(schema.VerbGet, "default", "*"), asked)
	require.NoError(t, err)
	defer func() { _ = sub.Unsubscribe() }()
	require.NoError(t, w.nc.Flush())
	f := w.fleet(func(c *publisher.Config) { c.RequestTimeout = time.Hour })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	answer := make(chan error, 1)
	go func() {
		_, err := f.Head(ctx, "r1")
		answer <- err
	}()
	<-asked // and never answered: the server goes away with it
	w.server.Restart(t)
	again := <-asked
	reply := nats.NewMsg(again.Reply)
	reply.Header.Set(schema.HeaderErrorCode, "404")
	reply.Data = []byte(`{"code":"run_not_found","message":"no such run"}`)
	require.NoError(t, w.nc.PublishMsg(reply))
	require.ErrorIs(t, <-answer, publisher.ErrRunNotFound)
}
