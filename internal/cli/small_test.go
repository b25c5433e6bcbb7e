package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/natsd"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestAServerWithoutRoomForTheQuotaIsNamedWithTheWayOut(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.With(func(c *natsd.Config) { c.MaxStore = 512 << 20 }))
	getenv := func(string) string { return "" }
	var stdout, stderr bytes.Buffer
	args := []string{"serve", "--http", "off", "--context", server.NATSD().Endpoint().Context, "--log-level", "error"}
	code := Run(t.Context(), args, getenv, strings.NewReader(""), &stdout, &stderr)
	require.Equal(t, int(failure.Full), code, stderr.String())
	require.Contains(t, stderr.String(), "10737418240 bytes")
	require.Contains(t, stderr.String(), "hint: use a quota below 10.0 GiB (waymark --context "+schema.ShellWord(args[4])+" serve --quota SIZE)")

	// The way out works.
	line, stop, err := startDaemon(append(args[1:], "--quota", "128MiB"), getenv)
	require.NoError(t, err)
	require.Contains(t, line, server.URL())
	code, log := stop()
	require.Equal(t, int(failure.OK), code, log)
}

func TestServe_OwnServerWithoutRoom_HintNamesAQuotaThatFits(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.With(func(c *natsd.Config) { c.MaxStore = 100 << 20 }))
	d := &daemon{server: server.NATSD()}
	js, err := jetstream.New(server.Conn(t))
	require.NoError(t, err)
	config := kvstore.FleetConfig{Fleet: "default", Shards: 2, QuotaBytes: 64 << 20}
	full := kvstore.Provision(t.Context(), js, config)
	require.ErrorIs(t, full, kvstore.ErrFull)
	f, ok := errors.AsType[*failure.Error](d.noRoom(config, full))
	require.True(t, ok)
	require.Equal(t, failure.Full, f.Code)
	require.Contains(t, f.Hint, "waymark serve --quota 44MiB")
	config.QuotaBytes = 44 << 20
	require.NoError(t, kvstore.Provision(t.Context(), js, config), "what the first start left makes way")
}

func TestServe_OwnServerTooSmallForAnyQuota_HintNamesTheLeastDisk(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.With(func(c *natsd.Config) { c.MaxStore = 15 << 20 }))
	d := &daemon{server: server.NATSD()}
	f, ok := errors.AsType[*failure.Error](d.noRoom(kvstore.FleetConfig{Shards: 1}.Defaults(), kvstore.ErrFull))
	require.True(t, ok)
	require.Contains(t, f.Hint, "a disk of at least 26.7 MiB")
}

// A fleet of a fresh machine with a small disk starts without a flag.
func TestServe_FreshServerWithASmallStore_DefaultQuotaFits(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.With(func(c *natsd.Config) { c.MaxStore = 144 << 20 }))
	js, err := jetstream.New(server.Conn(t))
	require.NoError(t, err)
	a := &base.App{Flags: &base.Flags{}}
	a.Fleet = "default"
	settings, err := serveCmd{}.provisionOnce(t.Context(), a, &daemon{server: server.NATSD()}, js, zerolog.Nop())
	require.NoError(t, err)
	require.EqualValues(t, 72<<20, settings.QuotaBytes)
}
