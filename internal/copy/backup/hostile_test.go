package backup_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/copy/backup"
	"github.com/waymarkio/waymark/schema"
)

// requireNothing fails if a server has any stream.
func (w *world) requireNothing(t *testing.T) {
	t.Helper()
	for stream := range w.js.StreamNames(t.Context()).Name() {
		t.Errorf("stream %s was written", stream)
		require.NoError(t, w.js.DeleteStream(t.Context(), stream))
	}
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
	_, err = backup.Check(dir, 1<<20)
	require.ErrorIs(t, err, backup.ErrTooLarge)
	_, err = backup.Check(dir, 1<<30)
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
			_, err := backup.Check(dir, 0)
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
