package answerschema_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/answerschema"
)

const form = `{
	"type": "object",
	"properties": {
		"name": {"type": "string", "minLength": 2, "pattern": "^[a-z]+$"},
		"age": {"type": "integer", "minimum": 18, "multipleOf": 1},
		"kind": {"enum": ["a", "b"]},
		"tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "uniqueItems": true, "maxItems": 30},
		"a/b": {"type": "boolean"}
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
		{"everything fits an empty schema", `{}`, `[1]`, nil},
		{"everything fits true", `true`, `null`, nil},
		{"nothing fits false", `false`, `1`, []answerschema.Problem{{"", "false schema"}}},
		{"several at once, in the order of the places", form, `{"name":"x1","age":17,"kind":"c","tags":[1,"b"],"a/b":0}`, []answerschema.Problem{
			{"/age", "minimum: got 17, want 18"},
			{"/a~1b", "got number, want boolean"},
			{"/kind", "value must be one of 'a', 'b'"},
			{"/name", `does not match the pattern "^[a-z]+$"`},
			{"/tags/0", "got number, want string"},
		}},
		{"what is missing", form, `{}`, []answerschema.Problem{{"", "missing property 'name'"}}},
		{"what is not asked for", form, `{"name":"bo","x":1}`, []answerschema.Problem{{"", "additional properties 'x' not allowed"}}},
		{"the wrong type", form, `"yes"`, []answerschema.Problem{{"", "got string, want object"}}},
		{"nothing", form, ``, []answerschema.Problem{{"", "is required"}}},
		{"no JSON", `{}`, `{"a":`, []answerschema.Problem{{"/a", "is not valid JSON: jsontext: unexpected EOF within \"/a\" after offset 5"}}},
		{"two values", `{}`, `1 2`, []answerschema.Problem{{"", "is not valid JSON: invalid character after top-level value"}}},
		{"a number to compute with for hours", `{"multipleOf":3}`, `[1e999999999]`, []answerschema.Problem{{"/0", "is a number of more than 400 digits, or its exponent is beyond 400"}}},
		{
			"a format is asserted where the draft says so", `{"$schema":"http://json-schema.org/draft-07/schema#","format":"email"}`, `"no"`,
			[]answerschema.Problem{{"", "is not a valid email"}},
		},
		{"all branches of an anyOf", `{"anyOf":[{"type":"string"},{"type":"object","required":["x"]}]}`, `{}`, []answerschema.Problem{
			{"", "got object, want string"}, {"", "missing property 'x'"},
		}},
		{
			"a schema that refers to itself", `{"properties":{"next":{"$ref":"#"}},"required":["v"]}`, `{"v":1,"next":{"v":1,"next":{}}}`,
			[]answerschema.Problem{{"/next/next", "missing property 'v'"}},
		},
		{"a schema that is a metaschema", `{"$ref":"https://json-schema.org/draft-07/schema#"}`, `{"type":7}`, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := answerschema.Check([]byte(c.schema), []byte(c.payload))
			require.NoError(t, err)
			if strings.Contains(c.name, "metaschema") {
				require.NotEmpty(t, got)
				require.Equal(t, "/type", got[0].Path)
				return
			}
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

func TestCompile_UnusableSchema_SaysWhy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s.json")
	require.NoError(t, os.WriteFile(file, []byte(`{}`), 0o600))
	asked := false
	web := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer web.Close()
	for _, c := range []struct{ name, schema, says string }{
		{"no JSON", `{"type":`, "valid JSON"},
		{"no schema", `[1]`, "neither an object nor a boolean"},
		{"a wrong keyword", `{"type":"text"}`, "/type"},
		{"a wrong pattern", `{"pattern":"("}`, "missing closing"},
		{"a reference to a file", `{"$ref":"file://` + file + `"}`, "only to places within itself"},
		{"a reference to a server", `{"$ref":"` + web.URL + `/s.json"}`, "only to places within itself"},
		{"a reference below an id of a server", `{"$id":"` + web.URL + `/","properties":{"a":{"$ref":"other.json"}}}`, "only to places within itself"},
		{"a metaschema of a server", `{"$schema":"` + web.URL + `/s.json"}`, "only to places within itself"},
		{"a reference to nowhere", `{"$ref":"#/$defs/x"}`, "x"},
		{"a dynamic reference", `{"$defs":{"a":{"$dynamicAnchor":"n"}},"items":{"$dynamicRef":"#n"}}`, "dynamic references"},
		{"too many bytes", `{"title":"` + strings.Repeat("x", answerschema.MaxSchema) + `"}`, "at most 65536"},
		{"too deep", strings.Repeat(`{"not":`, 200) + `{}` + strings.Repeat(`}`, 200), "nested deeper"},
		{"a number to compute with for hours", `{"multipleOf":1e-99999999}`, "/multipleOf"},
		{"too many places", `{"allOf":[` + strings.TrimSuffix(strings.Repeat(`{},`, 20_000), ",") + `]}`, "10000 values"},
		{"a pattern of many bytes", `{"pattern":"` + strings.Repeat("x", 3000) + `"}`, "pattern has 3000 bytes"},
		{"a pattern of many repetitions", `{"pattern":"(abcdefgh){900}"}`, "repetitions are written out"},
		{"a pattern among the properties", `{"patternProperties":{"(abcdefgh){900}":{}}}`, "repetitions are written out"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := answerschema.Check([]byte(c.schema), []byte(`{}`))
			require.ErrorIs(t, err, answerschema.ErrSchema)
			require.ErrorContains(t, err, c.says)
			require.Less(t, len(err.Error()), 1000)
			require.EqualError(t, answerschema.Usable([]byte(c.schema)), err.Error())
		})
	}
	require.NoError(t, answerschema.Usable([]byte(`{"type":"object"}`)))
	require.False(t, asked, "nothing was loaded")
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
	deep := strings.Repeat(`{"c":`, 60) + `1` + strings.Repeat(`}`, 60)
	many := "[" + strings.Repeat("1,", 100_000) + "1]"
	for _, c := range []struct{ name, schema, payload string }{
		{"allOf twice", doubling(`{"allOf":[NEXT,NEXT]}`, `{"type":"string"}`), `1`},
		{"anyOf twice", doubling(`{"anyOf":[NEXT,NEXT]}`, `{"type":"string"}`), `1`},
		{"oneOf twice", doubling(`{"oneOf":[NEXT,NEXT]}`, `true`), `1`},
		{"not and if", doubling(`{"if":NEXT,"then":NEXT,"else":NEXT}`, `{"minimum":3}`), `1`},
		{"dependent schemas", doubling(`{"dependentSchemas":{"a":NEXT,"b":NEXT}}`, `{"type":"string"}`), `{"a":1,"b":1}`},
		{"dependencies of draft 7", `{"$schema":"http://json-schema.org/draft-07/schema#",` +
			doubling(`{"dependencies":{"a":{"allOf":[NEXT]},"b":{"allOf":[NEXT]}}}`, `{"type":"string"}`)[1:], `{"a":1,"b":1}`},
		{"a tree walked twice at each step", `{"allOf":[{"properties":{"c":{"$ref":"#"}}},{"properties":{"c":{"$ref":"#"}}}]}`, deep},
		{"a long list held against a long list", `{"items":{"enum":[` + strings.TrimSuffix(strings.Repeat(`"xxxxx",`, 5000), ",") + `]}}`, many},
		{"a long list looked through many times", `{"allOf":[` + strings.TrimSuffix(strings.Repeat(`{"contains":{"type":"string"}},`, 800), ",") + `]}`, many},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := answerschema.Check([]byte(c.schema), []byte(c.payload))
			require.ErrorIs(t, err, answerschema.ErrSchema)
			require.ErrorContains(t, err, "steps")
		})
	}
}

func TestCheck_LargeAnswer_Checked(t *testing.T) {
	payload := "[" + strings.TrimSuffix(strings.Repeat(`{"name":"person","tags":["a","b","c"]},`, 10_000), ",") + "]"
	got, err := answerschema.Check([]byte(`{"type":"array","items":{"$ref":"#/$defs/form"},"$defs":{"form":`+strings.Replace(form, "#/$defs/tag", "#/$defs/form/$defs/tag", 1)+`}}`), []byte(payload))
	require.NoError(t, err)
	require.Empty(t, got)
}

func FuzzCheck(f *testing.F) {
	f.Add([]byte(form), []byte(`{"name":"x1","age":17}`))
	f.Add([]byte(`{"$ref":"#/x","$dynamicAnchor":"a"}`), []byte(`1e5`))
	f.Add([]byte(`{"$id":"http://x/y","$schema":"https://json-schema.org/draft/2019-09/schema","$recursiveRef":"#"}`), []byte(`{}`))
	f.Add([]byte(`{"unevaluatedProperties":false,"patternProperties":{"^a":{}},"propertyNames":{"maxLength":3}}`), []byte(`{"abcd":1}`))
	f.Fuzz(func(t *testing.T, schema, payload []byte) {
		problems, err := answerschema.Check(schema, payload)
		if err != nil {
			require.ErrorIs(t, err, answerschema.ErrSchema)
			require.Empty(t, problems)
		}
		require.LessOrEqual(t, len(problems), answerschema.MaxProblems)
	})
}
