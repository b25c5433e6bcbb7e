package examples_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
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

// A writer with the page's rules alone names no turn: the next executor has the key of the page, and the writer is refused.
func TestEventsPage_RunWrittenByHand_IsTakenOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	nc := w.server.Conn(t)
	sequence, last := 0, 0
	write := func(name, data string) (code int) {
		sequence++
		attributes := map[string]string{
			"specversion": "1.0", "source": "/waymark/default/py-1", "type": "io.waymark." + name + ".v1", "subject": "r1",
			"epoch": "1", "sequence": fmt.Sprintf("%020d", sequence),
		}
		msg, content := nats.NewMsg("waymark.events.default.r1"), ""
		for _, name := range slices.Sorted(maps.Keys(attributes)) {
			content += name + "=" + attributes[name] + "\n"
			msg.Header["ce-"+name] = []string{attributes[name]}
		}
		id := fmt.Sprintf("r1.1.%d.%.4x", sequence, sha256.Sum256([]byte(content+"\n"+data)))
		msg.Header["ce-id"], msg.Header["Nats-Msg-Id"] = []string{id}, []string{id}
		msg.Header["Nats-Expected-Last-Subject-Sequence"] = []string{strconv.Itoa(last)}
		msg.Data = []byte(data)
		reply, err := nc.RequestMsg(msg, patience)
		require.NoError(t, err)
		var ack struct {
			Seq   int
			Error struct {
				Code int `json:"err_code"`
			}
		}
		require.NoError(t, json.Unmarshal(reply.Data, &ack))
		last = ack.Seq
		return ack.Error.Code
	}
	for _, e := range [][2]string{
		{schema.RunStarted, `{"agent":"coder","executor":"py-1"}`},
		{schema.ToolCalled, `{"tool_call_id":"a","name":"look","replay":"pure"}`},
		{schema.ToolReturned, `{"tool_call_id":"a","result":1}`},
		{schema.ToolCalled, `{"tool_call_id":"b","name":"pay","replay":"idempotent"}`},
	} {
		require.Zero(t, write(e[0], e[1]))
	}
	next := takeOver(t, w.fleet("ex-2", nil))
	_, err := next.Turn(0).Tool(t.Context(), publisher.ToolCall{ID: "b", Name: "pay", Replay: publisher.Idempotent, Occurrence: 1}, func(_ context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
		require.Equal(t, "r1.1.b.1", inv.IdempotencyKey)
		return publisher.Result("paid")
	})
	require.NoError(t, err)
	require.Equal(t, 10071, write(schema.ToolReturned, `{"tool_call_id":"b","result":1}`))
	head, err := w.fleet("reader", nil).Head(t.Context(), "r1")
	require.NoError(t, err)
	require.Empty(t, head.OpenCalls)
	require.Zero(t, head.Counts.DeadLetters+head.Counts.Unknown)
}

func TestEventsPage_Vocabulary_Complete(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../events.md")
	require.NoError(t, err)
	boundary := boundaries(t)
	for _, name := range schema.EventNames() {
		if *update && !strings.Contains(vocabularyTable(t, string(text)), "`"+name+"`") {
			text = []byte(withRow(t, string(text), vocabularyRow(name, boundary[name])))
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
	rows := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| ((?:`[a-z_.]+`,? ?)+)C? ?\\|([^|]+)\\| (yes|no) \\|$").FindAllStringSubmatch(vocabularyTable(t, string(text)), -1) {
		for _, m := range regexp.MustCompile("`([a-z_.]+)`").FindAllStringSubmatch(row[1], -1) {
			rows[m[1]] = true
			require.Equal(t, boundary[m[1]], row[3], "boundary of %s, as the transcripts of schema/testdata/fold have it", m[1])
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
	for _, name := range schema.EventNames() {
		require.True(t, rows[name], "the table of docs/events.md has no row for %s: -update writes a first one", name)
	}
}

// vocabularyEnd is the end of the table of docs/events.md.
var vocabularyEnd = regexp.MustCompile("(?s)\n## Vocabulary\n.*?\n\\| name \\| data \\| boundary \\|\n(?:\\|[^\n]*\n)+")

// vocabularyTable is the page up to the end of its table of events.
func vocabularyTable(t *testing.T, page string) string {
	t.Helper()
	at := vocabularyEnd.FindStringIndex(page)
	require.NotNil(t, at, "docs/events.md has no table of events")
	return page[:at[1]]
}

// withRow is the page with one more row at the end of its table of events.
func withRow(t *testing.T, page, row string) string {
	t.Helper()
	table := vocabularyTable(t, page)
	return table + row + "\n" + page[len(table):]
}

// boundaries says of each event whether the fold, in any transcript, accepted one as a boundary: yes or no.
func boundaries(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../../schema/testdata/fold/*.txt")
	require.NoError(t, err)
	told := regexp.MustCompile(`(?m)^[a-z]\S* .*?\b([a-z]+\.[a-z_]+) \{.*\n    applied\b(.*)$`)
	boundary := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		story := regexp.MustCompile(`(?m)^takeover `).ReplaceAllString(strings.ReplaceAll(string(text), "\r\n", "\n"), "takeover "+schema.RunResumed+" {} ")
		for _, m := range told.FindAllStringSubmatch(story, -1) {
			if strings.Contains(m[2], " boundary") {
				boundary[m[1]] = "yes"
			} else if boundary[m[1]] == "" {
				boundary[m[1]] = "no"
			}
		}
	}
	return boundary
}

func TestVocabularyRow_Update_EndsTheTable(t *testing.T) {
	t.Parallel()
	page := "\n## Vocabulary\n\n| name | data | boundary |\n|---|---|---|\n| `a.b` | c | yes |\n\n`run.erased`, signed\n\n| x | y |\n"
	require.Equal(t, strings.Replace(page, "| yes |\n", "| yes |\n| `d.e` | f | no |\n", 1), withRow(t, page, "| `d.e` | f | no |"))
}

// vocabularyRow is a first version of an event's row: its members, with those that are required in bold, and their
// values.
func vocabularyRow(event, boundary string) string {
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
	return fmt.Sprintf("| `%s`%s | %s | %s |", event, control, strings.Join(members, ", "), boundary)
}
