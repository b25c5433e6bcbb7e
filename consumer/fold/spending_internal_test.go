package fold

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestSpending_Days_OnlyTheLatestCounts(t *testing.T) {
	t.Parallel()
	var x spending
	limits := []schema.Limit{{DayTokens: 5}, {Scope: schema.Scope{Agent: "coder"}, AtWork: 5}, {Each: "tenant", DayTokens: 5}, {Scope: schema.Scope{Labels: map[string]string{"tenant": "acme"}}, DayTokens: 7}}
	late := time.Date(2026, 1, 31, 23, 59, 59, 0, time.UTC)
	acme := &schema.Live{Run: "run-1", Agent: "coder", Labels: map[string]string{"tenant": "acme"}}
	shares := func() (list []string) {
		for i := range x.Shares {
			list = append(list, fmt.Sprint(x.Shares[i].Flags(), " ", x.Shares[i].Tokens))
		}
		return list
	}
	require.True(t, x.add(limits, acme, 10, late))
	require.True(t, x.add(limits, &schema.Live{Run: "run-2"}, 1, late))
	require.Equal(t, []string{"--all 11", "--label tenant=acme 10"}, shares(), "two limits of the same runs share their count")
	require.True(t, x.add(limits, acme, 20, late.Add(time.Second)))
	require.Equal(t, "2026-02-01", x.Day)
	require.Equal(t, []string{"--all 20", "--label tenant=acme 20"}, shares())
	require.True(t, x.add(limits, acme, 40, late), "the server that stored it has another clock")
	require.Equal(t, []string{"--all 20", "--label tenant=acme 20"}, shares())
}

func TestSpending_TooManyShares_CountsTheOthers(t *testing.T) {
	t.Parallel()
	var x spending
	limits, now := []schema.Limit{{Each: "user", DayTokens: 1}}, time.Now()
	user := func(n int) *schema.Live {
		return &schema.Live{Labels: map[string]string{"user": fmt.Sprint(n, strings.Repeat("x", 200))}}
	}
	n := 0
	for ; x.add(limits, user(n), 1, now); n++ {
		require.Less(t, n, maxSpentBytes)
	}
	require.True(t, x.add(limits, user(0), maxSpentTokens, now))
	require.EqualValues(t, maxSpentTokens+1, x.Shares[0].Tokens)
	require.Len(t, x.Shares, n)
	require.LessOrEqual(t, x.bytes, maxSpentBytes)
	require.Less(t, int64(maxSpentTokens), int64(math.MaxInt64>>20))
}
