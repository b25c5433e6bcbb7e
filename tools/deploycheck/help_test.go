package deploycheck_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// in is the path of a file or directory in deploy.
func in(elem ...string) string {
	return filepath.Join(append([]string{"..", "..", "deploy"}, elem...)...)
}

func read(t *testing.T, elem ...string) []byte {
	t.Helper()
	text, err := os.ReadFile(in(elem...))
	require.NoError(t, err)
	return text
}
