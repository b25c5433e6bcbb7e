package cli

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/look/failure"
)

func TestServe_DiskIsFullAtTheStart_SaysSoAndStartsOnceThereIsRoom(t *testing.T) {
	t.Parallel()
	disk := natstest.Disk(t, 512)
	state, ballast := filepath.Join(disk, "state"), filepath.Join(disk, "ballast")
	address := fmt.Sprintf("127.0.0.1:%d", natstest.FreePorts(t, 1)[0])
	args := []string{"--state-dir", state, "--http", address, "--quota", "32MiB"}
	none := func(string) string { return "" }
	_, stop, err := startDaemon(args, none)
	require.NoError(t, err)
	code, text := stop()
	require.Zero(t, code, text)

	require.ErrorIs(t, os.WriteFile(ballast, make([]byte, 512<<20), 0o600), syscall.ENOSPC)
	log := new(lockedBuffer)
	type started struct {
		line string
		stop func() (int, string)
		err  error
	}
	ready := make(chan started, 1)
	go func() {
		line, stop, err := startDaemonTo(log, args, none)
		ready <- started{line, stop, err}
	}()
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "the daemon starts once there is free space") }, time.Minute, 10*time.Millisecond)
	require.Contains(t, log.String(), "the disk of "+state+" has no room, 0 of 512 MiB are free")
	require.Contains(t, log.String(), "free at least 25.6 MiB on the disk of "+state)
	status, text := ask(t, "http://"+address+"/healthz")
	require.Equal(t, http.StatusOK, status, "no restart makes room: %s", text)
	status, text = ask(t, "http://"+address+"/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, text, "is starting or stopping")
	status, _ = ask(t, "http://"+address+"/metrics")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.NoError(t, os.Remove(ballast))
	got := <-ready
	require.NoError(t, got.err)
	require.Contains(t, got.line, "ready")
	code, text = got.stop()
	require.Zero(t, code, text)
}

// The server of a daemon that met a full disk stores nothing more before it is started again. The process, its HTTP address and the
// server's port stay.
func TestServe_DiskFillsUpAndHasRoomAgain_TakesWritesAgain(t *testing.T) {
	t.Parallel()
	disk := natstest.Disk(t, 512)
	state, ballast := filepath.Join(disk, "state"), filepath.Join(disk, "ballast")
	log := new(lockedBuffer)
	line, stop, err := startDaemonTo(log, []string{"--state-dir", state, "--http", "127.0.0.1:0", "--quota", "32MiB", "--shards", "1"}, func(string) string { return "" })
	require.NoError(t, err)
	defer func() {
		code, text := stop()
		require.Zero(t, code, text)
	}()
	url := regexp.MustCompile(` http=(\S+)`).FindStringSubmatch(line)[1]
	end, err := natsconn.Discover(t.Context(), state)
	require.NoError(t, err)
	nc, err := end.Connect(nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	require.NoError(t, err)
	defer nc.Close()
	driveRun(t, nc, "before")

	require.ErrorIs(t, os.WriteFile(ballast, make([]byte, 512<<20), 0o600), syscall.ENOSPC)
	require.Eventually(t, func() bool {
		_ = nc.Publish(schema.NamesOf(schema.DefaultFleet, 0).EventSubject("large"), make([]byte, 64<<10)) // it has no room
		status, text := ask(t, url+"/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(text, "the disk of "+state)
	}, time.Minute, 10*time.Millisecond)
	status, text := ask(t, url+"/healthz")
	require.Equal(t, http.StatusOK, status, text)

	require.NoError(t, os.Remove(ballast))
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "the disk has free space again") }, time.Minute, 10*time.Millisecond)
	require.Eventually(t, func() bool { status, _ := ask(t, url+"/readyz"); return status == http.StatusOK }, time.Minute, 10*time.Millisecond)
	require.Eventually(t, nc.IsConnected, time.Minute, 10*time.Millisecond, "the port stays")
	driveRun(t, nc, "after")
	fleet, err := publisher.Connect(t.Context(), publisher.Config{Conn: nc, Executor: "disk-test"})
	require.NoError(t, err)
	defer func() { require.NoError(t, fleet.Close(context.WithoutCancel(t.Context()))) }()
	for _, run := range []string{"before", "after"} {
		kept, err := fleet.Get(t.Context(), run)
		require.NoError(t, err)
		require.Equal(t, "coder", kept.Head.Agent)
	}
}

func TestErase_DiskOfTheReceiptIsFull_SaysThatTheRunIsErased(t *testing.T) {
	t.Parallel()
	disk := natstest.Disk(t, 1)
	ballast := filepath.Join(disk, "ballast")
	nc, ready := startServe(t)
	driveRun(t, nc, "gone")
	require.ErrorIs(t, os.WriteFile(ballast, make([]byte, 1<<20+1), 0o600), syscall.ENOSPC)

	write := func(name string, args ...string) (int, string) {
		file, err := os.Create(filepath.Join(disk, name))
		require.NoError(t, err)
		defer func() { require.NoError(t, file.Close()) }()
		var stderr bytes.Buffer
		return Run(t.Context(), append([]string{"--context", ready.Context}, args...), func(string) string { return "" }, nil, file, &stderr), stderr.String()
	}
	code, text := write("receipt.json", "erase", "gone", "--force", "--json")
	require.Equal(t, int(failure.General), code, text)
	require.Contains(t, text, "erased run gone, but the receipt was not written: ")
	require.Contains(t, text, "request the receipt again: waymark --context "+ready.Context+" erase gone --json")
	code, text = write("report.json", "cleanup", "--max-age", "0d", "--json")
	require.Equal(t, int(failure.General), code, text)
	require.Contains(t, text, "runs removed: 0, but the report was not written: ")

	require.NoError(t, os.Remove(ballast))
	code, text = write("receipt.json", "erase", "gone", "--json")
	require.Zero(t, code, text)
	code, text = command(t, t.TempDir(), "--context", ready.Context, "erase", "--check", filepath.Join(disk, "receipt.json"))
	require.Zero(t, code, text)
}
