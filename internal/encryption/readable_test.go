package encryption_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/encryption"
	"github.com/waymarkio/waymark/schema"
)

func ref(path string) schema.Ref { return schema.Ref{Path: path, KeyID: "k", Codec: "c"} }

func TestValue_PathsOfOthers_ChangeOnlyWhatIsThere(t *testing.T) {
	t.Parallel()
	const data = `{"a":{"b/c":[1.50,"x"]},"d":"y"}`
	text := `"` + encryption.Placeholder("k") + `"`
	for path, want := range map[string]string{
		"/a/b~1c/1": `{"a":{"b/c":[1.50,` + text + `]},"d":"y"}`,
		"/d":        `{"a":{"b/c":[1.50,"x"]},"d":` + text + `}`,
		"/new":      `{"a":{"b/c":[1.50,"x"]},"d":"y","new":` + text + `}`,
		"/a":        `{"a":` + text + `,"d":"y"}`,
		"/a/b~1c/2": data, "/a/b~1c/-1": data, "/a/b~1c/x": data, "/d/e": data, "/no/where": data, "": data, "d": data,
	} {
		require.Equal(t, want, string(encryption.ReadableValue(jsontext.Value(data), []schema.Ref{ref(path)})), path)
	}
	both := encryption.ReadableValue(jsontext.Value(data), []schema.Ref{ref("/d"), ref("/a/b~1c/1"), {Path: "/a", DataRef: "elsewhere"}})
	require.Equal(t, 2, strings.Count(string(both), text))
	part := encryption.ReadableValue(schema.Text("c2VjcmV0"), []schema.Ref{ref("/content")})
	require.Equal(t, encryption.Placeholder("k"), *part.Content)
	require.Equal(t, 7, encryption.ReadableValue(7, []schema.Ref{ref("/content")}))
	require.Equal(t, "x", encryption.ReadableField("x", []schema.Ref{ref("/a")}, "/b"))
}

// An executor may name as many paths as fit into an event.
func TestData_ThousandsOfRefs_AreReadOnce(t *testing.T) {
	t.Parallel()
	d := schema.TurnAnsweredData{Turn: 1}
	for i := range 5000 {
		d.Calls = append(d.Calls, schema.RequestedCall{ToolCallID: fmt.Sprint("c", i), Name: "look", Arguments: jsontext.Value(`"c2VjcmV0"`)})
		d.Refs = append(d.Refs, ref(fmt.Sprintf("/calls/%d/arguments", i)))
	}
	b, err := json.Marshal(&d)
	require.NoError(t, err)
	began := time.Now()
	require.NotContains(t, string(encryption.ReadableData(b)), "c2VjcmV0")
	require.Less(t, time.Since(began), 5*time.Second)
}

// The result for people is a copy: the original can still be decrypted.
func TestContent_EncryptedValues_AreNamedByTheirKey(t *testing.T) {
	t.Parallel()
	d := &schema.HandoffOfferedData{
		HandoffID: "h", Reason: "task_complete", Completed: []schema.HandoffCompleted{{File: "c2VjcmV0", Status: "done"}}, Context: &schema.HandoffContext{Decisions: []string{"open", "c2VjcmV0"}},
		Refs: []schema.Ref{ref("/completed/0/file"), ref("/context/decisions/1"), ref("/handoff_id"), ref("/nowhere")},
	}
	shown, ok := encryption.ReadableContent(d).(*schema.HandoffOfferedData)
	require.True(t, ok)
	require.Equal(t, encryption.Placeholder("k"), shown.Completed[0].File)
	require.Equal(t, []string{"open", encryption.Placeholder("k")}, shown.Context.Decisions)
	require.Equal(t, "h", shown.HandoffID, "it is no content")
	require.Equal(t, "c2VjcmV0", d.Completed[0].File)
	plain := &schema.StateSetData{Key: "a", Value: jsontext.Value(`1`)}
	require.Same(t, plain, encryption.ReadableContent(plain))
}

// FuzzReadable tries event data of any writer.
func FuzzReadable(f *testing.F) {
	f.Add([]byte(`{"result":"c2VjcmV0","refs":[{"path":"/result","key_id":"k","codec":"c"}]}`))
	f.Add([]byte(`{"a":[{"b":1}],"refs":[{"path":"/a/0/b","key_id":"k"},{"path":"/a","key_id":"k"},{"path":"/refs/0","key_id":"k"}]}`))
	f.Add([]byte(`{"refs":[{"path":"/~1","key_id":"\n"},{"path":"//","key_id":"k"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		out := encryption.ReadableData(data)
		if jsontext.Value(data).IsValid() {
			require.True(t, jsontext.Value(out).IsValid(), "%s", out)
		}
		var d struct {
			Refs []schema.Ref `json:"refs"`
		}
		if json.Unmarshal(data, &d) == nil {
			encryption.ReadableValue(jsontext.Value(data), d.Refs)
		}
	})
}
