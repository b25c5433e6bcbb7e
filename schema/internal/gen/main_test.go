package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGenerate_Files_UpToDate(t *testing.T) {
	const dir = "../.."
	files, err := generate(dir)
	require.NoError(t, err)
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
		require.NoError(t, err, "run go generate ./schema/...")
		require.Equal(t, string(want), string(got), "%s is out of date: run go generate ./schema/...", name)
	}
	stored, err := filepath.Glob(filepath.Join(dir, schemaDir, "*.json"))
	require.NoError(t, err)
	require.Len(t, stored, len(files), "a file of %s is generated no more: run go generate ./schema/...", schemaDir)
}

func TestGenerate_Twice_SameOutput(t *testing.T) {
	first, err := generate("../..")
	require.NoError(t, err)
	second, err := generate("../..")
	require.NoError(t, err)
	require.Equal(t, first, second)
}

func TestGenerate_ObsoleteFiles_Removed(t *testing.T) {
	dir := t.TempDir()
	sources, err := filepath.Glob("../../*.go")
	require.NoError(t, err)
	for _, name := range sources {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(name)), text, 0o600))
	}
	old := filepath.Join(dir, schemaDir, "old.json")
	require.NoError(t, os.MkdirAll(filepath.Dir(old), 0o755))
	require.NoError(t, os.WriteFile(old, nil, 0o600))
	require.NoError(t, run(dir))
	require.NoFileExists(t, old)
	require.FileExists(t, filepath.Join(dir, schemaDir, "head.json"))
}
