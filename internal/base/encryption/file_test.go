package encryption_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/encryption"
)

func TestWrap_AnotherPurposeKeyOrText_IsNotUnwrapped(t *testing.T) {
	t.Parallel()
	file := func(text string) *encryption.File {
		path := filepath.Join(t.TempDir(), "keys")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		f, err := encryption.ReadFile(path)
		require.NoError(t, err)
		return f
	}
	const first, second = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=", "ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA="
	f := file("k1 " + first)
	wrapped, err := f.Wrap("k1", "store", []byte("inner"))
	require.NoError(t, err)
	inner, err := f.Unwrap("k1", "store", wrapped)
	require.NoError(t, err)
	require.Equal(t, "inner", string(inner))
	_, err = f.Unwrap("k1", "other", wrapped)
	require.ErrorIs(t, err, encryption.ErrNotOpened)
	_, err = file("k1 "+second).Unwrap("k1", "store", wrapped)
	require.ErrorIs(t, err, encryption.ErrNotOpened)
	_, err = f.Unwrap("k2", "store", wrapped)
	require.ErrorIs(t, err, encryption.ErrNoKey)
	_, err = f.Unwrap("k1", "store", wrapped[:5])
	require.ErrorIs(t, err, encryption.ErrNotOpened)
}
