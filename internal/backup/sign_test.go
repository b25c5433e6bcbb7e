package backup_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/backup"
	"github.com/waymarkio/waymark/schema"
)

func newKey(t *testing.T) (nkeys.KeyPair, string) {
	t.Helper()
	pair, err := nkeys.CreateAccount()
	require.NoError(t, err)
	public, err := pair.PublicKey()
	require.NoError(t, err)
	return pair, public
}

// requireNothing fails if a server has any stream.
func (w *world) requireNothing(t *testing.T) {
	t.Helper()
	for stream := range w.js.StreamNames(t.Context()).Name() {
		t.Errorf("stream %s was written", stream)
		require.NoError(t, w.js.DeleteStream(t.Context(), stream))
	}
}

func TestRestore_SignedBackup_OnlyTheNamedKeyIsTaken(t *testing.T) {
	t.Parallel()
	w, x, unsigned, _ := small(t)
	key, public := newKey(t)
	stranger, strange := newKey(t)
	take := func(key nkeys.KeyPair) (string, *backup.Manifest) {
		dir := target(t)
		m, err := backup.Take(t.Context(), w.js, backup.Config{Fleet: fleet, Dir: dir, Actor: "tester", Now: time.Now, SignWith: key})
		require.NoError(t, err)
		return dir, m
	}
	signed, m := take(key)
	foreign, _ := take(stranger)
	changed := func(name string, change func(dir, file string)) string {
		dir := filepath.Join(t.TempDir(), "backup")
		require.NoError(t, os.CopyFS(dir, os.DirFS(signed)))
		change(dir, filepath.Join(dir, name))
		return dir
	}
	edit := func(f func([]byte) []byte) func(string, string) {
		return func(_, file string) {
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(file, f(b), 0o600))
		}
	}
	const signature = "manifest.sig"
	other := empty(t)
	for name, dir := range map[string]string{
		"unsigned":      unsigned,
		"another's key": foreign,
		"the signature of another backup": changed(signature, func(_, file string) {
			another, _ := take(key)
			b, err := os.ReadFile(filepath.Join(another, signature))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(file, b, 0o600))
		}),
		"another's signature under the key's name": changed(signature, edit(func(b []byte) []byte {
			theirs, err := os.ReadFile(filepath.Join(foreign, signature))
			require.NoError(t, err)
			return bytes.Replace(theirs, []byte(strange), []byte(public), 1)
		})),
		"a manifest with another sum": changed("manifest.json", func(dir, _ string) {
			tamper(t, dir, func(manifest map[string]any) { manifest["began"] = "2020-01-01T00:00:00Z" })
		}),
		"a manifest with one more space": changed("manifest.json", edit(func(b []byte) []byte { return append(b, ' ') })),
		"a file with its sum": changed("manifest.json", func(dir, _ string) {
			tamperFile(t, dir, 1, func(b []byte) []byte { return backup.Resubject(t, b, schema.NamesOf(fleet, 0).EventSubject("y")) })
		}),
		"an empty signature":   changed(signature, edit(func([]byte) []byte { return nil })),
		"half a signature":     changed(signature, edit(func(b []byte) []byte { return b[:len(b)/2] })),
		"a signature and more": changed(signature, edit(func(b []byte) []byte { return append(b, "more"...) })),
		"a signature of 1 MiB": changed(signature, edit(func([]byte) []byte { return make([]byte, 1<<20) })),
		"a directory in its place": changed(signature, func(_, file string) {
			require.NoError(t, os.Remove(file))
			require.NoError(t, os.Mkdir(file, 0o700))
		}),
	} {
		_, err := backup.Restore(t.Context(), other.js, backup.Target{Dir: dir, Trust: backup.Trust{Key: public}})
		require.Error(t, err, name)
		if name != "a signature of 1 MiB" && name != "a directory in its place" {
			require.ErrorIs(t, err, backup.ErrSignature, name)
		}
		other.requireNothing(t)
		_, err = backup.Check(dir, backup.Trust{Key: public})
		require.Error(t, err, name)
	}
	_, err := backup.Restore(t.Context(), other.js, backup.Target{Dir: signed, Trust: backup.Trust{Key: "UNOKEY"}})
	require.ErrorIs(t, err, backup.ErrConfig)
	other.requireNothing(t)

	// A file that does not match the signed manifest is refused as in any backup.
	damaged := changed(filepath.Join("streams", m.Streams[0].Name, "stream.arc.s2"), edit(func(b []byte) []byte { b[len(b)/2] ^= 1; return b }))
	_, err = backup.Restore(t.Context(), other.js, backup.Target{Dir: damaged, Trust: backup.Trust{Key: public}})
	require.ErrorIs(t, err, backup.ErrDamaged)
	other.requireNothing(t)

	done, err := backup.Restore(t.Context(), other.js, backup.Target{Dir: signed, Trust: backup.Trust{Key: public}})
	require.NoError(t, err)
	other.load()
	other.requireRun(x, done.Manifest.Shards[0].Cut)
}

