package cli

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/look/failure"
)

func TestHelp_Terminals_FitWidth(t *testing.T) {
	t.Parallel()
	pages := [][]string{{"help"}}
	parser, err := newParser(new(cli), func(string) string { return "" }, io.Discard, io.Discard)
	require.NoError(t, err)
	for _, leaf := range parser.Model.Leaves(true) {
		words, _, _ := strings.Cut(strings.TrimPrefix(leaf.FullPath(), "waymark "), " (") // its aliases
		pages = append(pages, append(strings.Fields(words), "--help"))
	}
	for _, args := range pages {
		var stdout, stderr bytes.Buffer
		require.Zero(t, Run(t.Context(), args, func(string) string { return "" }, nil, &stdout, &stderr), stderr.String())
		for l := range strings.Lines(stdout.String()) {
			if strings.HasPrefix(strings.TrimSpace(l), "waymark ") {
				continue // an example, which is pasted unchanged
			}
			require.LessOrEqual(t, len([]rune(l)), output.PipeWidth+1, "%v: %s", args, l)
		}
	}
}

func TestWait_CtrlC_Ends(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	code := Run(ctx, []string{"runs", "ls", "--nats", "nats://192.0.2.1:4222"}, func(string) string { return "" }, nil, &stdout, &stderr)
	require.Equal(t, int(failure.Interrupted), code)
	require.Equal(t, "waymark: interrupted\n", stderr.String())
}
