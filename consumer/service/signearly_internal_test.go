package service

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// ahead has a server whose clock is ahead of the one that stores the events.
type ahead struct{ jetstream.JetStream }

func (a *ahead) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	s, err := a.JetStream.Stream(ctx, name)
	if err != nil {
		return nil, err
	}
	info := *s.CachedInfo()
	info.TimeStamp = info.TimeStamp.Add(2 * schema.KeyDelay)
	return &aheadStream{s, &info}, nil
}

type aheadStream struct {
	jetstream.Stream
	info *jetstream.StreamInfo
}

func (s *aheadStream) CachedInfo() *jetstream.StreamInfo { return s.info }

// A daemon whose key was added just now does not sign with it. If it does, because servers' clocks differ, the first
// event that the fold refuses ends the request.
func TestService_KeyNotInEffect_TellsAndWritesNothingMore(t *testing.T) {
	t.Parallel()
	w := fleettest.New(t, fleettest.Keyed(t))
	live := liveness.NewLiveRuns([]*kvstore.Shard{w.Shard}, 0, w.Clock.Now, natstest.Logger(t))
	w.Live = live
	w.Go(live.Run)
	worker, err := fold.New(fold.Config{Fleet: "default", Holder: "daemon-1", LeaseTTL: time.Second}, w.NC, w.JS, w.Shard, w.Clock.Now, natstest.Logger(t))
	require.NoError(t, err)
	w.Go(worker.Run)
	w.Begin("run-1", "executor-1", "i1")
	nc := w.Server.Conn(t)
	fleettest.Keyed(t)(nc)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, err = kvstore.NewFleets(js).AddKey(t.Context(), "default", nc.Opts.Nkey)
	require.NoError(t, err)
	settings, _, err := kvstore.NewFleets(js).Get(t.Context(), "default")
	require.NoError(t, err)
	ask := func(js jetstream.JetStream) {
		shard, err := kvstore.OpenShard(js, settings, 0, "daemon-2")
		require.NoError(t, err)
		cfg := Config{Fleet: "default", Name: "daemon-2"}
		s, err := New(cfg, nc, js, []*kvstore.Shard{shard}, live, time.Now, natstest.Logger(t))
		require.NoError(t, err)
		defer w.Go(s.Run)()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err = s.writer.write(ctx, "run-1", change{who: sender{by: "alice"}, decide: func(context.Context, *reader.Snapshot) (decision, error) {
			return decision{data: &schema.RunCancelRequestedData{By: "alice"}}, nil
		}})
		require.ErrorIs(t, err, keyring.ErrSigner)
		require.NoError(t, ctx.Err())
		_, err = s.writer.takeover(ctx, "run-1", &schema.RecoverRequest{Executor: "two", RequestID: "q", Reason: schema.TakeoverRequest}, nil, reader.Head,
			func(*reader.Snapshot) error { return nil })
		require.ErrorIs(t, err, keyring.ErrSigner)
		require.NoError(t, ctx.Err())
	}
	events := func() uint64 {
		stream, err := js.Stream(t.Context(), w.Names.EventStream())
		require.NoError(t, err)
		return stream.CachedInfo().State.LastSeq
	}
	before := events()
	ask(js)
	require.Equal(t, before, events())
	ask(&ahead{js})
	require.Equal(t, before+2, events(), "each request wrote one event, and none more")
}
