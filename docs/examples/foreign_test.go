package examples_test

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
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
	for _, name := range schema.EventNames() {
		if table, rest, ok := strings.Cut(string(text), "\n\nThe daemon also announces"); *update && ok && !strings.Contains(table, "`"+name+"`") {
			text = []byte(table + "\n" + vocabularyRow(name) + "\n\nThe daemon also announces" + rest)
			require.NoError(t, os.WriteFile("../events.md", text, 0o600))
		}
	}
	announced := []string{
		schema.CheckpointCreated, schema.CheckpointUpdated, schema.CheckpointFinalized, schema.TurnCreated, schema.TurnUpdated, schema.TurnFinalized,
	}
	for _, name := range append(announced, schema.EventNames()...) {
		require.True(t, strings.Contains(string(text), "`"+name+"`"), "docs/events.md has no row for %s: -update writes a first one", name) //nolint:testifylint // it would print the page
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

// vocabularyRow is a first version of an event's row: its members, with those that are required in bold, and their
// values.
func vocabularyRow(event string) string {
	t := reflect.TypeOf(schema.NewData(event)).Elem()
	var members []string
	for field := range t.Fields() {
		tag := field.Tag
		name, _, _ := strings.Cut(tag.Get("json"), ",")
		if name == "" || name == "refs" || name == "source" { // said above the table
			continue
		}
		rules := strings.Split(tag.Get("check"), ",")
		if slices.Contains(rules, "required") || slices.Contains(rules, "min=1") {
			name = "**" + name + "**"
		}
		for _, rule := range rules {
			if values, ok := strings.CutPrefix(rule, "oneof="); ok {
				name += " (" + strings.ReplaceAll(values, "|", ", ") + ")"
			}
		}
		members = append(members, name)
	}
	control := ""
	if schema.ControlOnly(event) {
		control = " C"
	}
	return fmt.Sprintf("| `%s`%s | %s | yes |", event, control, strings.Join(members, ", "))
}
