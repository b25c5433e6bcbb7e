package encryption_test

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/schema"
)

func keys(ids ...string) *encryption.Keys {
	return &encryption.Keys{Current: ids[0], Key: func(_ context.Context, id string) ([]byte, error) {
		if slices.Contains(ids, id) {
			return bytes.Repeat([]byte(id), encryption.KeySize)[:encryption.KeySize], nil
		}
		return nil, encryption.ErrNoKey
	}}
}

// set is state.set of a value, encrypted for a run.
func set(t *testing.T, k *encryption.Keys, run, key, value string) *schema.StateSetData {
	t.Helper()
	d := &schema.StateSetData{Key: key, Value: jsontext.Value(value)}
	body, err := schema.MarshalData(d)
	require.NoError(t, err)
	sealed, err := k.Encrypt(t.Context(), run, 0, d, body, false)
	require.NoError(t, err)
	require.Equal(t, value, string(d.Value), "what the caller gave stays")
	out, ok := sealed.(*schema.StateSetData)
	require.True(t, ok)
	return out
}

func TestEncrypt_SameValue_IsTheSameTextAtItsPlaceAlone(t *testing.T) {
	t.Parallel()
	one := set(t, keys("k1"), "r1", "plan", `"secret"`)
	require.Equal(t, one, set(t, keys("k1"), "r1", "plan", `"secret"`), "published again it is the same event")
	for _, other := range []*schema.StateSetData{
		set(t, keys("k1"), "r2", "plan", `"secret"`), set(t, keys("k1"), "r1", "other", `"secret"`), set(t, keys("k1"), "r1", "plan", `"others"`), set(t, keys("k2"), "r1", "plan", `"secret"`),
	} {
		require.NotEqual(t, one.Value, other.Value)
	}
}

func TestOpen_KeyIsNotThere_ValueIsOpenedLater(t *testing.T) {
	t.Parallel()
	e := &schema.Event{ID: "e", Type: schema.TypeOf(schema.StateSet), Subject: "r1", Epoch: 1, Sequence: 1}
	d := set(t, keys("k1"), "r1", "plan", `{"a":1}`)
	require.NoError(t, keys("k2").Open(t.Context(), e, d))
	require.Len(t, d.Refs, 1)
	ref := d.Refs[0]
	require.NotEmpty(t, ref.Place)
	value, err := keys("k1").Value(t.Context(), &ref, d.Value)
	require.NoError(t, err)
	require.JSONEq(t, `{"a":1}`, string(value))
	_, err = keys("k2").Value(t.Context(), &ref, d.Value)
	require.ErrorIs(t, err, encryption.ErrNoKey)

	known := keys("k1")
	require.NoError(t, known.OpenKnown(e, d), "it calls no key function")
	require.Len(t, d.Refs, 1)
	_, err = known.Check(t.Context(), "k1")
	require.NoError(t, err)
	require.NoError(t, known.OpenKnown(e, d))
	require.Empty(t, d.Refs)
	require.JSONEq(t, `{"a":1}`, string(d.Value))
}

// A ref does not prove that the value is encrypted.
func TestEncrypt_RefWithoutKey_IsNoCipherText(t *testing.T) {
	t.Parallel()
	seal := func(refs ...schema.Ref) (*schema.StateSetData, error) {
		d := &schema.StateSetData{Key: "plan", Value: jsontext.Value(`"canary"`), Refs: refs}
		body, err := schema.MarshalData(d)
		require.NoError(t, err)
		sealed, err := keys("k1").Encrypt(t.Context(), "r1", 0, d, body, false)
		if err != nil {
			return nil, err
		}
		out, ok := sealed.(*schema.StateSetData)
		require.True(t, ok)
		return out, nil
	}
	_, err := seal(schema.Ref{Path: "/value", DataRef: schema.DataRef("r1", strings.Repeat("0", 64)), Size: 1})
	require.ErrorIs(t, err, encryption.ErrNoPlace)
	out, err := seal(schema.Ref{Path: "/value", KeyID: "own", Codec: "own"})
	require.NoError(t, err)
	require.Equal(t, `"canary"`, string(out.Value), "it is the caller's cipher text")
}

