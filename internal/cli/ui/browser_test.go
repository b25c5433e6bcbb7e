package ui

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// All users of a machine can read command lines.
func TestOpen_Browser_GetsTheTokenByAFileOfThisUser(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the browser is opened by another program")
	}
	dir := t.TempDir()
	said := filepath.Join(dir, "said")
	script := "#!/bin/sh\necho \"$*\" > " + said + ".part\ncat \"$1\" >> " + said + ".part\nmv " + said + ".part " + said + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "xdg-open"), []byte(script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("TMPDIR", dir)
	remove, err := open(t.Context(), `http://127.0.0.1:1/enter?t=SECRET&x="`)
	require.NoError(t, err)
	var text []byte
	require.Eventually(t, func() bool {
		text, err = os.ReadFile(said)
		return err == nil
	}, 20*time.Second, time.Millisecond)
	words, page, _ := strings.Cut(string(text), "\n")
	require.NotContains(t, words, "SECRET")
	require.Contains(t, page, `url=http://127.0.0.1:1/enter?t=SECRET&amp;x=&#34;"`)
	info, err := os.Stat(words)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	info, err = os.Stat(filepath.Dir(words))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	remove()
	require.NoFileExists(t, words)

	t.Setenv("PATH", t.TempDir())
	remove, err = open(t.Context(), "http://127.0.0.1:1/")
	defer remove()
	require.ErrorContains(t, err, "open the address above")
}
