package encryption_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/schema"
)

func ref(path string) schema.Ref { return schema.Ref{Path: path, KeyID: "k", Codec: "c"} }

func TestValue_PathsOfOthers_ChangeOnlyWhatIsThere(t *testing.T) {
	t.Parallel()
	m := schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("open"), schema.Text("c2VjcmV0"), {Type: schema.PartFile}}}
	shown := encryption.ReadableValue(m, []schema.Ref{
		ref("/parts/1/content"), ref("/parts/2/file_id"), ref("/parts/3/content"), ref("/parts/-1/content"), ref("/role"), ref("/no/where"), ref(""), ref("d"),
		{Path: "/parts/0/content", DataRef: "elsewhere"},
	})
	require.Equal(t, "open", *shown.Parts[0].Content)
	require.Equal(t, encryption.Placeholder("k"), *shown.Parts[1].Content)
	require.Equal(t, encryption.Placeholder("k"), shown.Parts[2].FileID)
	require.Equal(t, schema.RoleUser, shown.Role, "it is no content")
	require.Len(t, shown.Parts, 3)
	require.Equal(t, "c2VjcmV0", *m.Parts[1].Content)
	view := schema.StateMessage{Message: schema.Message{Parts: []schema.Part{schema.Text("c2VjcmV0")}}}
	require.Equal(t, encryption.Placeholder("k"), *encryption.ReadableValue(view, []schema.Ref{ref("/parts/0/content")}).Parts[0].Content)
	require.Equal(t, "x", encryption.ReadableField("x", []schema.Ref{ref("/a")}, "/b"))
}

// An executor may name as many paths as fit into an event.
func TestData_ThousandsOfRefs_AreReadOnce(t *testing.T) {
	t.Parallel()
	d := &schema.TurnAnsweredData{Turn: 1}
	for i := range 5000 {
		d.Calls = append(d.Calls, schema.RequestedCall{ToolCallID: fmt.Sprint("c", i), Name: "look", Arguments: jsontext.Value(`"c2VjcmV0"`)})
		d.Refs = append(d.Refs, ref(fmt.Sprintf("/calls/%d/arguments", i)))
	}
	began := time.Now()
	b, err := json.Marshal(encryption.ReadableContent(d))
	require.NoError(t, err)
	require.Equal(t, 5000, strings.Count(string(b), encryption.Placeholder("k")))
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

// FuzzReadable tries event data of any writer: fields that its refs call encrypted are not shown, and the code does not panic.
func FuzzReadable(f *testing.F) {
	f.Add([]byte(`{"turn":1,"messages":[{"role":"user","parts":[{"type":"text","content":"c2VjcmV0"}]}],"refs":[{"path":"/messages/0/parts/0/content","key_id":"k","codec":"c"}]}`))
	f.Add([]byte(`{"turn":1,"a":[{"b":1}],"refs":[{"path":"/a/0/b","key_id":"k"},{"path":"/a","key_id":"k"},{"path":"/refs/0","key_id":"k"}]}`))
	f.Add([]byte(`{"turn":1,"refs":[{"path":"/~1","key_id":"\n"},{"path":"//","key_id":"k"}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		data, err := schema.ParseData(&schema.Event{Type: schema.TypeOf(schema.TurnStarted), DataContentType: schema.ContentTypeJSON, Data: body})
		if err != nil {
			return
		}
		d, ok := data.(*schema.TurnStartedData)
		require.True(t, ok)
		shown, ok := encryption.ReadableContent(d).(*schema.TurnStartedData)
		require.True(t, ok)
		require.Len(t, shown.Messages, len(d.Messages))
		for i := range d.Messages {
			encryption.ReadableValue(d.Messages[i], d.Refs)
		}
	})
}
