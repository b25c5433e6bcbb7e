package serve

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/kvstore"
)

func TestServe_OwnServerWithoutRoom_HintNamesAQuotaThatFits(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.MaxStore(512<<20))
	d := &daemon{server: server.NATSD()}
	js, err := jetstream.New(server.Conn(t))
	require.NoError(t, err)
	config := kvstore.FleetConfig{Fleet: "default", Shards: 2, QuotaBytes: 64 << 20}
	full := kvstore.Provision(t.Context(), js, config)
	require.ErrorIs(t, full, kvstore.ErrFull)
	f, ok := errors.AsType[*failure.Error](d.noRoom(config, full))
	require.True(t, ok)
	require.Equal(t, failure.Full, f.Code)
	require.Contains(t, f.Hint, "waymark serve --quota 35MiB")
	config.QuotaBytes = 35 << 20
	require.NoError(t, kvstore.Provision(t.Context(), js, config), "what the first start left makes way")
}

func TestServe_OwnServerTooSmallForAnyQuota_HintNamesTheLeastDisk(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.MaxStore(15<<20))
	d := &daemon{server: server.NATSD()}
	f, ok := errors.AsType[*failure.Error](d.noRoom(kvstore.FleetConfig{Shards: 1}.Defaults(), kvstore.ErrFull))
	require.True(t, ok)
	require.Contains(t, f.Hint, "a disk of at least 154.7 MiB")
}

// A fleet of a fresh machine with a small disk starts without a flag.
func TestServe_FreshServerWithASmallStore_DefaultQuotaFits(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.MaxStore(144<<20))
	js, err := jetstream.New(server.Conn(t))
	require.NoError(t, err)
	a := &base.App{Flags: &base.Flags{}}
	a.Fleet = "default"
	settings, err := Cmd{}.provisionOnce(t.Context(), a, &daemon{server: server.NATSD()}, js)
	require.NoError(t, err)
	require.EqualValues(t, 18<<20, settings.QuotaBytes)
}
