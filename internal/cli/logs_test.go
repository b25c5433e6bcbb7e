package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A changed log message that alerts use must be changed in the page that names it, too.
func TestObservabilityPage_Messages_Logged(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "observability.md"))
	require.NoError(t, err)
	rows := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (error|warn) \\|").FindAllStringSubmatch(string(page), -1)
	require.Greater(t, len(rows), 4)
	var code strings.Builder
	for _, dir := range []string{"consumer", filepath.Join("internal", "cli")} {
		require.NoError(t, filepath.WalkDir(filepath.Join("..", "..", dir), func(name string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(name) != ".go" {
				return err
			}
			text, err := os.ReadFile(name)
			code.Write(text)
			return err
		}))
	}
	level := map[string]string{"error": "Error()", "warn": "Warn()"}
	for _, row := range rows {
		said := `Msg("` + row[1] + `")`
		require.Contains(t, code.String(), said)
		statement, _, _ := strings.Cut(code.String(), said)
		statement = statement[strings.LastIndex(statement, "log."):]
		require.Contains(t, statement, level[row[2]], row[1])
	}
}
