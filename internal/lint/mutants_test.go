package lint_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/mutant"
	"github.com/waymarkio/waymark/internal/harness/mutant/overlay"
)

// It is the quick half of what internal/harness/mutant/overlay tests: there they are compiled, too.
func TestMutantPatches_OnThisSource_Apply(t *testing.T) {
	t.Parallel()
	all, err := mutant.All()
	require.NoError(t, err)
	_, err = overlay.Write(filepath.Join("..", ".."), t.TempDir(), all)
	require.NoError(t, err)
}
