package archive_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/archive"
	"github.com/waymarkio/waymark/schema"
)

// entry of a tar file.
type entry struct {
	h       tar.Header
	content []byte
}

func file(name string, content []byte) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(content))}, content}
}

func unpack(tb testing.TB, b []byte) []entry {
	tb.Helper()
	z, err := zstd.NewReader(bytes.NewReader(b))
	require.NoError(tb, err)
	defer z.Close()
	var entries []entry
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return entries
		}
		require.NoError(tb, err)
		content, err := io.ReadAll(t)
		require.NoError(tb, err)
		entries = append(entries, file(h.Name, content))
	}
}

func tarOf(tb testing.TB, entries []entry) []byte {
	tb.Helper()
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	for _, e := range entries {
		require.NoError(tb, t.WriteHeader(&e.h))
		_, err := t.Write(e.content)
		require.NoError(tb, err)
	}
	require.NoError(tb, t.Close())
	return b.Bytes()
}

func compress(tb testing.TB, b []byte) []byte {
	tb.Helper()
	z, err := zstd.NewWriter(nil)
	require.NoError(tb, err)
	return z.EncodeAll(b, nil)
}

func pack(tb testing.TB, entries []entry) []byte {
	tb.Helper()
	return compress(tb, tarOf(tb, entries))
}

// source has runs made of events.
type source struct{ runs map[string][]schema.Record }

func (s source) Events(_ context.Context, run string, yield func(schema.Record) error) error {
	for _, r := range s.runs[run] {
		if err := yield(r); err != nil {
			return err
		}
	}
	return nil
}

var blobText = []byte(`"a large text"`)

func (s source) Blob(context.Context, string) ([]byte, error) { return blobText, nil }

// smallArchive has two runs, each with a blob.
func smallArchive(tb testing.TB) []byte {
	tb.Helper()
	s := source{map[string][]schema.Record{}}
	sum := sha256.Sum256(blobText)
	for _, run := range []string{"r1", "r2"} {
		w := schema.Writer{Fleet: "alpha", Run: run, Executor: "exec-1", Epoch: 1}
		for i, d := range []schema.Data{
			&schema.RunStartedData{Agent: "coder", Executor: "exec-1"},
			&schema.PhaseCompletedData{Phase: "p", Refs: []schema.Ref{{Path: "/output", DataRef: schema.DataRef(run, hex.EncodeToString(sum[:]))}}},
			&schema.RunEndedData{Status: "completed"},
		} {
			e, err := w.Event(d, 0, time.Unix(1_700_000_000, 0), 0)
			require.NoError(tb, err)
			require.NoError(tb, w.Commit(e))
			header, body := e.Encode()
			s.runs[run] = append(s.runs[run], schema.NewRecord(schema.StreamSequence(i+1), header, body))
		}
	}
	var b bytes.Buffer
	_, err := archive.Write(tb.Context(), &b, s, archive.Export{Fleet: "alpha", Runs: []string{"r1", "r2"}, Made: time.Unix(1_700_000_000, 0)})
	require.NoError(tb, err)
	return b.Bytes()
}

