package kvstore_test

import (
	"testing"

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
