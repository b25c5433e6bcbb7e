package examples_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

const foreignPage = "../events.md"

func TestEventsPage_Hash_EqualsEvent(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(foreignPage)
	require.NoError(t, err)
	w := schema.Writer{Fleet: "default", Run: "r-1", Executor: "py-1", Epoch: 1}
	e := &schema.Event{
		Source: schema.Source(w.Fleet, w.Executor), Type: schema.TypeOf(schema.RunStarted), Subject: w.Run, Time: "2026-01-31T12:00:00Z",
		Epoch: 1, Sequence: 1, DataContentType: schema.ContentTypeJSON, Data: []byte(`{"agent":"a","executor":"py-1"}`),
	}
	e.Seal()
	for name, want := range map[string]string{"content": e.ContentHash().String(), "id": e.ID} {
		m := regexp.MustCompile(`(?m)^    ` + name + ` +(\S+)$`).FindStringSubmatch(string(text))
		require.NotNil(t, m, name)
		require.Equal(t, want, m[1], name)
	}
	require.Contains(t, string(text), string(e.Data))
}

func TestEventsPage_Vocabulary_Complete(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../events.md")
	require.NoError(t, err)
	api, err := os.ReadFile("../../schema/asyncapi.json")
	require.NoError(t, err)
	names := regexp.MustCompile(`io\.waymark\.([a-z_]+\.[a-z_]+)\.v1`).FindAllStringSubmatch(string(api), -1)
	require.Greater(t, len(names), 25)
	for _, m := range names {
		require.True(t, strings.Contains(string(text), "`"+m[1]+"`"), "docs/events.md has no row for %s", m[1]) //nolint:testifylint // it would print the page
	}
	// Rows name what there is, and mark what is required as the schema does.
	for _, row := range regexp.MustCompile("(?m)^\\| ((?:`[a-z_.]+`,? ?)+)C? ?\\|([^|]+)\\| (?:yes|no) \\|$").FindAllStringSubmatch(string(text), -1) {
		for _, m := range regexp.MustCompile("`([a-z_.]+)`").FindAllStringSubmatch(row[1], -1) {
			data := schema.NewData(m[1])
			require.NotNil(t, data, m[1])
			if err := schema.Validate(data); err != nil {
				missing, _, _ := strings.Cut(regexp.MustCompile(`at /([a-z_/]+)`).FindStringSubmatch(err.Error())[1], "/")
				require.Contains(t, row[2], "**"+missing+"**", m[1])
			}
			var described struct {
				Properties map[string]json.RawMessage `json:"properties"`
			}
			text, err := os.ReadFile("../../schema/jsonschema/" + m[1] + ".json")
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(text, &described))
			for member := range described.Properties {
				if member != "refs" && member != "source" { // said above the table
					require.Regexp(t, `\b`+member+`\b`, row[2], "a member of %s", m[1])
				}
			}
		}
	}
}
