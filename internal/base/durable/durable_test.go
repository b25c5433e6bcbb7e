package durable_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/durable"
)

func TestReplace_WriteFails_OldFileStaysAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	text := func(s string) func(io.Writer) error {
		return func(w io.Writer) error {
			_, err := io.WriteString(w, s)
			return err
		}
	}
	require.NoError(t, durable.Replace(path, text("old")))
	require.NoError(t, durable.Replace(path, text("new")))
	broken := errors.New("broken")
	require.ErrorIs(t, durable.Replace(path, func(w io.Writer) error { return errors.Join(text("half")(w), broken) }), broken)
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "new", string(content))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing is left of the broken write")
	require.ErrorContains(t, durable.Replace(filepath.Join(path, "below"), text("x")), "writing "+filepath.Join(path, "below"))
}
