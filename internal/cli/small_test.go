package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/schema"
)

func TestServe_NoRoomForQuota_NamesNextStep(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.MaxStore(512<<20))
	getenv := func(string) string { return "" }
	var stdout, stderr bytes.Buffer
	args := []string{"serve", "--http", "off", "--context", server.NATSD().Endpoint().Context, "--log-level", "error"}
	code := Run(t.Context(), args, getenv, strings.NewReader(""), &stdout, &stderr)
	require.Equal(t, int(failure.Full), code, stderr.String())
	require.Contains(t, stderr.String(), "4294967296 bytes")
	require.Contains(t, stderr.String(), "hint: use a quota below 4.0 GiB (waymark"+schema.Flag("context", args[4])+" serve --quota SIZE)")

	// The way out works.
	line, stop, err := startDaemon(append(args[1:], "--quota", "64MiB"), getenv)
	require.NoError(t, err)
	require.Contains(t, line, server.URL())
	code, log := stop()
	require.Equal(t, int(failure.OK), code, log)
}
