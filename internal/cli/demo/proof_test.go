package demo

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/output"
)

func TestDemoProof_NarrowTerminal_KeepsItsSentences(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	var proof proof
	require.NoError(t, proof.print(output.NewPage(&b, func(string) string { return "80" })))
	require.NotContains(t, b.String(), "…")
	for l := range strings.Lines(b.String()) {
		require.LessOrEqual(t, len([]rune(strings.TrimRight(l, "\n"))), 80, b.String())
	}
}
