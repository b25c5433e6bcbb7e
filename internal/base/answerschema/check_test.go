package answerschema_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/answerschema"
)

const form = `{
	"$schema": "https://json-schema.org/draft/2020-12/schema",
	"type": "object",
	"properties": {
		"name": {"type": "string", "title": "Name", "minLength": 2, "pattern": "^[a-z]+$"},
		"age": {"type": "integer", "minimum": 18, "exclusiveMaximum": 150},
		"kind": {"enum": ["a", "b"]},
		"tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 30},
		"a/b": {"type": ["boolean", "null"]}
	},
	"required": ["name"],
	"additionalProperties": false,
	"$defs": {"tag": {"type": "string"}}
}`

func TestCheck_Problems_NamePaths(t *testing.T) {
	for _, c := range []struct {
		name, schema, payload string
		want                  []answerschema.Problem
	}{
		{"a payload that fits", form, `{"name":"bo","age":30,"kind":"a","tags":["x","y"],"a/b":true}`, nil},
		{"null where it is allowed", form, `{"name":"bo","a/b":null}`, nil},
		{"everything fits an empty schema", `{}`, `[1]`, nil},
		{"several at once, in the order of the places", form, `{"name":"x1","age":17,"kind":"c","tags":[1,"b"],"a/b":0}`, []answerschema.Problem{
			{"/age", "minimum: got 17, want 18"},
			{"/a~1b", "got number, want boolean or null"},
			{"/kind", `value must be one of "a", "b"`},
			{"/name", `does not match the pattern "^[a-z]+$"`},
			{"/tags/0", "got number, want string"},
		}},
		{"a missing property", form, `{}`, []answerschema.Problem{{"", `property "name" is missing`}}},
		{"a property beyond the schema", form, `{"name":"bo","x":1}`, []answerschema.Problem{{"", `additional property "x" is not allowed`}}},
		{"the wrong type", form, `"yes"`, []answerschema.Problem{{"", "got string, want object"}}},
		{"nothing", form, ``, []answerschema.Problem{{"", "is required"}}},
		{"no JSON", `{}`, `{"a":`, []answerschema.Problem{{"/a", "is not valid JSON: jsontext: unexpected EOF within \"/a\" after offset 5"}}},
		{"two values", `{}`, `1 2`, []answerschema.Problem{{"", "is not valid JSON: there is text after the value"}}},
		{"an integer in another form", `{"type":"integer"}`, `1.0e1`, nil},
		{"a large integer", `{"type":"integer"}`, `9007199254740993.0`, nil},
		{"a fraction of a large number", `{"type":"integer"}`, `9007199254740993.5`, []answerschema.Problem{{"", "got number, want integer"}}},
		{"a number beyond any range", `{"type":"number","maximum":3}`, `1e999999999`, []answerschema.Problem{{"", "maximum: got 1e999999999, want 3"}}},
		{"bounds are excluded", `{"exclusiveMinimum":3}`, `3`, []answerschema.Problem{{"", "exclusiveMinimum: got 3, want 3"}}},
		{"a constant compares values", `{"const":{"a":1.0,"b":[null]}}`, `{"b":[null],"a":1}`, nil},
		{"a constant compares exactly", `{"const":9007199254740993}`, `9007199254740992`, []answerschema.Problem{{"", "value must be 9007199254740993"}}},
		{"lengths are characters", `{"maxLength":2}`, `"äöü"`, []answerschema.Problem{{"", "maxLength: got 3, want 2"}}},
		{"a list that is too short", `{"minItems":2}`, `[1]`, []answerschema.Problem{{"", "minItems: got 1, want 2"}}},
		{"all forms of anyOf", `{"anyOf":[{"type":"string"},{"type":"object","required":["x"]}]}`, `{}`, []answerschema.Problem{
			{"", "got object, want string"}, {"", `property "x" is missing`},
		}},
		{"one form of anyOf", `{"anyOf":[{"type":"string"},{"type":"null"}]}`, `null`, nil},
		{"two forms of oneOf", `{"oneOf":[{"minimum":1},{"maximum":3}]}`, `2`, []answerschema.Problem{{"", "matches 2 forms of oneOf, must match one"}}},
		{
			"a schema that refers to itself", `{"$ref":"#/$defs/node","$defs":{"node":{"properties":{"next":{"$ref":"#/$defs/node"}},"required":["v"]}}}`, `{"v":1,"next":{"v":1,"next":{}}}`,
			[]answerschema.Problem{{"/next/next", `property "v" is missing`}},
		},
		{"annotations say nothing", `{"format":"email","default":1,"examples":[2],"description":"d","readOnly":true}`, `"no"`, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := answerschema.Check([]byte(c.schema), []byte(c.payload))
			require.NoError(t, err)
			require.ElementsMatch(t, c.want, got)
		})
	}
}

func TestCheck_ManyProblems_Bounded(t *testing.T) {
	payload := "[" + strings.Repeat(`"`+strings.Repeat("x", 2000)+`",`, 300) + "1]"
	got, err := answerschema.Check([]byte(`{"items":{"type":"object"}}`), []byte(payload))
	require.NoError(t, err)
	require.Len(t, got, answerschema.MaxProblems)
	got, err = answerschema.Check([]byte(`{"const":"`+strings.Repeat("y", 5000)+`"}`), []byte(`1`))
	require.NoError(t, err)
	require.Less(t, len(got[0].Problem), 400)
}

