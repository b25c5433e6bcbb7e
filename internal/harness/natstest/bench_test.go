package natstest_test

import (
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/natsd"
)

// BenchmarkStart measures the cost of a server for each test.
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		startOnce(b, b.TempDir())
	}
}

// startOnce starts a server, connects and stops.
func startOnce(b *testing.B, dir string) {
	b.Helper()
	s, err := natsd.Start(b.Context(), natsd.Config{StateDir: dir, Sync: natsd.SyncInterval}, zerolog.Nop())
	require.NoError(b, err)
	nc, err := s.Connect()
	require.NoError(b, err)
	nc.Close()
	require.NoError(b, s.Close())
}
