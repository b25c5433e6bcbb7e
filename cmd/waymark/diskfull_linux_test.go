package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/natstest"
)

func TestServe_DiskIsFullAtTheStart_SaysSoAndStartsOnceThereIsRoom(t *testing.T) {
	t.Parallel()
	disk := natstest.Disk(t, 512)
	state, ballast := filepath.Join(disk, "state"), filepath.Join(disk, "ballast")
	args := []string{"--state-dir", state, "--http", "off", "--quota", "64MiB"}
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
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "the daemon starts once there is room") }, time.Minute, 10*time.Millisecond)
	require.Contains(t, log.String(), "the disk of "+state+" has no room, 0 of 512 MiB are free")
	require.Contains(t, log.String(), "make room on the disk of "+state+", 25.6 MiB at least")
	require.NoError(t, os.Remove(ballast))
	got := <-ready
	require.NoError(t, got.err)
	require.Contains(t, got.line, "ready")
	code, text = got.stop()
	require.Zero(t, code, text)
}