func TestOpen_HostileArchive_RefusedByName(t *testing.T) {
	t.Parallel()
	good := smallArchive(t)
	entries := unpack(t, good)
	require.Len(t, entries, 5)
	_, err := archive.Open(bytes.NewReader(good), archive.Limits{})
	require.NoError(t, err)
	// with is the archive with another entry at a place.
	with := func(at int, e entry) []byte {
		list := append([]entry(nil), entries[:at]...)
		return pack(t, append(append(list, e), entries[at:]...))
	}
	// instead has another content, and name if one is given, in place of an entry.
	instead := func(at int, name string, change func([]byte) []byte) []byte {
		list := append([]entry(nil), entries...)
		if name == "" {
			name = list[at].h.Name
		}
		list[at] = file(name, change(append([]byte(nil), list[at].content...)))
		return pack(t, list)
	}
	keep := func(b []byte) []byte { return b }
	link := func(kind byte, name, to string) entry {
		return entry{tar.Header{Typeflag: kind, Name: name, Linkname: to}, nil}
	}
	hash := strings.Repeat("ab", 32)
	outside := filepath.Join(t.TempDir(), "outside")
	for _, c := range []struct {
		name, entry string
		archive     []byte
		want        error
	}{
		{"an absolute path", outside, with(0, file(outside, []byte("x"))), archive.ErrHostile},
		{"a parent path", "../outside", with(0, file("../outside", []byte("x"))), archive.ErrHostile},
		{"a parent path within", "runs/r1/events/../../../outside", with(1, file("runs/r1/events/../../../outside", []byte("x"))), archive.ErrHostile},
		{"a parent as run", "runs/../events/000001", with(0, file("runs/../events/000001", []byte("x"))), archive.ErrHostile},
		{"a path of windows", `runs\r1\events\000001`, with(0, file(`runs\r1\events\000001`, []byte("x"))), archive.ErrHostile},
		{"a symbolic link", "runs/r1/events/000002", with(1, link(tar.TypeSymlink, "runs/r1/events/000002", "/etc/passwd")), archive.ErrHostile},
		{"a hard link", "runs/r1/events/000002", with(1, link(tar.TypeLink, "runs/r1/events/000002", "runs/r1/events/000001")), archive.ErrHostile},
		{"a device", "runs/r1/events/000002", with(1, link(tar.TypeChar, "runs/r1/events/000002", "")), archive.ErrHostile},
		{"a pipe", "runs/r1/events/000002", with(1, link(tar.TypeFifo, "runs/r1/events/000002", "")), archive.ErrHostile},
		{"a directory", "runs/", with(0, link(tar.TypeDir, "runs/", "")), archive.ErrHostile},
		{"attributes of its own", "runs/r1/events/000002", with(1, entry{tar.Header{
			Typeflag: tar.TypeReg, Name: "runs/r1/events/000002", PAXRecords: map[string]string{"WAYMARK.x": "y"},
		}, nil}), archive.ErrHostile},
		{"a name outside the form", "readme.txt", with(0, file("readme.txt", []byte("x"))), archive.ErrHostile},
		{"another spelling of a number", "runs/r1/events/2", with(1, file("runs/r1/events/2", []byte("x"))), archive.ErrHostile},
		{"a control character in a name", "runs/r\x1b1/events/000001", with(0, file("runs/r\x1b1/events/000001", []byte("x"))), archive.ErrHostile},
		{"an entry twice", "runs/r1/events/000001", with(1, entries[0]), archive.ErrHostile},
		{"a blob twice", entries[1].h.Name, with(2, entries[1]), archive.ErrHostile},
		{"a run that comes again", "runs/r1/events/000001", with(4, entries[0]), archive.ErrHostile},
		{"a blob without a reference", "runs/r1/blobs/" + hash, instead(1, "runs/r1/blobs/"+hash, keep), archive.ErrDamaged},
		{"a blob before its run", "runs/r1/blobs/" + hash, with(0, file("runs/r1/blobs/"+hash, []byte("x"))), archive.ErrHostile},
		{"a changed event", "runs/r1/events/000001", instead(0, "", func(b []byte) []byte { return bytes.Replace(b, []byte("coder"), []byte("codez"), 1) }), archive.ErrDamaged},
		{"frames that cannot be read", "runs/r1/events/000001", instead(0, "", func(b []byte) []byte { return b[:len(b)-3] }), archive.ErrDamaged},
		{"a header for the server", "runs/r1/events/000001", instead(0, "", func(b []byte) []byte {
			return schema.AppendFrame(b, &schema.Record{Stream: 1 << 40, Header: map[string][]string{"nAts-Rollup": {"all"}}, Body: []byte("x")})
		}), archive.ErrHostile},
		{"a changed blob", entries[1].h.Name, instead(1, "", func(b []byte) []byte { b[3] ^= 1; return b }), archive.ErrDamaged},
		{"a missing entry", "manifest.json", pack(t, append(append([]entry(nil), entries[:1]...), entries[2:]...)), archive.ErrDamaged},
		{"a changed manifest", "manifest.json", instead(4, "", func(b []byte) []byte { return bytes.Replace(b, []byte("completed"), []byte("failed"), 1) }), archive.ErrDamaged},
		{"no manifest", "", pack(t, entries[:4]), archive.ErrDamaged},
		{"a manifest that is no JSON", "manifest.json", instead(4, "", func([]byte) []byte { return []byte("{") }), archive.ErrDamaged},
		{"a later version", "manifest.json", instead(4, "", func(b []byte) []byte { return bytes.Replace(b, []byte(`"format": 3`), []byte(`"format": 4`), 1) }), archive.ErrFormat},
		{"an entry behind the manifest", "runs/r3/events/000001", pack(t, append(append([]entry(nil), entries...), file("runs/r3/events/000001", []byte("x")))), archive.ErrDamaged},
		{"nothing", "", nil, archive.ErrDamaged},
		{"no archive", "", []byte("this is a letter, and no archive"), archive.ErrDamaged},
		{"cut off", "", good[:len(good)-9], archive.ErrDamaged},
		{"cut off in the middle", "", good[:len(good)/2], archive.ErrDamaged},
		{"cut off between entries", "", compress(t, tarOf(t, entries)[:1024]), archive.ErrDamaged},
		{"something behind the file", "", append(append([]byte(nil), good...), "and more"...), archive.ErrDamaged},
		{"another archive behind it", "", append(append([]byte(nil), good...), good...), archive.ErrDamaged},
		{"something behind the tar file", "", compress(t, append(tarOf(t, entries), "and more"...)), archive.ErrDamaged},
		{"an entry that says it is too large", "runs/r1/events/000001", huge(t, "runs/r1/events/000001", 1<<32), archive.ErrTooLarge},
		{"a blob that says it is too large", "runs/r1/blobs/" + hash, huge(t, "runs/r1/blobs/"+hash, 1<<32), archive.ErrTooLarge},
		{"a manifest that is larger than any of its entries needs", "manifest.json", huge(t, "manifest.json", 1<<20), archive.ErrTooLarge},
		{"a bomb", "", compress(t, append(tarOf(t, entries)[:0:0], make([]byte, 64<<20)...)), archive.ErrDamaged},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := archive.Open(bytes.NewReader(c.archive), archive.Limits{})
			require.ErrorIs(t, err, c.want)
			require.Nil(t, manifestOf(a))
			var said *archive.EntryError
			require.ErrorAs(t, err, &said)
			require.NotEmpty(t, said.Hint)
			if c.entry != "" {
				require.Equal(t, c.entry, said.Entry)
			}
		})
	}
	_, err = os.Lstat(outside)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func manifestOf(a *archive.Archive) *archive.Manifest {
	if a == nil {
		return nil
	}
	return a.Manifest
}

