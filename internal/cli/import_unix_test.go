//go:build !windows

package cli

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/failure"
)

// A pipe has no end: it is refused by its path, and left out of a directory.
func TestImport_Pipe_IsNotWaitedFor(t *testing.T) {
	t.Parallel()
	w := newImportWorld(t)
	w.file("p/talk.json", talk("talk", 1, "question"))
	pipe := filepath.Join(w.dir, "p", "pipe.jsonl")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	requireHas(t, w.run(failure.Usage, "import", pipe), "not a regular file")
	out := w.run(failure.OK, "import", filepath.Join(w.dir, "p"))
	requireHas(t, out, "1 imported")
	requireHas(t, out, "1 other file was")
}
