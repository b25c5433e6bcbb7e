package service_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestLimit_SetChangedAndEnded_AnswersSayWhatHolds(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	ask := func(req *schema.LimitRequest) *schema.LimitReply {
		t.Helper()
		a, err := w.askPlain(schema.VerbLimit, "", req)
		require.NoError(t, err)
		return decodeAs[schema.LimitReply](t, a.first)
	}
	req := schema.LimitRequest{Scope: schema.Scope{Agent: "coder"}, Each: "tenant", AtWork: 5, By: "ann"}
	first := ask(&req)
	require.False(t, first.Already)
	require.Equal(t, 5, first.Limit.AtWork)
	require.Equal(t, "--agent coder --each tenant", first.Limit.Flags())
	require.True(t, ask(&req).Already)
	req.AtWork, req.DayTokens = 6, 1000
	changed := ask(&req)
	require.False(t, changed.Already)
	require.Equal(t, 6, changed.Limit.AtWork)
	req.AtWork = 0
	kept := ask(&req)
	require.True(t, kept.Already)
	require.Equal(t, changed.Limit, kept.Limit, "a bound that is not named stays")
	req.End = true
	require.Equal(t, changed.Limit, ask(&req).Limit)
	require.True(t, ask(&req).Already)
}

func TestLimit_WrongRequests_AreRefused(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	for name, req := range map[string]schema.LimitRequest{
		"nothing bounded": {By: "ann"},
		"a run":           {Scope: schema.Scope{Run: "run-1"}, AtWork: 1, By: "ann"},
		"no sender":       {AtWork: 1},
		"too many":        {AtWork: 1001, By: "ann"},
		"negative":        {DayTokens: -1, By: "ann"},
	} {
		require.Equal(t, schema.CodeBadRequest, w.refused(schema.VerbLimit, "", req).Code, name)
	}
}