// A NATS server makes a client sign a text of its choice. A manifest as such a text must not become a signed backup.
func TestCheck_SignatureOfAServersQuestion_IsNone(t *testing.T) {
	t.Parallel()
	_, _, dir, _ := small(t)
	key, public := newKey(t)
	manifest, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "manifest.sig"), backup.SignedBy(t, key, string(manifest)), 0o600))
	_, err = backup.Check(dir, backup.Trust{Key: public})
	require.ErrorIs(t, err, backup.ErrSignature)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "manifest.sig"), backup.SignedBy(t, key, "waymark backup\n"+string(manifest)), 0o600))
	_, err = backup.Check(dir, backup.Trust{Key: public})
	require.ErrorIs(t, err, backup.ErrSignature)
}

func TestRestore_BombInABackup_EndsAtTheLimit(t *testing.T) {
	t.Parallel()
	_, _, dir, _ := small(t)
	const messages = 100
	var packed int
	tamperFile(t, dir, 1, func(b []byte) []byte {
		b = backup.Bomb(t, b, schema.NamesOf(fleet, 0).EventSubject("x"), messages)
		packed = len(b)
		return b
	})
	require.Less(t, packed, 64<<10)
	other := empty(t)
	_, err := backup.Restore(t.Context(), other.js, backup.Target{Dir: dir})
	require.ErrorIs(t, err, backup.ErrTooLarge)
	require.ErrorContains(t, err, "after message 6")
	other.requireNothing(t)
	_, err = backup.Check(dir, backup.Trust{MaxBytes: 1 << 20})
	require.ErrorIs(t, err, backup.ErrTooLarge)
	_, err = backup.Check(dir, backup.Trust{MaxBytes: 1 << 30})
	require.ErrorIs(t, err, backup.ErrDamaged, "it is read to its end, which is not what the manifest says")
}

func TestCheck_FileThatHasNoEnd_IsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/zero"); err != nil {
		t.Skip("there is no /dev/zero here")
	}
	for _, file := range []string{"manifest.json", "backup.json", "stream.arc.s2"} {
		_, _, dir, m := small(t)
		path := filepath.Join(dir, "streams", m.Streams[0].Name, file)
		if file == "manifest.json" {
			path = filepath.Join(dir, file)
		}
		require.NoError(t, os.Remove(path))
		require.NoError(t, os.Symlink("/dev/zero", path))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		done := make(chan error, 1)
		go func() {
			_, err := backup.Check(dir, backup.Trust{})
			done <- err
		}()
		select {
		case err := <-done:
			require.ErrorIs(t, err, backup.ErrDamaged, file)
			require.ErrorContains(t, err, "no regular file")
		case <-ctx.Done():
			require.Fail(t, "it is read without end", file)
		}
	}
}
