package schema_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestScope_Fields_SelectRunsThatMatchAll(t *testing.T) {
	t.Parallel()
	labels := map[string]string{"tenant": "acme", "team": "blue"}
	live := schema.Live{Run: "r1", Agent: "coder", ModelTier: "small", Labels: labels}
	head := schema.Head{Run: live.Run, Agent: live.Agent, ModelTier: live.ModelTier, Labels: labels}
	for name, test := range map[string]struct {
		scope schema.Scope
		has   bool
		flags string
	}{
		"everything":      {has: true, flags: "--all"},
		"run":             {scope: schema.Scope{Run: "r1"}, has: true, flags: "r1"},
		"another run":     {scope: schema.Scope{Run: "r2"}, flags: "r2"},
		"agent":           {scope: schema.Scope{Agent: "coder"}, has: true, flags: "--agent coder"},
		"another agent":   {scope: schema.Scope{Agent: "tester"}, flags: "--agent tester"},
		"tier":            {scope: schema.Scope{ModelTier: "small"}, has: true, flags: "--tier small"},
		"another tier":    {scope: schema.Scope{ModelTier: "large"}, flags: "--tier large"},
		"labels":          {scope: schema.Scope{Labels: labels}, has: true, flags: "--label team=blue --label tenant=acme"},
		"another value":   {scope: schema.Scope{Labels: map[string]string{"tenant": "b c"}}, flags: "--label 'tenant=b c'"},
		"no such label":   {scope: schema.Scope{Labels: map[string]string{"x": ""}}, flags: "--label x="},
		"one of them not": {scope: schema.Scope{Agent: "coder", ModelTier: "large", Labels: labels}, flags: "--agent coder --tier large --label team=blue --label tenant=acme"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.has, test.scope.Selects(&live))
			require.Equal(t, test.flags, test.scope.Flags())
			require.True(t, test.scope.Same(&test.scope))
			pauses := []schema.Pause{{Scope: schema.Scope{Agent: "none"}}, {Scope: test.scope}}
			require.Equal(t, test.has, len(schema.PausesOf(pauses, &live)) == 1)
			require.Equal(t, schema.PausesOf(pauses, &live), head.PausedBy(pauses))
		})
	}
}

func TestLiveEntry_Driven_WhileAnExecutorMayGoOn(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		head   schema.Head
		driven bool
	}{
		"running":                {schema.Head{Status: schema.StatusRunning}, true},
		"waiting":                {schema.Head{Status: schema.StatusWaiting}, true},
		"orphaned":               {schema.Head{Status: schema.StatusOrphaned}, true},
		"waiting, orphaned":      {schema.Head{Status: schema.StatusWaiting, Unattended: schema.StatusOrphaned}, true},
		"paused":                 {schema.Head{Status: schema.StatusRunning, Paused: true}, false},
		"given back":             {schema.Head{Status: schema.StatusInterrupted}, false},
		"given back, it waits":   {schema.Head{Status: schema.StatusWaiting, Unattended: schema.StatusInterrupted}, false},
		"ended":                  {schema.Head{Status: schema.StatusCompleted}, false},
		"ended with a held call": {schema.Head{Status: schema.StatusFailed, OpenCalls: []schema.OpenCall{{}}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			live := schema.LiveOf(&test.head)
			require.Equal(t, test.driven, live.Driven)
		})
	}
}
