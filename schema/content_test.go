package schema_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/schema"
)

func contentKeys() *encryption.Keys {
	return &encryption.Keys{Current: "k1", Key: func(context.Context, string) ([]byte, error) { return bytes.Repeat([]byte{1}, encryption.KeySize), nil }}
}

// Each content value of each type is encrypted, the fold accepts the event, and the value comes back.
func TestContents_EveryType_NothingOfItIsReadable(t *testing.T) {
	t.Parallel()
	keys, seen := contentKeys(), 0
	for _, data := range samples() {
		name := data.EventName()
		refs := schema.RefsOf(data)
		if refs == nil || slices.ContainsFunc(*refs, func(r schema.Ref) bool { return r.KeyID != "" }) {
			continue
		}
		body, err := schema.MarshalData(data)
		require.NoError(t, err, name)
		given, err := schema.ParseData(&schema.Event{Type: schema.TypeOf(name), Data: body})
		require.NoError(t, err, name)
		sealed, err := keys.Encrypt(t.Context(), "r1", 1, data, body, true)
		require.NoError(t, err, name)
		secret, err := schema.MarshalData(sealed)
		require.NoError(t, err, name)
		values := make(map[string]string)
		for _, c := range schema.Contents(given) {
			value, err := c.JSON()
			require.NoError(t, err, "%s%s", name, c.Path)
			values[c.Path] = string(value)
		}
		after, err := schema.ParseData(&schema.Event{Type: schema.TypeOf(name), Data: secret})
		require.NoError(t, err, name)
		moved := func(path string) bool { // in the blob store
			return slices.ContainsFunc(*refs, func(r schema.Ref) bool { return r.Path == path })
		}
		for _, c := range schema.Contents(after) {
			value, err := c.JSON()
			require.NoError(t, err, "%s%s", name, c.Path)
			if tool := c.Name && name != schema.ToolCalled; values[c.Path] != "" && !moved(c.Path) && !tool {
				require.NotEqual(t, values[c.Path], string(value), "%s%s is readable", name, c.Path)
				seen++
			}
		}
		e := &schema.Event{ID: "e", Type: schema.TypeOf(name), Subject: "r1", Turn: 1, Epoch: 1, Sequence: 1, Data: secret}
		require.NoError(t, keys.Open(t.Context(), e, after), name)
		opened, err := schema.MarshalData(after)
		require.NoError(t, err, name)
		require.True(t, schema.SameJSON(plainBody(t, name, body), plainBody(t, name, opened)), "%s: %s became %s", name, body, opened)
	}
	require.Greater(t, seen, 50, "of all the values of content")
}

// plainBody is a body without what encryption adds: the size of a hand-off.
func plainBody(t *testing.T, name string, body []byte) jsontext.Value {
	t.Helper()
	if name != schema.HandoffOffered {
		return body
	}
	var members map[string]jsontext.Value
	require.NoError(t, json.Unmarshal(body, &members))
	delete(members, "size_chars")
	out, err := json.Marshal(members, json.Deterministic(true))
	require.NoError(t, err)
	return out
}

func TestRefsOf_EveryTypeWithRefs_AreItsOwn(t *testing.T) {
	t.Parallel()
	for _, data := range samples() {
		field := reflect.ValueOf(data).Elem().FieldByName("Refs")
		refs := schema.RefsOf(data)
		require.Equal(t, field.IsValid(), refs != nil, "%s: RefsOf needs a case for each type with a field Refs", data.EventName())
		if refs != nil {
			require.Same(t, field.Addr().Interface(), refs)
		}
	}
}

// Each text and value of the vocabulary that stays readable is in the list, so that a new field needs a decision.
func TestReadable_Fields_AreThoseOfTheList(t *testing.T) {
	t.Parallel()
	all := make(map[string]bool)
	for _, data := range samples() {
		readable(all, data.EventName()+" ", reflect.TypeOf(data).Elem())
	}
	var lines []string
	for line := range all {
		lines = append(lines, line)
	}
	slices.Sort(lines)
	path := filepath.Join("testdata", "readable.txt")
	got := strings.Join(lines, "\n") + "\n"
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "a field stays readable, or is content by its tag: say which, and write the list with -update")
}

func readable(all map[string]bool, path string, of reflect.Type) {
	for f := range of.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if _, content := f.Tag.Lookup("content"); content || name == "" || name == "-" || name == "refs" || name == "base" || name == "to" {
			continue
		}
		inner := f.Type
		for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice && inner.Elem().Kind() != reflect.Uint8 {
			inner = inner.Elem()
		}
		switch {
		case inner.Kind() == reflect.Struct:
			readable(all, path+"/"+name, inner)
		case inner.Kind() == reflect.String, inner.Kind() == reflect.Map, inner == reflect.TypeFor[jsontext.Value]():
			all[path+"/"+name] = true
		}
	}
}
