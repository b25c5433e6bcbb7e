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
			require.Equal(t, test.want, schema.Drift(test.older, test.newer))
		})
	}
}
