package kvstore_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestInspect_Fleet_EveryStream(t *testing.T) {
	server := natstest.Start(t)
	js := server.JetStream(t)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: "default", Shards: 2, QuotaBytes: 64 << 20}))
	settings, _, err := kvstore.NewFleets(js).Get(t.Context(), "default")
	require.NoError(t, err)
	list := kvstore.Inspect(t.Context(), js, &settings)
	require.Len(t, list, 2+2*3+2)
	for _, s := range list {
		require.NoError(t, s.Err, s.Stream)
		require.NotNil(t, s.Info)
	}

	names := schema.NamesOf("default", 1)
	stream, err := js.Stream(t.Context(), names.EventStream())
	require.NoError(t, err)
	cfg := stream.CachedInfo().Config
	cfg.Discard = jetstream.DiscardOld
	_, err = js.UpdateStream(t.Context(), cfg)
	require.NoError(t, err)
	require.NoError(t, js.DeleteStream(t.Context(), "KV_"+names.SegmentBucket()))
	for _, s := range kvstore.Inspect(t.Context(), js, &settings) {
		switch s.Stream {
		case names.EventStream():
			bad := new(kvstore.ConfigError)
			require.ErrorAs(t, s.Err, &bad)
			require.Equal(t, "discard", bad.Differences[0].Flag)
			require.NotEmpty(t, bad.Command)
		case "KV_" + names.SegmentBucket():
			require.ErrorIs(t, s.Err, kvstore.ErrStreamMissing)
			require.True(t, s.Truth)
		default:
			require.NoError(t, s.Err, s.Stream)
		}
	}
	stream, err = js.Stream(t.Context(), names.EventStream())
	require.NoError(t, err)
	require.Equal(t, jetstream.DiscardOld, stream.CachedInfo().Config.Discard, "nothing is changed")
}

func TestInspect_ShardsSilent_OthersAreRead(t *testing.T) {
	server := natstest.Start(t)
	nc, direct := server.Conn(t), server.JetStream(t)
	require.NoError(t, kvstore.Provision(t.Context(), direct, kvstore.FleetConfig{Fleet: "default", Shards: 5, QuotaBytes: 16 << 20}))
	settings, _, err := kvstore.NewFleets(direct).Get(t.Context(), "default")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var asked atomic.Int32
	others := make(chan struct{})
	_, err = nc.Subscribe("part.API.>", func(m *nats.Msg) {
		go func() {
			if strings.HasSuffix(m.Subject, "_4") {
				if asked.Add(1) == 3 { // the streams of shard 4
					close(others)
				}
			}
			select { // all others are silent until these have been asked for
			case <-others:
			case <-ctx.Done():
				return
			}
			if r, err := nc.RequestWithContext(ctx, "$JS.API."+strings.TrimPrefix(m.Subject, "part.API."), m.Data); err == nil {
				_ = m.Respond(r.Data)
			}
		}()
	})
	require.NoError(t, err)
	js, err := jetstream.NewWithAPIPrefix(server.Conn(t), "part.API")
	require.NoError(t, err)
	for _, s := range kvstore.Inspect(ctx, js, &settings) {
		require.NoError(t, s.Err, s.Stream)
	}
}
