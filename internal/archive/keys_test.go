package archive_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/archive"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// daemonKey is the key of a fleet's daemon.
func daemonKey(tb testing.TB) (nkeys.KeyPair, string) {
	tb.Helper()
	pair, err := nkeys.FromRawSeed(nkeys.PrefixByteUser, bytes.Repeat([]byte{9}, 32))
	require.NoError(tb, err)
	name, err := pair.PublicKey()
	require.NoError(tb, err)
	return pair, name
}

// keyedArchive is of a fleet with a key: a run with a cancel request signed by its daemon, and one forged by an
// executor.
func keyedArchive(tb testing.TB) []byte {
	tb.Helper()
	pair, name := daemonKey(tb)
	s := source{map[string][]schema.Record{}}
	w := schema.Writer{Fleet: "alpha", Run: "r1", Executor: "exec-1", Epoch: 1}
	digest := ""
	add := func(e *schema.Event, counts bool) {
		header, body := e.Encode()
		rec := schema.NewRecord(schema.StreamSequence(len(s.runs["r1"])+1), header, body)
		rec.Stored = time.Unix(1_700_000_000, 0).UnixNano()
		s.runs["r1"] = append(s.runs["r1"], rec)
		if counts {
			digest = schema.DigestAfter(digest, e)
		}
	}
	write := func(d schema.Data) {
		e, err := w.Event(d, 0, time.Unix(1_700_000_000, 0), 0)
		require.NoError(tb, err)
		require.NoError(tb, w.Commit(e))
		add(e, true)
	}
	write(&schema.RunStartedData{Agent: "coder", Executor: "exec-1"})
	forged, err := schema.NewControl("alpha", "daemon", "r1", 1, "forged", &schema.CheckpointMarkedData{Name: "m", By: "mallory"}, time.Unix(1_700_000_000, 0))
	require.NoError(tb, err)
	add(forged, false)
	e, err := schema.NewControl("alpha", "daemon", "r1", 1, "n1", &schema.RunCancelRequestedData{By: "alice"}, time.Unix(1_700_000_000, 0))
	require.NoError(tb, err)
	require.NoError(tb, e.Sign(name, digest, pair.Sign))
	add(e, true)
	write(&schema.RunEndedData{Status: "cancelled"})
	var b bytes.Buffer
	m, err := archive.Write(tb.Context(), &b, s, archive.Export{
		Fleet: "alpha", Keys: []schema.FleetKey{{Key: name}}, Runs: []string{"r1"}, Made: time.Unix(1_700_000_000, 0),
	})
	require.NoError(tb, err)
	require.EqualValues(tb, 3, m.Runs[0].Events, "the forged event does not count")
	require.EqualValues(tb, 4, m.Runs[0].Records)
	require.Equal(tb, digest, m.Runs[0].Digest)
	return b.Bytes()
}

// A reader without the keys would compute other digests than the manifest's.
func TestArchive_FleetWithKeys_IsFoldedByThem(t *testing.T) {
	t.Parallel()
	_, name := daemonKey(t)
	a, err := archive.Open(bytes.NewReader(keyedArchive(t)), archive.Limits{})
	require.NoError(t, err)
	require.Equal(t, []string{name}, a.Keys.Signers())
}

// It gives the archive another archive's key, and one key twice.
func TestArchive_KeysExchanged_IsRefused(t *testing.T) {
	t.Parallel()
	entries := unpack(t, keyedArchive(t))
	require.Equal(t, "keys.json", entries[0].h.Name)
	other, err := nkeys.CreateUser()
	require.NoError(t, err)
	public, err := other.PublicKey()
	require.NoError(t, err)
	_, name := daemonKey(t)
	for what, change := range map[string]func(text string) string{
		"another key":  func(text string) string { return strings.ReplaceAll(text, name, public) },
		"no key":       func(string) string { return `{"fleet":"alpha","keys":[]}` },
		"no JSON":      func(string) string { return "{" },
		"of a server":  func(text string) string { return strings.ReplaceAll(text, name, "N"+name[1:]) },
		"another name": func(text string) string { return strings.ReplaceAll(text, "alpha", "beta") },
	} {
		changed := append([]entry(nil), entries...)
		changed[0] = file("keys.json", []byte(change(string(entries[0].content))))
		_, err := archive.Open(bytes.NewReader(pack(t, changed)), archive.Limits{})
		require.Error(t, err, what)
	}
}

// The fleet has the key that signed, or another.
func TestImport_KeysOfToday_DecideAboutControlEvents(t *testing.T) {
	t.Parallel()
	_, signed := daemonKey(t)
	other, err := nkeys.CreateUser()
	require.NoError(t, err)
	public, err := other.PublicKey()
	require.NoError(t, err)
	b := keyedArchive(t)
	for key, want := range map[string]error{signed: nil, public: archive.ErrOtherKeys, "": archive.ErrOtherKeys} {
		w := newWorld(t, "alpha")
		if key != "" {
			_, err := kvstore.NewFleets(w.js).AddKey(t.Context(), "alpha", key)
			require.NoError(t, err)
		}
		done, err := w.importing(b, nil)
		require.ErrorIs(t, err, want)
		if want == nil {
			require.Equal(t, archive.FateImported, done[0].Fate)
			continue
		}
		_, err = w.fleet.Get(t.Context(), "r1")
		require.ErrorIs(t, err, publisher.ErrRunNotFound)
	}
}
