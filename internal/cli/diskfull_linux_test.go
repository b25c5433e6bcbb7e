package cli

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/harness/natstest"
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

func TestErase_DiskOfTheReceiptIsFull_SaysThatTheRunIsErased(t *testing.T) {
	t.Parallel()
	disk := natstest.Disk(t, 1)
	ballast, receipt := filepath.Join(disk, "ballast"), filepath.Join(disk, "receipt.json")
	nc, ready := startServe(t)
	driveRun(t, nc, "gone", 0, nil)
	require.ErrorIs(t, os.WriteFile(ballast, make([]byte, 1<<20+1), 0o600), syscall.ENOSPC)

	dir := t.TempDir()
	code, text := command(t, dir, "--context", ready.Context, "erase", "gone", "--force", "--receipt", receipt)
	require.Equal(t, int(failure.General), code, text)
	again := "waymark --context " + ready.Context + " erase gone --receipt " + receipt
	require.Contains(t, text, "waymark: run gone is erased, and its receipt is not written: ")
	require.Contains(t, text, "hint: ask again for the receipt, the same way or into another file: "+again+"\n")
	require.NoFileExists(t, receipt)

	report := filepath.Join(disk, "report.json")
	code, text = command(t, dir, "--context", ready.Context, "cleanup", "--max-age", "0d", "--report", report)
	require.Equal(t, int(failure.General), code, text)
	require.Contains(t, text, "waymark: 0 runs are removed, and the report is not written: ")
	require.Contains(t, text, "hint: standard output has what was done; it is not reported again")
	code, text = command(t, dir, "--context", ready.Context, "cleanup", "--max-age", "0d", "--dry-run", "--report", report)
	require.Equal(t, int(failure.General), code, text)
	require.Contains(t, text, "waymark: nothing was removed, and the report is not written: ")
	require.NoFileExists(t, report)

	require.NoError(t, os.Remove(ballast))
	code, text = command(t, dir, strings.Fields(again)[1:]...)
	require.Zero(t, code, text)
	require.FileExists(t, receipt)
	code, text = command(t, dir, "--context", ready.Context, "erase", "--check", receipt)
	require.Zero(t, code, text)
}
