package service

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestKeptPauses_BudgetsAndTimes_DecideThem(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 31, 18, 30, 0, 0, time.UTC)
	tenant := func(name string) schema.Scope { return schema.Scope{Labels: map[string]string{"tenant": name}} }
	used := sumSpent([]kvstore.Spent{
		{Day: "2026-01-31", Shares: []kvstore.SpentShare{{Scope: tenant("acme"), Tokens: 1_500_000}, {Scope: tenant("b"), Tokens: 1_999_999}}},
		{Day: "2026-01-31", Shares: []kvstore.SpentShare{{Scope: tenant("acme"), Tokens: 600_000}}},
		{Day: "2026-01-30", Shares: []kvstore.SpentShare{{Scope: tenant("b"), Tokens: 10}}},
	}, at)
	require.Equal(t, []kvstore.SpentShare{{Scope: tenant("acme"), Tokens: 2_100_000}, {Scope: tenant("b"), Tokens: 1_999_999}}, used)

	each := schema.Limit{Each: "tenant", DayTokens: 2_000_000}
	own := schema.Pause{Scope: tenant("acme"), Reason: "a person's", By: "ann"}
	over := schema.Pause{Scope: schema.Scope{Agent: "coder"}, Until: "2026-01-31T18:30:00Z"}
	f := &schema.FleetSettings{Limits: []schema.Limit{{Each: "team", DayTokens: 1}, each, {Scope: tenant("acme"), AtWork: 5}}, Pauses: []schema.Pause{own, over}}
	kept := func() []schema.Pause {
		list, left := keptPauses(f, used, at, "daemon-1")
		require.Zero(t, left)
		return list
	}
	budget := schema.Pause{
		Scope: tenant("acme"), Limit: "--each tenant", DayTokens: 2_000_000, By: "daemon-1", Reason: "its budget of 2,000,000 tokens a day is used up: 2,100,000",
		Since: "2026-01-31T18:30:00Z", Until: "2026-02-01T00:00:00Z",
	}
	f.Pauses = kept()
	require.Equal(t, []schema.Pause{own, budget}, f.Pauses)
	used = nil
	require.Equal(t, []schema.Pause{own, budget}, kept(), "a daemon that knows less ends no pause")
	used = []kvstore.SpentShare{{Scope: tenant("acme"), Tokens: 2_100_000}}
	f.Limits[1].DayTokens = 2_050_000
	require.EqualValues(t, 2_050_000, kept()[1].DayTokens, "a budget that is still too small")
	f.Limits[1].DayTokens = 3_000_000
	require.Equal(t, []schema.Pause{own}, kept())
	f.Limits[1] = each
	at = at.Add(6 * time.Hour)
	require.Equal(t, []schema.Pause{own}, func() []schema.Pause {
		list, _ := keptPauses(f, sumSpent(nil, at), at, "daemon-1")
		return list
	}(), "midnight")
}

func TestKeptPauses_MoreThanHaveRoom_AreCounted(t *testing.T) {
	t.Parallel()
	var used []kvstore.SpentShare
	for i := range schema.MaxBudgetPauses + 3 {
		used = append(used, kvstore.SpentShare{Scope: schema.Scope{Labels: map[string]string{"tenant": fmt.Sprint(i)}}, Tokens: 2})
	}
	f := &schema.FleetSettings{Limits: []schema.Limit{{Each: "tenant", DayTokens: 1}, {Scope: used[0].Scope, DayTokens: 2}}}
	for range schema.MaxPauses {
		f.Pauses = append(f.Pauses, schema.Pause{Reason: "a person's"})
	}
	for range 2 {
		var left int
		f.Pauses, left = keptPauses(f, used, time.Now(), "daemon-1")
		require.Equal(t, 3, left)
		require.Len(t, f.Pauses, schema.MaxPauses+schema.MaxBudgetPauses)
	}
	require.Equal(t, "999", grouped(999))
	require.Equal(t, "1,000", grouped(1000))
}
