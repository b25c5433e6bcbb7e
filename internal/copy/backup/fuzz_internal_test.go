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
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// FuzzBackup tries the content of a directory that claims to be a backup: its manifest with a correct sum, the
// description of a stream, and a stream's file.
func FuzzBackup(f *testing.F) {
	manifest := fuzzManifest()
	whole, err := json.Marshal(manifest)
	require.NoError(f, err)
	f.Add(uint8(0), whole)
	require.NotNil(f, tryManifest(f, whole))
	f.Add(uint8(0), bytes.Replace(whole, []byte(`"shards":1,`), []byte(`"shards":0,`), 1))
	f.Add(uint8(0), bytes.Replace(whole, []byte(`"shards":1,`), []byte(`"shards":9000000000000000000,`), 1))
	config, _, err := kvstore.StreamOf(&manifest.Settings, &jetstream.StreamConfig{
		Name: manifest.Streams[0].Name, MaxBytes: manifest.Settings.QuotaBytes, Metadata: map[string]string{"_nats.x": "y"},
	}, 0)
	require.NoError(f, err)
	config.Placement = &jetstream.Placement{Cluster: "elsewhere"}
	about, err := stdjson.Marshal(map[string]any{"config": config, "state": map[string]any{"first_seq": 1, "last_seq": 2}})
	require.NoError(f, err)
	f.Add(uint8(1), about)
	require.True(f, tryDescription(f, about))
	f.Add(uint8(1), []byte(`{"config":null}`))
	var file bytes.Buffer
	w, err := newContentWriter(&file, stdjson.RawMessage(`{"first_seq":1,"last_seq":2}`))
	require.NoError(f, err)
	require.NoError(f, w.add(&message{subject: "a.b", seq: 1, header: []byte("NATS/1.0\r\n\r\n"), body: []byte("x")}))
	require.NoError(f, w.end())
	var plain bytes.Buffer
	_, err = plain.ReadFrom(s2.NewReader(&file))
	require.NoError(f, err)
	f.Add(uint8(2), plain.Bytes())
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		switch kind % 3 {
		case 0:
			tryManifest(t, b)
		case 1:
			_ = tryDescription(t, b) // it asserts what it accepts
		case 2:
			tryContent(t, b)
		}
	})
}

// fuzzManifest is one of a fleet with a shard.
func fuzzManifest() *Manifest {
	c := kvstore.FleetConfig{Fleet: "f"}.Defaults()
	settings := schema.FleetSettings{
		Format: schema.SettingsFormat, Fleet: "f", Shards: 1, Replicas: c.Replicas, QuotaBytes: c.QuotaBytes,
		ReserveBytes: c.ReserveBytes, CheckpointsPerRun: c.CheckpointsPerRun,
	}
	m := &Manifest{Format: Format, ID: "b-1", Fleet: "f", Settings: settings, Shards: []ShardCut{{Cut: 3}}}
	for _, s := range streamNames(&settings) {
		m.Streams = append(m.Streams, Stream{Name: s.name, FirstSeq: 1, LastSeq: 2, Files: []File{{Name: aboutName}, {Name: contentName}}})
	}
	return m
}

// tryManifest first gives a manifest its correct sum.
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
	require.Len(tb, m.Shards, m.Settings.Shards)
	for _, s := range m.Streams {
		require.Equal(tb, filepath.Base(s.Name), s.Name, "a stream's directory is below the backup's")
		require.NotContains(tb, s.Name, "..")
	}
	return m
}

// tryDescription reports whether a restore would accept the description.
func tryDescription(tb testing.TB, b []byte) bool {
	tb.Helper()
	m := fuzzManifest()
	s := &m.Streams[0]
	dir := tb.TempDir()
	require.NoError(tb, os.MkdirAll(filepath.Join(dir, streamsDir, s.Name), 0o700))
	require.NoError(tb, os.WriteFile(filepath.Join(dir, streamsDir, s.Name, aboutName), b, 0o600))
	sum := sha256.Sum256(b)
	s.Files[0] = File{Name: aboutName, Bytes: int64(len(b)), SHA256: hex.EncodeToString(sum[:])}
	about, err := readAbout(dir, s)
	if err != nil {
		return false
	}
	left := uint64(1 << 20)
	require.Error(tb, checkStream(dir, m, s, &left), "there is no content")
	config, has, err := checkedConfig(&about, m, s)
	if err != nil {
		return false
	}
	config, err = adapt(config, has, m, &Target{Replicas: 1})
	require.NoError(tb, err)
	require.Nil(tb, config.Placement)
	require.Equal(tb, "b-1", config.Metadata[kvstore.RestoredMetadata])
	require.NotContains(tb, config.Metadata, "_nats.x")
	_, differences, err := kvstore.StreamOf(&m.Settings, &config, has.stored())
	require.NoError(tb, err)
	require.Empty(tb, differences, "the server is given what this version makes")
	return true
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
