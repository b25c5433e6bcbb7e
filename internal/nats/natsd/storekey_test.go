package natsd_test

import (
	"bytes"
	"encoding/base64"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/natsd"
)

// keyFile has a key for each id, which may be followed by = and the byte to make it from.
func keyFile(t *testing.T, ids ...string) *encryption.File {
	t.Helper()
	var lines []string
	for _, id := range ids {
		id, of, found := strings.Cut(id, "=")
		if !found {
			of = id
		}
		lines = append(lines, id+" "+base64.StdEncoding.EncodeToString(bytes.Repeat([]byte(of), 32)[:32]))
	}
	path := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600))
	f, err := encryption.ReadFile(path)
	require.NoError(t, err)
	return f
}

// holding returns the files below a directory that contain a text.
func holding(t *testing.T, dir, text string) (found []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if bytes.Contains(content, []byte(text)) {
			found = append(found, path)
		}
		return err
	}))
	return found
}

// snapshot is the content of each file below a directory.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, "waymark.lock") {
			return err
		}
		content, err := os.ReadFile(path)
		all[path] = string(content)
		return err
	}))
	return all
}

const canary = "canaryOfTheStore"

// write stores the canary in a stream, a bucket and an object store, and closes the server.
func write(t *testing.T, cfg natsd.Config) {
	t.Helper()
	s := start(t, cfg)
	js := connect(t, s)
	createStream(t, js)
	for range 100 {
		_, err := js.Publish(t.Context(), "s", []byte(canary))
		require.NoError(t, err)
	}
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "B"})
	require.NoError(t, err)
	_, err = kv.PutString(t.Context(), "k", canary)
	require.NoError(t, err)
	objects, err := js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "O"})
	require.NoError(t, err)
	_, err = objects.PutString(t.Context(), "o", canary)
	require.NoError(t, err)
	require.NoError(t, s.Close())
}

// read returns how often the canary is found.
func read(t *testing.T, cfg natsd.Config) (n int) {
	t.Helper()
	s := start(t, cfg)
	js := connect(t, s)
	stream, err := js.Stream(t.Context(), "S")
	require.NoError(t, err)
	for seq := range stream.CachedInfo().State.LastSeq {
		m, err := stream.GetMsg(t.Context(), seq+1)
		require.NoError(t, err)
		require.Equal(t, canary, string(m.Data))
		n++
	}
	require.NoError(t, s.Close())
	return n
}

func TestStoreKey_StoreIsEncrypted_FilesHaveNoContent(t *testing.T) {
	t.Parallel()
	plain, secret := t.TempDir(), t.TempDir()
	write(t, natsd.Config{StateDir: plain})
	require.NotEmpty(t, holding(t, plain, canary), "the search finds the canary")
	cfg := natsd.Config{StateDir: secret, StoreKeys: keyFile(t, "k1")}
	write(t, cfg)
	require.Empty(t, holding(t, secret, canary))
	require.Equal(t, 100, read(t, cfg))
	require.Empty(t, holding(t, secret, canary))
}

func TestStoreKey_KeyIsRotated_StoreIsReadWithTheNewOneAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, natsd.Config{StateDir: dir, StoreKeys: keyFile(t, "k1")})
	require.Equal(t, 100, read(t, natsd.Config{StateDir: dir, StoreKeys: keyFile(t, "k2", "k1")}))
	require.Equal(t, 100, read(t, natsd.Config{StateDir: dir, StoreKeys: keyFile(t, "k2")}))
	_, err := natsd.Start(t.Context(), natsd.Config{StateDir: dir, StoreKeys: keyFile(t, "k1")}, natstest.Logger(t))
	require.ErrorIs(t, err, natsd.ErrStoreKey)
}

// With any wrong key, the server does not start, and no file is changed.
func TestStoreKey_WrongOrMissing_NothingIsChanged(t *testing.T) {
	t.Parallel()
	dir, plain := t.TempDir(), t.TempDir()
	cfg := natsd.Config{StateDir: dir, StoreKeys: keyFile(t, "k1")}
	write(t, cfg)
	write(t, natsd.Config{StateDir: plain})
	before, beforePlain := snapshot(t, dir), snapshot(t, plain)
	for want, c := range map[string]natsd.Config{
		"encrypted with key k1: give the file":                    {StateDir: dir},
		"encrypted with key k1, which the key file does not have": {StateDir: dir, StoreKeys: keyFile(t, "k2")},
		"key k1 of the key file does not open the store":          {StateDir: dir, StoreKeys: keyFile(t, "k1=other")},
		"is not encrypted: take a backup with waymark backup":     {StateDir: plain, StoreKeys: keyFile(t, "k1")},
	} {
		_, err := natsd.Start(t.Context(), c, natstest.Logger(t))
		require.ErrorIs(t, err, natsd.ErrStoreKey)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "nothing was changed")
	}
	require.Equal(t, before, snapshot(t, dir))
	require.Equal(t, beforePlain, snapshot(t, plain))
	require.Equal(t, 100, read(t, cfg), "and with the key all is there")

	path := filepath.Join(dir, "nats", "store-key.json")
	stored, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.Remove(path))
	for _, keys := range []*encryption.File{nil, cfg.StoreKeys} {
		_, err = natsd.Start(t.Context(), natsd.Config{StateDir: dir, StoreKeys: keys}, natstest.Logger(t))
		require.ErrorIs(t, err, natsd.ErrStoreKey)
		require.ErrorContains(t, err, "store-key.json is missing: put it back")
	}
	require.NoError(t, os.WriteFile(path, stored, 0o600))
	require.Equal(t, 100, read(t, cfg))
}
