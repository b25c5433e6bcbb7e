package schema_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// nodeHandoff is a hand-off as an executor in TypeScript writes it.
const nodeHandoff = `{
	"completed": [{"file": "src\\a.ts", "status": "done", "tests": {"passed": 3, "skipped": 1, "failed": 0}, "notes": "ok"}],
	"remaining": [{"file": "src\\b.ts", "description": "write it", "referencePattern": "src/a.ts", "priority": "high", "owner": "me"}],
	"context": {"decisions": ["no cgo"], "patterns": ["tables"], "issues": ["none"], "filesModified": ["C:\\w\\a.ts"]},
	"createdAt": "2026-01-02T03:04:05.678Z", "agentId": "agent-7", "reason": "threshold_critical", "zeta": 1, "alpha": 2
}`

func TestParseHandoff_CamelCaseDocument_IsTheSameAsInOurNames(t *testing.T) {
	got, err := schema.ParseHandoff([]byte(nodeHandoff))
	require.NoError(t, err)
	want := &schema.HandoffOfferedData{
		Reason:    "threshold_critical",
		Completed: []schema.HandoffCompleted{{File: `src\a.ts`, Status: "done", Tests: &schema.HandoffTests{Passed: 3, Skipped: 1}, Notes: "ok"}},
		Remaining: []schema.HandoffRemaining{{File: `src\b.ts`, Description: "write it", ReferencePattern: "src/a.ts", Priority: "high", Extra: []byte(`{"owner":"me"}`)}},
		Context:   &schema.HandoffContext{Decisions: []string{"no cgo"}, Patterns: []string{"tables"}, Issues: []string{"none"}, FilesModified: []string{`C:\w\a.ts`}},
		CreatedAt: "2026-01-02T03:04:05.678Z", AgentID: "agent-7", Extra: []byte(`{"zeta":1,"alpha":2}`),
	}
	require.Equal(t, want, got)
	ours, err := schema.MarshalData(got)
	require.NoError(t, err)
	again, err := schema.ParseHandoff(ours)
	require.NoError(t, err)
	require.Equal(t, want, again, "written in our names, it is read as the same")
}

func TestParseHandoff_WrongDocument_NamesTheField(t *testing.T) {
	for document, want := range map[string]string{
		`{"reason":"error","remaining":[{"description":"x","referencePattern":7}]}`:                           "/remaining/0/referencePattern: is a JSON number where a string is wanted",
		`{"reason":"error","remaining":[{"description":"x","referencePattern":"a","reference_pattern":"a"}]}`: "/remaining/0/reference_pattern: is not valid JSON: duplicate object member name",
		`{"reason":"error","context":{"filesModified":["a",7]}}`:                                              "/context/filesModified/1: is a JSON number where a string is wanted",
		`{"reason":"error","createdAt":"yesterday"}`:                                                          `/created_at: "yesterday" is not an RFC 3339 time`,
		`{"reason":"error","completed":[{"file":"a","status":"finished"}]}`:                                   "/completed/0/status: ",
		`{"reason":"because"}`:                   "/reason: ",
		`[]`:                                     "is a JSON [ where an object is wanted",
		``:                                       "is missing",
		`{"reason":"error"`:                      "is not valid JSON",
		`{"reason":"error","remaining":[{}]}`:    "/remaining/0/description: is required",
		`{"reason":"error","agentId":"a\u0000"}`: "/agent_id: ",
	} {
		_, err := schema.ParseHandoff([]byte(document))
		wrong := new(schema.DataError)
		require.ErrorAs(t, err, &wrong, "%s", document)
		require.Contains(t, err.Error(), want, "%s", document)
	}
}

func TestCheckHandoff_BeyondTheSize_IsWarnedOf(t *testing.T) {
	d := &schema.HandoffOfferedData{Reason: "error", Context: &schema.HandoffContext{Issues: []string{strings.Repeat("é", schema.HandoffSizeWarning)}}}
	check, err := schema.CheckHandoff(d)
	require.NoError(t, err)
	require.Equal(t, schema.HandoffCheck{SizeChars: 4000}, check)
	require.False(t, d.TooLong())
	d.Context.Patterns = []string{"x"}
	check, err = schema.CheckHandoff(d)
	require.NoError(t, err)
	require.Equal(t, int64(4001), check.SizeChars)
	require.Contains(t, check.Warning, "4001 characters, more than 4000")
	require.True(t, d.TooLong())
	d = &schema.HandoffOfferedData{Reason: "error", SizeChars: 4001}
	check, err = schema.CheckHandoff(d)
	require.NoError(t, err)
	require.True(t, d.TooLong(), "its run is flagged by the word of its writer")
	require.Equal(t, int64(4001), check.SizeChars)
	require.Contains(t, check.Warning, "4001 characters, more than 4000")
	_, err = schema.CheckHandoff(&schema.HandoffOfferedData{Reason: "because"})
	require.ErrorContains(t, err, "/reason")
}

func TestCheckHandoff_ControlCharacterInAPath_IsRefused(t *testing.T) {
	for path, d := range map[string]*schema.HandoffOfferedData{
		"/context/files_modified/1": {HandoffID: "h", Reason: "error", Context: &schema.HandoffContext{FilesModified: []string{"a", "b\x00"}}},
		"/completed/0/file":         {HandoffID: "h", Reason: "error", Completed: []schema.HandoffCompleted{{File: "a\x1b[2J", Status: "done"}}},
		"/remaining/0/file":         {HandoffID: "h", Reason: "error", Remaining: []schema.HandoffRemaining{{File: "a\n", Description: "x"}}},
	} {
		_, err := schema.CheckHandoff(d)
		var wrong *schema.DataError
		require.ErrorAs(t, err, &wrong, path)
		require.Equal(t, path, wrong.Path)
	}
}
