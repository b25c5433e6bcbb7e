package cli

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A unit of Type=notify is started once the daemon answers requests, and restarted if the daemon is not alive.
func TestServe_UnderSystemd_TellsReadyAliveAndStopping(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	heard, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, heard.Close()) })
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "20000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, log lockedBuffer
	ended := make(chan int, 1)
	go func() {
		ended <- Run(ctx, []string{"serve", "--http", "off"}, env("WAYMARK_STATE_DIR", t.TempDir()), strings.NewReader(""), &out, &log)
	}()
	await := func(state string) {
		t.Helper()
		require.NoError(t, heard.SetReadDeadline(time.Now().Add(time.Minute)))
		b := make([]byte, 100)
		for got := ""; got != state; {
			n, err := heard.Read(b)
			require.NoError(t, err, "no %s: %s", state, log.String())
			got = string(b[:n])
		}
	}
	await("READY=1")
	await("WATCHDOG=1")
	await("WATCHDOG=1")
	cancel()
	await("STOPPING=1")
	require.Zero(t, <-ended, log.String())
}
