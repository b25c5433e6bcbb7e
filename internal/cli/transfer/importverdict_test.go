package transfer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/prompt"
	"github.com/waymarkio/waymark/publisher"
)

func TestImport_RunIsInUse_HintNamesTheRun(t *testing.T) {
	t.Parallel()
	im := &importer{app: &base.App{Prompt: prompt.Prompt{Flags: "--fleet f "}}}
	require.Equal(t, "see which executor has the run: waymark --fleet f runs get r-1",
		im.explained(t.Context(), notImported{publisher.ErrFenced, importedRun{Run: "r-1", File: "a"}}).Advice(im.app.Prompt))
}
