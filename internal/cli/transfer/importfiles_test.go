package transfer

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFindTranscripts_SameNames_AreToldApart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var files []string
	for _, name := range []string{"x/a/task.traj", "y/a/task.traj", "b/task.traj", "b/task.json", "c/single.traj"} {
		files = append(files, filepath.Join(dir, filepath.FromSlash(name)))
	}
	f := &found{files: files}
	f.tellApart()
	require.Equal(t, map[string]string{
		files[0]: "x-a-task", files[1]: "y-a-task", files[2]: "task-traj", files[3]: "task-json",
	}, f.names)
	require.Len(t, f.notes, 1)
}
