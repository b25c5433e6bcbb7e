package history_test

import (
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/history"
	"github.com/waymarkio/waymark/schema"
)

func call(name, arguments, result string) schema.Call {
	return schema.Call{Name: name, Arguments: jsontext.Value(arguments), Result: jsontext.Value(result), Outcome: schema.OutcomeReturned}
}

func steps(calls ...schema.Call) []history.Step { return history.Steps(&schema.State{Calls: calls}) }

func TestCompare_Runs_FirstDivergence(t *testing.T) {
	failed := call("read", `{"a":1}`, ``)
	failed.Outcome, failed.Error = schema.OutcomeFailed, &schema.Error{Type: "denied", Message: "no"}
	other := failed
	other.Error = &schema.Error{Type: "denied", Message: "never"}
	blob := call("read", `1`, ``)
	blob.Refs = []schema.Ref{{Path: "/result", DataRef: schema.DataRef("left", sum('a'))}}
	sameBlob := blob
	sameBlob.Refs = []schema.Ref{{Path: "/result", DataRef: schema.DataRef("right", sum('a'))}}
	otherBlob := blob
	otherBlob.Refs = []schema.Ref{{Path: "/result", DataRef: schema.DataRef("right", sum('b'))}}
	open := call("read", `1`, ``)
	open.Outcome = schema.OutcomeOpen
	first := call("read", `{"a":1,"b":2}`, `"x"`)
	for _, c := range []struct {
		name        string
		left, right []schema.Call
		same        int
		field       string
	}{
		{"none in nothing", nil, nil, 0, ""},
		{"none but the spelling", []schema.Call{first}, []schema.Call{call("read", `{"b": 2.0, "a":1}`, `"\u0078"`)}, 1, ""},
		{"another name", []schema.Call{first, first}, []schema.Call{first, call("write", `{"a":1,"b":2}`, `"x"`)}, 1, history.FieldName},
		{"other arguments", []schema.Call{first}, []schema.Call{call("read", `{"a":1}`, `"x"`)}, 0, history.FieldArguments},
		{"ids of 64 bits", []schema.Call{call("read", `{"id":9007199254740993}`, `"x"`)}, []schema.Call{call("read", `{"id":9007199254740992}`, `"x"`)}, 0, history.FieldArguments},
		{"another result", []schema.Call{first}, []schema.Call{call("read", `{"a":1,"b":2}`, `"y"`)}, 0, history.FieldResult},
		{"a result and none", []schema.Call{call("read", `1`, `null`)}, []schema.Call{call("read", `1`, ``)}, 0, history.FieldResult},
		{"returned and still open", []schema.Call{call("read", `1`, ``)}, []schema.Call{open}, 0, history.FieldResult},
		{"another error", []schema.Call{failed}, []schema.Call{other}, 0, history.FieldResult},
		{"the same blob of two runs", []schema.Call{blob}, []schema.Call{sameBlob}, 1, ""},
		{"another blob", []schema.Call{blob}, []schema.Call{otherBlob}, 0, history.FieldResult},
		{"the left one goes on", []schema.Call{first, first}, []schema.Call{first}, 1, history.FieldMissing},
		{"the right one goes on", []schema.Call{first}, []schema.Call{first, first}, 1, history.FieldMissing},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := history.Compare(steps(c.left...), steps(c.right...))
			require.Equal(t, c.same, got.Same)
			if c.field == "" {
				require.Nil(t, got.Divergence)
				return
			}
			require.Equal(t, c.field, got.Divergence.Field)
			require.Equal(t, c.same+1, got.Divergence.Step)
			require.NotEmpty(t, got.Divergence.String())
		})
	}
}

func sum(c byte) string {
	b := make([]byte, 64)
	for i := range b {
		b[i] = c
	}
	return string(b)
}
