package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	stdjson "encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/klauspost/compress/s2"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// FuzzBackup tries what a directory says that it is a backup: its manifest with a right sum, the description of a
// stream, and a stream's file.
func FuzzBackup(f *testing.F) {
	c := kvstore.FleetConfig{Fleet: "f"}.Defaults()
	settings := kvstore.FleetSettings{
		Format: kvstore.SettingsFormat, Fleet: "f", Generations: []int{1}, Replicas: c.Replicas, QuotaBytes: c.QuotaBytes,
		ReserveBytes: c.ReserveBytes, CheckpointsPerRun: c.CheckpointsPerRun,
	}
	manifest := &Manifest{Format: Format, ID: "b-1", Fleet: "f", Settings: settings, Shards: []ShardCut{{Cut: 3}}}
	for _, s := range streamNames(&settings) {
		manifest.Streams = append(manifest.Streams, Stream{Name: s.name, Files: []File{{Name: aboutName}, {Name: contentName}}})
	}
	whole, err := json.Marshal(manifest)
	require.NoError(f, err)
	f.Add(uint8(0), whole)
	require.NotNil(f, tryManifest(f, whole))
	f.Add(uint8(0), bytes.Replace(whole, []byte(`"generations":[1]`), []byte(`"generations":[]`), 1))
	f.Add(uint8(0), bytes.Replace(whole, []byte(`"generations":[1]`), []byte(`"generations":[9000000000000000000,1]`), 1))
	f.Add(uint8(1), []byte(`{"config":{"name":"S","placement":{},"metadata":{"_nats.x":"y"}},"state":{"first_seq":1,"last_seq":2}}`))
	f.Add(uint8(1), []byte(`{"config":null}`))
	var file bytes.Buffer
	w, err := newContentWriter(&file, stdjson.RawMessage(`{"first_seq":1,"last_seq":2}`))
	require.NoError(f, err)
	require.NoError(f, w.add(&message{subject: "a.b", at: 1, seq: 1, header: []byte("NATS/1.0\r\n\r\n"), body: []byte("x")}))
	require.NoError(f, w.end())
	var plain bytes.Buffer
	_, err = plain.ReadFrom(s2.NewReader(&file))
	require.NoError(f, err)
	f.Add(uint8(2), plain.Bytes())
	require.Equal(f, "n1", payloadName([]byte(`{"name":"run.sha256-0","nuid":"n1"}`)))
	f.Add(uint8(3), []byte(`{"name":"run.sha256-0","nuid":"*"}`))
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		switch kind % 4 {
		case 0:
			tryManifest(t, b)
		case 1:
			tryDescription(t, b)
		case 2:
			tryContent(t, b)
		case 3:
			name := payloadName(b)
			require.True(t, name == "" || schema.ValidName(name))
		}
	})
}

// tryManifest gives a manifest its right sum first.
func tryManifest(tb testing.TB, b []byte) *Manifest {
	tb.Helper()
	m := new(Manifest)
	if json.Unmarshal(b, m) == nil {
		if sealed, err := m.encode(); err == nil {
			b = sealed
		}
	}
	m, err := decodeManifest(b)
	if err != nil {
		require.Nil(tb, m)
		return nil
	}
	require.True(tb, schema.ValidName(m.Fleet))
	require.Len(tb, m.Shards, m.Settings.Shards())
	for _, s := range m.Streams {
		require.Equal(tb, filepath.Base(s.Name), s.Name, "a stream's directory is below the backup's")
		require.NotContains(tb, s.Name, "..")
	}
	return m
}

func tryDescription(t *testing.T, b []byte) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, streamsDir, "S"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, streamsDir, "S", aboutName), b, 0o600))
	sum := sha256.Sum256(b)
	s := &Stream{Name: "S", Files: []File{{Name: aboutName, Bytes: int64(len(b)), SHA256: hex.EncodeToString(sum[:])}, {Name: contentName}}}
	about, err := readAbout(dir, s)
	if err != nil {
		return
	}
	require.Error(t, checkStream(dir, s), "there is no content")
	out, err := adapt(about.Config, "b-1", map[string]any{"num_replicas": 1})
	if err != nil {
		return
	}
	var members map[string]stdjson.RawMessage
	require.NoError(t, stdjson.Unmarshal(out, &members))
	require.NotContains(t, members, "placement")
	require.Contains(t, string(members["metadata"]), "b-1")
}

func tryContent(t *testing.T, b []byte) {
	t.Helper()
	var file bytes.Buffer
	w := s2.NewWriter(&file, s2.WriterConcurrency(1))
	_, err := w.Write(b)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	last := uint64(0)
	err = readContent(&file, func(stdjson.RawMessage) error { return nil }, func(m *message) error {
		require.Greater(t, m.seq, last)
		require.LessOrEqual(t, len(m.header)+len(m.body), maxMessage)
		last = m.seq
		return nil
	})
	if err != nil {
		require.ErrorIs(t, err, ErrDamaged)
	}
}
