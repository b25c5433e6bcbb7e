package schema_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestAsyncAPI_Document_Valid(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed; make asyncapi validates the document where it is")
	}
	parsers, err := filepath.Glob(filepath.Join("..", ".bin", "asyncapi-*", "node_modules", "@asyncapi", "parser"))
	require.NoError(t, err)
	if len(parsers) == 0 {
		t.Skip("the AsyncAPI parser is not in .bin; make asyncapi fetches it")
	}
	dir, _, _ := strings.Cut(parsers[len(parsers)-1], string(filepath.Separator)+"node_modules")
	script := filepath.Join("..", "tools", "asyncapi.cjs")
	out, err := exec.CommandContext(t.Context(), node, script, dir, "asyncapi.json").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "valid AsyncAPI 3")
}

func TestAsyncAPI_Document_Complete(t *testing.T) {
	text, err := os.ReadFile("asyncapi.json")
	require.NoError(t, err)
	var document map[string]any
	require.NoError(t, json.Unmarshal(text, &document))
	requireRefs(t, document, document)
	lookup := func(path string) any { return resolve(document, "#/"+path) }
	require.Equal(t, "waymark.events.{fleet}.{shard}.{run}", lookup("channels/events/address"))
	require.Equal(t, "waymark.checkpoints.{fleet}.{shard}.{run}", lookup("channels/checkpoints/address"))
	require.Equal(t, "waymark.observed.{fleet}.{entity}.{verb}.{run}", lookup("channels/observed/address"))
	require.Equal(t, "waymark.deadletters.{fleet}.{reason}.{run}", lookup("channels/deadletters/address"))
	require.Equal(t, "waymark.heartbeats.{fleet}.{executor}", lookup("channels/heartbeats/address"))
	require.Equal(t, "receive", lookup("operations/receiveHeartbeat/action"), "the daemon hears them")
	require.Equal(t, "waymark.notices.{fleet}.{executor}", lookup("channels/notices/address"))
	require.Equal(t, "send", lookup("operations/sendNotice/action"))
	require.NotNil(t, lookup("channels/notices/parameters/executor"))
	for _, verb := range []string{
		schema.VerbRecover, schema.VerbGet, schema.VerbHistory, schema.VerbSettle, schema.VerbInput, schema.VerbCancel, schema.VerbHandoff,
		schema.VerbMark, schema.VerbSignal, schema.VerbErase,
	} {
		require.Equal(t, "waymark."+verb+".{fleet}.{run}", lookup("channels/"+verb+"/address"))
		require.NotNil(t, lookup("operations/"+verb+"/reply/channel"))
	}
	require.Equal(t, "waymark.list.{fleet}", lookup("channels/list/address"))
	require.Equal(t, "waymark.claim.{fleet}", lookup("channels/claim/address"))
	for _, notice := range schema.TurnNotices() {
		name := strings.ReplaceAll(notice, ".", "_")
		require.NotNil(t, lookup("channels/observed/messages/"+name), name)
		require.Nil(t, lookup("channels/events/messages/"+name), "%s is in no log", name)
		require.Equal(t, schema.TypeOf(notice), lookup("components/messages/"+name+"/headers/properties/ce-type/const"))
	}
	for _, d := range samples() {
		name := strings.ReplaceAll(d.EventName(), ".", "_")
		require.NotNil(t, lookup("channels/events/messages/"+name), name)
		require.Equal(t, schema.TypeOf(d.EventName()), lookup("components/messages/"+name+"/headers/properties/ce-type/const"))
	}
}

// requireRefs checks that every reference of v has a target in the document.
func requireRefs(t *testing.T, document map[string]any, v any) {
	t.Helper()
	switch v := v.(type) {
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok {
			require.NotNil(t, resolve(document, ref), ref)
		}
		for _, m := range v {
			requireRefs(t, document, m)
		}
	case []any:
		for _, m := range v {
			requireRefs(t, document, m)
		}
	}
}

func resolve(v any, ref string) any {
	for name := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[name]
	}
	return v
}
