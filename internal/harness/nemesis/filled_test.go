//go:build unix

package nemesis_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/loadgen"
	"github.com/waymarkio/waymark/schema"
)

// listed is the output of runs ls, page by page if pages are requested.
func (w *lone) listed(tb testing.TB, args ...string) []schema.RunSummary {
	tb.Helper()
	var all []schema.RunSummary
	for after := ""; ; {
		more := args
		if after != "" {
			more = append(slices.Clone(args), "--after", after)
		}
		var page schema.ListReply
		require.NoError(tb, json.Unmarshal(w.cli(tb, append([]string{"runs", "ls", "--json"}, more...)...), &page))
		require.False(tb, page.Incomplete)
		all = append(all, page.Runs...)
		if after = page.Next; after == "" {
			return all
		}
	}
}

func names(runs []schema.RunSummary) []string {
	list := make([]string, len(runs))
	for i := range runs {
		list[i] = runs[i].Run
	}
	return list
}

// fill publishes generated runs, waits until they are folded, and compares some of them with their plan.
func (w *lone) fill(tb testing.TB, runs, live, compared int) {
	tb.Helper()
	cfg := loadgen.Config{Fleet: "default", Runs: runs, Live: live, Began: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	fleet, js := w.fleet(tb, "reader"), w.jetStream(tb)
	require.NoError(tb, loadgen.Fill(tb.Context(), js, cfg))
	require.NoError(tb, loadgen.AwaitFolded(tb.Context(), js, cfg.Fleet))
	require.NoError(tb, loadgen.Check(tb.Context(), cfg, compared, func(ctx context.Context, run string) (*schema.Head, error) {
		head, err := fleet.Head(ctx, run)
		return &head, err
	}))
}
