package backup

import (
	"bytes"
	stdjson "encoding/json"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"
)

// Resum returns a manifest with its correct sum.
func Resum(tb testing.TB, manifest map[string]any) []byte {
	tb.Helper()
	b, err := stdjson.Marshal(manifest)
	require.NoError(tb, err)
	m := new(Manifest)
	require.NoError(tb, json.Unmarshal(b, m))
	b, err = m.encode()
	require.NoError(tb, err)
	return b
}

// Resubject returns a stream's file with another subject for its messages.
func Resubject(tb testing.TB, content []byte, subject string) []byte {
	tb.Helper()
	var (
		out bytes.Buffer
		w   *contentWriter
	)
	err := readContent(bytes.NewReader(content), func(st stdjson.RawMessage) (err error) {
		w, err = newContentWriter(&out, st)
		return err
	}, func(m *message) error {
		m.subject = subject
		return w.add(m)
	})
	require.NoError(tb, err)
	require.NoError(tb, w.end())
	return out.Bytes()
}

// Bomb returns a stream's file of so many messages of 1 MiB, which packs to next to nothing, with the state of another.
func Bomb(tb testing.TB, content []byte, subject string, messages int) []byte {
	tb.Helper()
	var out bytes.Buffer
	var w *contentWriter
	err := readContent(bytes.NewReader(content), func(st stdjson.RawMessage) (err error) {
		w, err = newContentWriter(&out, st)
		return err
	}, func(*message) error { return nil })
	require.NoError(tb, err)
	for i := range messages {
		require.NoError(tb, w.add(&message{subject: subject, seq: uint64(i + 1), body: make([]byte, 1<<20)}))
	}
	require.NoError(tb, w.end())
	return out.Bytes()
}
