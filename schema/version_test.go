package schema_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func pays(required, optional []string) schema.ToolVersion {
	t := schema.ToolVersion{Name: "pay", Replay: schema.ReplayIdempotent, Required: required, Optional: optional}
	for _, name := range append(append([]string{}, required...), optional...) {
		t.Schema += name[:1]
	}
	return t
}

func TestDrift_EachChange_IsNamed(t *testing.T) {
	t.Parallel()
	with := func(tools ...schema.ToolVersion) *schema.Version {
		return &schema.Version{Build: "v1", Prompt: "p", Tools: append([]schema.ToolVersion{}, tools...)}
	}
	changed := func(v *schema.Version, change func(*schema.Version)) *schema.Version {
		change(v)
		return v
	}
	pay := pays([]string{"amount"}, []string{"note"})
	for name, test := range map[string]struct {
		older, newer *schema.Version
		want         []string
	}{
		"nothing":              {with(pay), with(pay), nil},
		"unknown":              {nil, with(pay), nil},
		"work of its own":      {with(pay), &schema.Version{Build: "v2"}, []string{"build v2, was v1"}},
		"a build unknown":      {with(), changed(with(), func(v *schema.Version) { v.Build = "" }), []string{"build unknown, was v1"}},
		"no tool left":         {with(pay), with(), []string{"tool pay is gone"}},
		"a renamed tool":       {with(pay), with(schema.ToolVersion{Name: "send"}), []string{"tool pay is gone", "tool send is new"}},
		"a required argument":  {with(pay), with(pays([]string{"amount", "currency"}, []string{"note"})), []string{"tool pay: argument currency is new and required"}},
		"an optional argument": {with(pay), with(pays([]string{"amount"}, []string{"by", "note"})), []string{"tool pay: argument by is new"}},
		"arguments renamed": {
			with(pay), with(pays([]string{"sum"}, []string{"text"})),
			[]string{"tool pay: arguments amount, note are gone", "tool pay: argument sum is new and required", "tool pay: argument text is new"},
		},
		"arguments that change places": {
			with(pay), with(pays([]string{"note"}, []string{"amount"})),
			[]string{"tool pay: argument note is required now", "tool pay: argument amount is optional now"},
		},
		"a schema": {with(pay), with(schema.ToolVersion{Name: "pay", Replay: pay.Replay, Schema: "other", Required: pay.Required, Optional: pay.Optional}), []string{"tool pay: the schema of its arguments changed"}},
		"a policy": {with(pay), with(schema.ToolVersion{Name: "pay", Replay: schema.ReplayHold, Schema: pay.Schema, Required: pay.Required, Optional: pay.Optional}), []string{"tool pay: its policy is hold, was idempotent"}},
		"its author's version": {
			with(schema.ToolVersion{Name: "pay"}), with(schema.ToolVersion{Name: "pay", Version: "2"}), []string{"tool pay: version 2, was none"},
		},
		"the prompt": {with(pay), changed(with(pay), func(v *schema.Version) { v.Prompt = "q" }), []string{"the system prompt changed: a run keeps the one of its first turn"}},
		"too many tools": {
			&schema.Version{ToolsDigest: "a"}, &schema.Version{ToolsDigest: "b"}, []string{"the tools changed: they are too many to compare"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, schema.Drift(test.older, test.newer, nil))
		})
	}
}

func TestStateDrift_Rule_SaysWhenAPersonIsAsked(t *testing.T) {
	t.Parallel()
	version := func(build string, rule schema.DriftRule, tools ...string) *schema.Version {
		v := &schema.Version{Build: build, Rule: rule, Tools: []schema.ToolVersion{}}
		for _, name := range tools {
			v.Tools = append(v.Tools, schema.ToolVersion{Name: name})
		}
		return v
	}
	for name, test := range map[string]struct {
		recorded, newer *schema.Version
		asks            bool
	}{
		"nothing known":         {nil, version("v2", schema.DriftAsk), false},
		"the same":              {version("v1", schema.DriftAsk, "pay"), version("v1", schema.DriftAsk, "pay"), false},
		"only another build":    {version("v1", schema.DriftAsk, "pay"), version("v2", schema.DriftAsk, "pay"), false},
		"by the recorded rule":  {version("v1", schema.DriftAsk, "pay"), version("v2", "", "send"), true},
		"by the new rule":       {version("v1", schema.DriftAccept, "pay"), version("v2", schema.DriftAsk, "send"), true},
		"by no rule":            {version("v1", schema.DriftSameBuild, "pay"), version("v2", schema.DriftAccept, "send"), false},
		"tools that are unsaid": {version("v1", schema.DriftAsk, "pay"), &schema.Version{Build: "v2"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newTestRun(t)
			r.start()
			mustApply(t, r.write(&schema.TurnStartedData{Turn: 1, Version: test.recorded}, 1))
			mustApply(t, r.write(answerOf(1, schema.RequestedCall{ToolCallID: "a", Name: "pay"}, schema.RequestedCall{ToolCallID: "b", Name: "pay"}), 1))
			changes, since, asks := r.state.Drift(test.newer)
			require.Equal(t, test.asks, asks)
			if asks && test.newer.Tools != nil {
				require.Equal(t, "tool pay is gone: 2 requested calls cannot be made", changes[0])
				require.EqualValues(t, 1, since)
			}
		})
	}
}

// The build that comes first is that of the record: a turn changes it, and a rewind takes that back.
func TestHead_Build_IsThatOfTheRecordedVersion(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	require.Empty(t, r.head.Build)
	for i, v := range []schema.Version{{Build: "v1", Rule: schema.DriftAsk}, {Build: "v2", Rule: schema.DriftSameBuild}, {Build: "v3"}} {
		turn := int32(i + 1) //nolint:gosec // small
		mustApply(t, r.write(&schema.TurnStartedData{Turn: turn, Version: &v}, turn))
		require.Equal(t, []string{"v1", "v2", ""}[i], r.head.Build)
		live := schema.LiveOf(&r.head)
		require.Equal(t, r.head.Build, live.Build)
		other := live
		other.Build = "v9"
		require.False(t, live.Same(&other))
		mustApply(t, r.write(answerOf(turn), turn))
		require.Equal(t, live.Build, r.head.Build)
	}
}
