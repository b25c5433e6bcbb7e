package kvstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// pausing is a client that is stopped for a time after the server's first answers, which are old by then.
type pausing struct {
	jetstream.JetStream
	pauses int
	pause  time.Duration
}

func (p *pausing) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	s, err := p.JetStream.Stream(ctx, name)
	if err != nil || p.pauses == 0 {
		return s, err
	}
	p.pauses--
	info := *s.CachedInfo()
	info.TimeStamp = info.TimeStamp.Add(-p.pause)
	return &olderStream{s, &info}, nil
}

type olderStream struct {
	jetstream.Stream
	info *jetstream.StreamInfo
}

func (s *olderStream) CachedInfo() *jetstream.StreamInfo { return s.info }

// A client that is stopped between reading the time and storing the change gives its change another time.
func TestFleets_KeysStoredLate_ArePutOff(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: "f", QuotaBytes: kvstore.MinQuotaBytes}))
	in := func(text string) time.Duration {
		at, err := time.Parse(time.RFC3339Nano, text)
		require.NoError(t, err)
		return time.Until(at)
	}
	first, second := publicKey(t), publicKey(t)

	// A change that readers know in time is not postponed.
	s, err := kvstore.NewFleets(&pausing{js, 1, 10 * time.Second}).AddKey(t.Context(), "f", first)
	require.NoError(t, err)
	require.Less(t, in(s.Keys[0].Since), schema.KeyDelay-5*time.Second)

	s, err = kvstore.NewFleets(&pausing{js, 1, 40 * time.Second}).AddKey(t.Context(), "f", second)
	require.ErrorIs(t, err, kvstore.ErrKeysLate)
	require.ErrorContains(t, err, s.Keys[1].Since)
	require.Greater(t, in(s.Keys[1].Since), schema.KeysFresh)
	require.Less(t, in(s.Keys[0].Since), schema.KeyDelay, "another key keeps its time")

	stored, _, err := kvstore.NewFleets(js).Get(t.Context(), "f")
	require.NoError(t, err)
	require.Equal(t, s.Keys, stored.Keys)
}

// A fleet whose settings are gone may have had keys.
func TestReadKeys_SettingsNotStored_Fails(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	_, err := kvstore.ReadKeys(t.Context(), js, "f")
	require.ErrorIs(t, err, keyring.ErrRead)
	require.ErrorIs(t, err, kvstore.ErrStreamMissing)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: "g", QuotaBytes: kvstore.MinQuotaBytes}))
	_, err = kvstore.ReadKeys(t.Context(), js, "f")
	require.ErrorIs(t, err, keyring.ErrRead)
	require.ErrorIs(t, err, kvstore.ErrNotFound)
}
