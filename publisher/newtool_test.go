package publisher_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
)

func TestNewTool_SchemaOfTheArguments_IsMadeFromTheType(t *testing.T) {
	t.Parallel()
	tool := publisher.NewTool("find", "Finds.", publisher.Pure, func(context.Context, struct {
		Text string   `json:"text" jsonschema:"what to look for"`
		Most int      `json:"most,omitempty"`
		In   []string `json:"in,omitzero"`
	},
	) (int, error) {
		return 0, nil
	})
	require.JSONEq(t, `{"type":"object","required":["text"],"additionalProperties":false,"properties":{
		"text":{"type":"string","description":"what to look for"},"most":{"type":"integer"},"in":{"type":["null","array"],"items":{"type":"string"}}}}`, string(tool.Parameters))
}

// Numbers that satisfy the schema and do not fit into the type are wrong before the tool runs.
func TestNewTool_NumbersThatDoNotFit_AreInvalidArguments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "look", `{"at":1.5e0}`), call("b", "look", `{"at":99999999999999999999}`))}}
	run := start(t, w.fleet(), "r1")
	require.NoError(t, publisher.Loop{Model: m.model, Tools: []publisher.Tool{look(nil)}}.Work(t.Context(), run))
	said := m.sent()[1]
	for _, line := range said[len(said)-2:] {
		require.Contains(t, line, "invalid_arguments")
	}
}
