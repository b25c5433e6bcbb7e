package kvstore_test

import (
	"testing"
	"time"

	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func publicKey(t *testing.T) string {
	t.Helper()
	pair, err := nkeys.CreateUser()
	require.NoError(t, err)
	key, err := pair.PublicKey()
	require.NoError(t, err)
	return key
}

// Keys go through their life, by the server's clock.
func TestFleets_Keys_ChangeAMinuteLater(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: "f", QuotaBytes: kvstore.MinQuotaBytes}))
	fleets := kvstore.NewFleets(js)
	s, _, err := fleets.Get(t.Context(), "f")
	require.NoError(t, err)
	require.Empty(t, s.Keys, "a connection by password makes a fleet without keys")
	keys, err := kvstore.ReadKeys(t.Context(), js, "f")
	require.NoError(t, err)
	require.Same(t, schema.NoKeys, keys)

	first, second := publicKey(t), publicKey(t)
	effective := func(text string) {
		at, err := time.Parse(time.RFC3339Nano, text)
		require.NoError(t, err)
		require.WithinRange(t, at, time.Now().Add(schema.KeyDelay-10*time.Second), time.Now().Add(schema.KeyDelay+10*time.Second))
	}
	s, err = fleets.AddKey(t.Context(), "f", first)
	require.NoError(t, err)
	require.Len(t, s.Keys, 1)
	effective(s.Keys[0].Since)
	again, err := fleets.AddKey(t.Context(), "f", first)
	require.NoError(t, err)
	require.Equal(t, s.Keys, again.Keys)
	_, err = fleets.RetireKey(t.Context(), "f", first)
	require.ErrorIs(t, err, kvstore.ErrSettings, "the last one stays")
	_, err = fleets.RetireKey(t.Context(), "f", second)
	require.ErrorIs(t, err, kvstore.ErrSettings)
	_, err = fleets.AddKey(t.Context(), "f", "UNO")
	require.ErrorIs(t, err, kvstore.ErrSettings)
	_, err = fleets.AddKey(t.Context(), "f", second)
	require.NoError(t, err)
	s, err = fleets.RetireKey(t.Context(), "f", first)
	require.NoError(t, err)
	effective(s.Keys[0].Until)
	require.Empty(t, s.Keys[1].Until)
	_, err = fleets.AddKey(t.Context(), "f", first)
	require.ErrorIs(t, err, kvstore.ErrSettings, "a retired key stays retired")

	// Other changes of the settings leave the keys.
	changed, err := kvstore.Change(t.Context(), js, "f", func(c *kvstore.FleetConfig) { c.CheckpointsPerRun = 7 })
	require.NoError(t, err)
	require.Equal(t, s.Keys, changed.Keys)
	keys, err = kvstore.ReadKeys(t.Context(), js, "f")
	require.NoError(t, err)
	require.Len(t, keys.Signers(), 2)
}