// Readable members next to a value cannot be exchanged.
func TestOpen_ReadableNeighbourIsAnother_IsNotOpened(t *testing.T) {
	t.Parallel()
	seal := func(data schema.Data, invented bool) schema.Data {
		body, err := schema.MarshalData(data)
		require.NoError(t, err)
		sealed, err := keys("k1").Encrypt(t.Context(), "r1", 1, data, body, invented)
		require.NoError(t, err)
		return sealed
	}
	open := func(data schema.Data) error {
		e := &schema.Event{ID: "e", Type: schema.TypeOf(data.EventName()), Subject: "r1", Turn: 1, Epoch: 1, Sequence: 1}
		return keys("k1").Open(t.Context(), e, data)
	}
	called := func(invented bool) *schema.ToolCalledData {
		d, ok := seal(&schema.ToolCalledData{ToolCallID: "a", Name: "pay", Occurrence: 2, Arguments: jsontext.Value(`{"to":"ann"}`)}, invented).(*schema.ToolCalledData)
		require.True(t, ok)
		return d
	}
	require.NoError(t, open(called(false)))
	require.NoError(t, open(called(true)))
	for _, change := range []func(*schema.ToolCalledData){
		func(d *schema.ToolCalledData) { d.Name = "refund" },
		func(d *schema.ToolCalledData) { d.Occurrence = 1 },
		func(d *schema.ToolCalledData) { d.ToolCallID = "b" },
	} {
		d := called(false)
		change(d)
		require.ErrorIs(t, open(d), encryption.ErrNotOpened)
	}
	m, ok := seal(&schema.MessageAddedData{Message: schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("do it")}}}, false).(*schema.MessageAddedData)
	require.True(t, ok)
	m.Message.Role = schema.RoleSystem
	require.ErrorIs(t, open(m), encryption.ErrNotOpened)

	// A second call, after the first decrypted the name, computes the same place.
	d := called(true)
	known := keys("k1")
	e := &schema.Event{ID: "e", Type: schema.TypeOf(schema.ToolCalled), Subject: "r1", Turn: 1, Epoch: 1, Sequence: 1}
	i := slices.IndexFunc(d.Refs, func(r schema.Ref) bool { return r.Path == "/arguments" })
	d.Refs[i].KeyID = "k2"
	require.NoError(t, known.Open(t.Context(), e, d))
	require.Equal(t, "pay", d.Name)
	d.Refs[0].KeyID = "k1"
	require.NoError(t, known.Open(t.Context(), e, d))
	require.JSONEq(t, `{"to":"ann"}`, string(d.Arguments))
}

func TestOpen_ValueOfAnotherFleet_IsNotOpened(t *testing.T) {
	t.Parallel()
	staging, production := keys("k1"), keys("k1")
	staging.Fleet, production.Fleet = "staging", "production"
	d := set(t, staging, "r1", "plan", `"secret"`)
	e := &schema.Event{ID: "e", Source: schema.Source("staging", "e"), Type: schema.TypeOf(schema.StateSet), Subject: "r1", Epoch: 1, Sequence: 1}
	require.ErrorIs(t, production.Open(t.Context(), e, d), encryption.ErrNotOpened, "whatever source the event names")
	require.NoError(t, staging.Open(t.Context(), e, set(t, staging, "r1", "plan", `"secret"`)))
}

func TestKeys_WrongSize_IsNamed(t *testing.T) {
	t.Parallel()
	k := &encryption.Keys{Current: "k1", Key: func(context.Context, string) ([]byte, error) { return make([]byte, 16), nil }}
	id, err := k.Check(t.Context(), "k1")
	require.Equal(t, "k1", id)
	require.ErrorIs(t, err, encryption.ErrUnusableKey)
	require.ErrorContains(t, err, "it has 16 bytes, and 32 are needed")
}

// FuzzOpen opens event data of any writer.
func FuzzOpen(f *testing.F) {
	f.Add(schema.StateSet, []byte(`{"key":"plan","value":"c2VjcmV0","refs":[{"path":"/value","key_id":"k1","codec":"xchacha20-poly1305"}]}`))
	f.Add(schema.RunStarted, []byte(`{"agent":"a","executor":"e","labels":{"a/b":"x"},"more":{"a":1},"refs":[{"path":"/labels/a~1b","key_id":"k1","codec":"xchacha20-poly1305"},{"path":"/more","key_id":"k1","codec":"xchacha20-poly1305"}]}`))
	f.Add(schema.TurnAnswered, []byte(`{"turn":1,"message":{"role":"assistant","parts":[{"type":"text","content":"x"}]},"refs":[{"path":"/message/parts/0/content","key_id":"k1","codec":"xchacha20-poly1305"}]}`))
	k := keys("k1")
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		e := &schema.Event{ID: "e", Type: schema.TypeOf(name), Subject: "r1", Epoch: 1, Sequence: 1, Data: data}
		parsed, err := schema.ParseData(e)
		if err != nil || parsed == nil {
			return
		}
		_ = k.Open(t.Context(), e, parsed) // it must not panic on any data
		if body, err := schema.MarshalData(parsed); err == nil {
			sealed, err := k.Encrypt(t.Context(), "r1", 1, parsed, body, true)
			if err == nil {
				require.NotNil(t, sealed)
			}
		}
	})
}