// huge is an archive with an entry that says it is of that size.
func huge(tb testing.TB, name string, size int64) []byte {
	tb.Helper()
	var b bytes.Buffer
	require.NoError(tb, tar.NewWriter(&b).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size}))
	return compress(tb, b.Bytes())
}

func TestOpen_LargeArchive_WithinLimits(t *testing.T) {
	t.Parallel()
	good := smallArchive(t)
	for _, l := range []archive.Limits{{Entries: 4}, {Bytes: 1000}, {Bytes: 4 << 10}} {
		_, err := archive.Open(bytes.NewReader(good), l)
		require.ErrorIs(t, err, archive.ErrTooLarge, "%+v", l)
	}
	// Data that is packed small and unpacks large is not kept in memory: reading ends at the limit.
	bomb := compress(t, tarOf(t, []entry{file("runs/r1/events/000001", make([]byte, 8<<20))}))
	require.Less(t, len(bomb), 64<<10)
	_, err := archive.Open(bytes.NewReader(bomb), archive.Limits{Bytes: 1 << 20})
	require.ErrorIs(t, err, archive.ErrTooLarge)
}

func FuzzOpen(f *testing.F) {
	good := smallArchive(f)
	f.Add(keyedArchive(f), false)
	f.Add(tarOf(f, unpack(f, good)), true)
	f.Add(good, false)
	f.Add(good[:len(good)/2], false)
	f.Fuzz(func(t *testing.T, b []byte, packed bool) {
		if packed {
			b = compress(t, b)
		}
		a, err := archive.Open(bytes.NewReader(b), archive.Limits{Bytes: 1 << 20, Entries: 64})
		if err != nil {
			var said *archive.EntryError
			require.ErrorAs(t, err, &said)
			return
		}
		for _, r := range a.Manifest.Runs {
			require.True(t, schema.ValidName(r.Run))
		}
	})
}
