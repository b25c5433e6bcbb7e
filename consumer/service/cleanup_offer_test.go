package service_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// Ended runs with an offer are in the live index, and a cleanup that reads only the other index does not name them.
func TestCleanup_EndedRunWithAnOffer_IsNamedAndKept(t *testing.T) {
	t.Parallel()
	w, _ := erasing(t)
	for i := range 5 {
		x := w.writer(fmt.Sprintf("run-%d", i))
		x.Start()
		if i < 3 {
			x.Publish(&schema.HandoffOfferedData{HandoffID: "half", Reason: "error", NextAgent: "reviewer"}, 0)
		}
		w.awaitFolded(x.end(schema.StatusCompleted))
	}
	policy := &schema.RetentionPolicy{CompletedSeconds: 1, GraceSeconds: 1}
	for _, limit := range []int{0, 1, 2, 3} {
		var items map[string]schema.CleanupItem
		require.Eventually(t, func() bool {
			items = map[string]schema.CleanupItem{}
			req, pages := schema.CleanupRequest{Policy: policy, DryRun: true, Limit: limit}, 0
			for {
				a, err := w.ask(schema.VerbCleanup, "", req)
				require.NoError(t, err)
				reply := decodeAs[schema.CleanupReply](t, a.first)
				for _, item := range reply.Items {
					require.NotContains(t, items, item.Run, "once")
					items[item.Run] = item
				}
				pages++
				require.Less(t, pages, 50)
				if req.After = reply.Next; req.After == "" {
					return len(items) == 5
				}
			}
		}, time.Minute, 50*time.Millisecond, "limit %d", limit)
		for i := range 5 {
			item := items[fmt.Sprintf("run-%d", i)]
			require.Equal(t, i >= 3, item.Remove, item.Run)
			if i < 3 {
				require.Equal(t, schema.WhyHandoff, item.Why)
			}
		}
	}
}
