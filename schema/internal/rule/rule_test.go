package rule_test

import (
	"math"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema/internal/rule"
)

func TestOf_Tags_Read(t *testing.T) {
	type inner struct {
		A string `json:"a"`
	}
	fields := rule.Of(reflect.TypeOf(struct {
		inner
		Kind   string            `json:"kind" check:"required,oneof=a|b"`
		Text   string            `json:"text,omitzero" content:"large" check:"max=9,text" with:"kind=b"`
		Labels map[string]string `json:"labels,omitzero" check:"max=2" key:"required" each:"max=3"`
		Count  int               `json:"count" check:"min=1"`
		Hidden string            `json:"-" check:"required"`
	}{}))
	require.Len(t, fields, 5)
	require.Empty(t, fields[0].Name)
	require.Equal(t, rule.Field{
		Index: 1, Name: "kind", Type: reflect.TypeFor[string](),
		Check: &rule.Rules{Required: true, Min: math.MinInt64, Max: math.MaxInt64, OneOf: []string{"a", "b"}},
	}, fields[1])
	require.Equal(t, rule.Field{
		Index: 2, Name: "text", Type: reflect.TypeFor[string](), Content: "large",
		Check: &rule.Rules{Min: math.MinInt64, Max: 9, Form: rule.FormText},
		With:  &rule.Condition{Member: "kind", Field: 1, Values: []string{"b"}},
	}, fields[2])
	require.EqualValues(t, 2, fields[3].Check.Max)
	require.True(t, fields[3].Key.Required)
	require.EqualValues(t, 3, fields[3].Each.Max)
	require.EqualValues(t, 1, fields[4].Check.Min)
}

func TestOf_WrongTag_Panics(t *testing.T) {
	for name, typ := range map[string]reflect.Type{
		"no rule": reflect.TypeFor[struct {
			A string `json:"a" check:"long"`
		}](),
		"no number": reflect.TypeFor[struct {
			A string `json:"a" each:"max=x"`
		}](),
		"no member": reflect.TypeFor[struct {
			A string `json:"a" with:"b=c"`
		}](),
		"required integer": reflect.TypeFor[struct {
			A int `json:"a" check:"required"`
		}](),
	} {
		require.Panics(t, func() { rule.Of(typ) }, name)
	}
}