func TestParse_UnusableSchema_SaysWhy(t *testing.T) {
	for _, c := range []struct{ name, schema, says string }{
		{"no JSON", `{"type":`, "unexpected EOF"},
		{"no schema", `[1]`, "not a JSON object"},
		{"a boolean", `true`, "not a JSON object"},
		{"an unknown type", `{"properties":{"a":{"type":"text"}}}`, `at "/properties/a/type": "text" is none of`},
		{"a keyword beyond the subset", `{"items":{"multipleOf":3}}`, `at "/items/multipleOf": this keyword is not supported`},
		{"a schema of additional properties", `{"additionalProperties":{"type":"string"}}`, "/additionalProperties"},
		{"a wrong pattern", `{"pattern":"("}`, "missing closing"},
		{"a reference to a file", `{"$ref":"file:///etc/passwd"}`, "below $defs of the outermost schema"},
		{"a reference to a server", `{"$ref":"http://127.0.0.1:1/s.json"}`, "below $defs of the outermost schema"},
		{"a reference to nowhere", `{"$ref":"#/$defs/x"}`, "#/$defs/x"},
		{"definitions further inside", `{"items":{"$defs":{"a":{}}}}`, "belong to the outermost schema"},
		{"null", `{"anyOf":[null]}`, `at "/anyOf/0": null is not a schema`},
		{"a bound beyond any range", `{"minimum":1e999}`, "/minimum"},
		{"too many bytes", `{"title":"` + strings.Repeat("x", answerschema.MaxSchema) + `"}`, "at most 65536"},
		{"a pattern of many bytes", `{"pattern":"` + strings.Repeat("x", 5000) + `"}`, "at most 4000"},
		{"a pattern of many repetitions", `{"pattern":"(abcdefgh){900}"}`, "at most 4000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := answerschema.Check([]byte(c.schema), []byte(`{}`))
			require.ErrorIs(t, err, answerschema.ErrSchema)
			require.ErrorContains(t, err, c.says)
			require.Less(t, len(err.Error()), 1000)
			_, again := answerschema.Parse([]byte(c.schema))
			require.EqualError(t, again, err.Error())
		})
	}
	s, err := answerschema.Parse([]byte(form))
	require.NoError(t, err)
	require.Equal(t, "Name", s.Properties["name"].Title)
}

// Forty lines of schema can ask for 2^40 steps. Each of these would take hours or more.
func TestCheck_CostlySchema_Bounded(t *testing.T) {
	doubling := func(format, leaf string) string {
		var b strings.Builder
		b.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
		for i := range 60 {
			fmt.Fprintf(&b, `"d%d":`+strings.ReplaceAll(format, "NEXT", fmt.Sprintf(`{"$ref":"#/$defs/d%d"}`, i+1))+`,`, i)
		}
		b.WriteString(`"d60":` + leaf + `}}`)
		return b.String()
	}
	many := "[" + strings.Repeat("1,", 100_000) + "1]"
	deep := strings.Repeat("[", 5000) + strings.Repeat("]", 5000)
	for _, c := range []struct{ name, schema, payload, says string }{
		{"anyOf twice", doubling(`{"anyOf":[NEXT,NEXT]}`, `{"type":"string"}`), `1`, "given up"},
		{"oneOf twice", doubling(`{"oneOf":[NEXT,NEXT]}`, `{}`), `1`, "given up"},
		{"a reference to itself", `{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}}`, `1`, "depth"},
		{"a tree of lists", `{"$ref":"#/$defs/a","$defs":{"a":{"items":{"$ref":"#/$defs/a"}}}}`, deep, "depth"},
		{"a long list held against a long list", `{"items":{"enum":[` + strings.TrimSuffix(strings.Repeat(`"xxxxx",`, 5000), ",") + `]}}`, many, "steps"},
		{"a long list looked through many times", `{"anyOf":[` + strings.TrimSuffix(strings.Repeat(`{"items":{"type":"string"}},`, 800), ",") + `]}`, many, "steps"},
		{"a pattern over a long text", `{"items":{"pattern":"(abcd){200}"}}`, `["` + strings.Repeat("abcd", 20_000) + `"]`, "steps"},
		{"many required properties", `{"required":["` + strings.TrimSuffix(strings.Repeat(`x","`, 5000), `","`) + `"]}`, members(2000), "steps"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := answerschema.Check([]byte(c.schema), []byte(c.payload))
			require.ErrorIs(t, err, answerschema.ErrSchema)
			require.ErrorContains(t, err, c.says)
		})
	}
}

// members is an object of n members.
func members(n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf(`"m%d":1`, i))
	}
	return "{" + strings.Join(list, ",") + "}"
}

func TestCheck_LargeAnswer_Checked(t *testing.T) {
	payload := "[" + strings.TrimSuffix(strings.Repeat(`{"name":"person","tags":["a","b","c"]},`, 10_000), ",") + "]"
	inner := strings.Replace(strings.Replace(form, `"$defs": {"tag": {"type": "string"}}`, `"title": "form"`, 1), "$schema", "$comment", 1)
	got, err := answerschema.Check([]byte(`{"type":"array","items":{"$ref":"#/$defs/form"},"$defs":{"tag":{"type":"string"},"form":`+inner+`}}`), []byte(payload))
	require.NoError(t, err)
	require.Empty(t, got)
}

func FuzzCheck(f *testing.F) {
	f.Add([]byte(form), []byte(`{"name":"x1","age":17}`))
	f.Add([]byte(`{"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"const":null},{"enum":[1e5]}]}}}`), []byte(`1e5`))
	f.Add([]byte(`{"oneOf":[{"items":{"pattern":"^a*$"}},{"exclusiveMaximum":3}]}`), []byte(`["aa"]`))
	f.Fuzz(func(t *testing.T, schema, payload []byte) {
		problems, err := answerschema.Check(schema, payload)
		if err != nil {
			require.ErrorIs(t, err, answerschema.ErrSchema)
			require.Empty(t, problems)
		}
		require.LessOrEqual(t, len(problems), answerschema.MaxProblems)
	})
}
