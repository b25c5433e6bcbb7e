package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOwnFolder_LeftOfKilledTests_IsRemoved(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "own")
	require.NoError(t, ownFolder(dir))
	old, recent := filepath.Join(dir, "old"), filepath.Join(dir, "recent")
	require.NoError(t, os.MkdirAll(filepath.Join(old, "in"), 0o700))
	require.NoError(t, os.Mkdir(recent, 0o700))
	yesterday := time.Now().Add(-leftFor - time.Hour)
	require.NoError(t, os.Chtimes(old, yesterday, yesterday))
	require.NoError(t, ownFolder(dir))
	require.NoDirExists(t, old)
	require.DirExists(t, recent)
}

func TestOwnFolder_OthersMayReadIt_IsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755)) //nolint:gosec // that is what is refused
	require.ErrorContains(t, ownFolder(dir), "remove it")
	file := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(dir, file))
	require.ErrorContains(t, ownFolder(file), "remove it")
}
