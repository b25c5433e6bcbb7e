package lint_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/tools/walks"
)

func TestWalks_Functions_AreThereAndCallEachOther(t *testing.T) {
	t.Parallel()
	var files []walks.File
	for _, f := range goFiles(t) {
		if !f.isTest() {
			files = append(files, walks.File{Path: f.path, Syntax: f.syntax})
		}
	}
	found, err := walks.Measure(read(t, walks.Page), files)
	require.NoError(t, err)
	require.NotEmpty(t, found)
	for _, w := range found {
		require.Greater(t, w.Functions, 20, w.Title)
	}
}
