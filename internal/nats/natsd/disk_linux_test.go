//go:build linux

package natsd_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/natsd"
)

func TestStart_AnyDisk_StoreIsBoundedByItsSize(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, total, err := natsd.DiskRoom(dir)
	require.NoError(t, err)
	require.Equal(t, total/4*3, start(t, natsd.Config{StateDir: dir}).MaxStore())
}

// A store whose quotas are above the limit, as after a move to a smaller disk, is recovered completely and accepts
// writes.
func TestStart_LimitBelowTheQuotas_StreamsAreThere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for last, limit := range []int64{1 << 30, 100 << 20} {
		s := start(t, natsd.Config{StateDir: dir, Options: func(o *server.Options) { o.JetStreamMaxStore = limit }})
		js := diskStream(t, s)
		ack, err := js.Publish(t.Context(), "disk", make([]byte, 1000))
		require.NoError(t, err)
		require.EqualValues(t, last+1, ack.Sequence)
		js.Conn().Close()
		require.NoError(t, s.Close())
	}
}

// A server that starts on a nearly full disk accepts writes once there is room, without a restart.
func TestStart_NearlyFullDisk_TakesWritesOnceThereIsRoom(t *testing.T) {
	t.Parallel()
	disk := natstest.Disk(t, 256)
	ballast := filepath.Join(disk, "ballast")
	for i := range uint64(3) {
		s := start(t, natsd.Config{StateDir: filepath.Join(disk, "state")})
		js := diskStream(t, s)
		for n := range uint64(60) {
			ack, err := js.Publish(t.Context(), "disk", make([]byte, 512<<10))
			require.NoError(t, err)
			require.Equal(t, 60*i+n+1, ack.Sequence)
			if i == 1 && n == 0 {
				require.NoError(t, os.Remove(ballast))
			}
		}
		js.Conn().Close()
		require.NoError(t, s.Close())
		if free, _, err := natsd.DiskRoom(disk); i == 0 {
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(ballast, make([]byte, free-8<<20), 0o600))
		}
	}
}

// diskStream opens a stream with a quota, and creates it if missing.
func diskStream(t *testing.T, s *natsd.Server) jetstream.JetStream {
	t.Helper()
	nc, err := s.Connect()
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	if _, err = js.Stream(t.Context(), "DISK"); err != nil {
		_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "DISK", Subjects: []string{"disk"}, MaxBytes: 150 << 20, Discard: jetstream.DiscardNew})
	}
	require.NoError(t, err)
	return js
}

func TestStart_FullDisk_NamesTheDiskAndChangesNothing(t *testing.T) {
	t.Parallel()
	disk := natstest.Disk(t, 256)
	dir := filepath.Join(disk, "state")
	s := start(t, natsd.Config{StateDir: dir})
	js := diskStream(t, s)
	_, err := js.Publish(t.Context(), "disk", []byte("kept"))
	require.NoError(t, err)
	js.Conn().Close()
	require.NoError(t, s.Close())

	ballast := filepath.Join(disk, "ballast")
	require.ErrorIs(t, os.WriteFile(ballast, make([]byte, 256<<20), 0o600), syscall.ENOSPC)
	for range 2 {
		_, err = natsd.Start(t.Context(), natsd.Config{StateDir: dir}, natstest.Logger(t))
		require.ErrorIs(t, err, natsd.ErrDiskFull)
		var full *natsd.DiskFullError
		require.ErrorAs(t, err, &full)
		require.Equal(t, dir, full.Dir)
		require.EqualValues(t, 256<<20, full.Total)
		require.Zero(t, full.Free)
		require.ErrorContains(t, err, "0 of 256 MiB are free")
	}
	require.NoError(t, os.Remove(ballast))
	s = start(t, natsd.Config{StateDir: dir})
	require.False(t, s.UncleanStart(), "a start that failed is no unclean stop")
	js = diskStream(t, s)
	stream, err := js.Stream(t.Context(), "DISK")
	require.NoError(t, err)
	require.EqualValues(t, 1, stream.CachedInfo().State.Msgs)
	js.Conn().Close()
}
