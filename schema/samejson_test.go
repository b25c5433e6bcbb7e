package schema_test

import (
	"errors"
	"math/big"
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestSameJSON_Spelling_ComparesValue(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		a, b string
		same bool
	}{
		"white space":                      {`{"a": 1, "b":[ ]}`, `{"a":1,"b":[]}`, true},
		"order of members":                 {`{"a":1,"b":2}`, `{"b":2,"a":1}`, true},
		"order of elements":                {`[1,2]`, `[2,1]`, false},
		"escapes":                          {`"\u0041\/"`, `"A/"`, true},
		"another string":                   {`"1"`, `"1.0"`, false},
		"a string is no number":            {`"1"`, `1`, false},
		"a member more":                    {`{"a":1}`, `{"a":1,"b":2}`, false},
		"an element more":                  {`[1]`, `[1,1]`, false},
		"null is something":                {`null`, ``, false},
		"nothing":                          {``, ``, true},
		"integers above 2^53":              {`{"account":9007199254740993}`, `{"account":9007199254740992}`, false},
		"integers above 2^64":              {`[18446744073709551617]`, `[18446744073709551616]`, false},
		"an integer and its float":         {`9007199254740993`, `9007199254740993.0`, true},
		"fractions that round to a double": {`0.1`, `0.1000000000000000055511151231257827`, false},
		"fractions":                        {`{"x":0.10}`, `{"x":0.1}`, true},
		"one":                              {`[1,1,1,1]`, `[1.0,1e0,10E-1,0.1e+1]`, true},
		"above the largest double":         {`1e400`, `1e401`, false},
		"the same above it":                {`1e400`, `10e399`, true},
		"below the smallest double":        {`1e-400`, `2e-400`, false},
		"sign":                             {`-1`, `1`, false},
		"negative":                         {`-1.50`, `-15e-1`, true},
		"zeros":                            {`[0,0,0,0]`, `[-0,0.0,0e9,-0.00E-3]`, true},
		"an exponent too large to compute": {`1e99999999999999999999`, `10e99999999999999999998`, false},
		"its own text":                     {`[1e99999999999999999999]`, ` [1e99999999999999999999]`, true},
		"no JSON":                          {`{"a":}`, `{"a": }`, false},
		"the same text":                    {`{"a":}`, `{"a":}`, true},
		"a member twice":                   {`{"a":1,"a":2}`, `{"a":2,"a":1}`, false},
		"numbers within, order and spaces": {`{"z":[{"n":9007199254740993}],"a":1.0}`, `{ "a":1, "z":[{"n":9007199254740993}]}`, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := jsontext.Value(test.a), jsontext.Value(test.b)
			require.Equal(t, test.same, schema.SameJSON(a, b))
			require.Equal(t, test.same, schema.SameJSON(b, a))
			require.Equal(t, test.a, string(a), "it is left as it was")
		})
	}
}

// FuzzSameJSON compares SameJSON with a comparison of exact fractions.
func FuzzSameJSON(f *testing.F) {
	f.Add([]byte(`{"a":9007199254740993,"b":[1.0]}`), []byte(`{"b":[1e0],"a":9007199254740992}`))
	f.Add([]byte(`-0.00e5`), []byte(`0`))
	f.Add([]byte(`[1e999999999999999999,"\u0041"]`), []byte(`[10e999999999999999998,"A"]`))
	f.Add([]byte(`{"a":1,"a":2}`), []byte("{\"a\":\"\xff\"}"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		same := schema.SameJSON(a, b)
		require.Equal(t, same, schema.SameJSON(b, a))
		require.True(t, schema.SameJSON(a, a))
		x, err := exactly(a)
		y, err2 := exactly(b)
		if err == nil && err2 == nil {
			require.Equal(t, reflect.DeepEqual(x, y), same)
		}
	})
}

// exactly reads a value with fractions instead of numbers, and refuses numbers too large for a fraction.
func exactly(text []byte) (any, error) {
	var v any
	if err := json.Unmarshal(text, new(any)); err != nil {
		return nil, err // a member twice, or no UTF-8
	}
	err := json.Unmarshal(text, &v, json.WithUnmarshalers(json.UnmarshalFromFunc(func(dec *jsontext.Decoder, v *any) error {
		if dec.PeekKind() != '0' {
			return errors.ErrUnsupported
		}
		number, err := dec.ReadValue()
		if err != nil {
			return err
		}
		if _, exponent, _ := strings.Cut(strings.ToLower(string(number)), "e"); len(exponent) > 4 {
			return errors.New("too large")
		}
		fraction, _ := new(big.Rat).SetString(string(number))
		*v = [1]string{fraction.String()}
		return nil
	})))
	return v, err
}
