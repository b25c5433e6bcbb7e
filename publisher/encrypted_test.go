package publisher_test

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// What an executor encrypted is no content for another that has no key: a tool is not handed cipher text, and its result is not returned.
func TestTool_FieldsAreEncrypted_NothingIsTakenForText(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	encrypted := func(path string) []schema.Ref {
		return []schema.Ref{{Path: path, KeyID: "k-2026", Codec: "aes-256-gcm"}}
	}
	require.NoError(t, run.Publish(t.Context(), &schema.TurnAnsweredData{
		Turn: 1, Message: schema.Message{Role: schema.RoleAssistant},
		Calls: []schema.RequestedCall{{ToolCallID: "a", Name: "pay", Arguments: raw(`"c2VjcmV0"`)}, {ToolCallID: "b", Name: "look", Replay: schema.ReplayPure}},
		Refs:  encrypted("/calls/0/arguments"),
	}, 1))
	require.NoError(t, run.Publish(t.Context(), &schema.ToolReturnedData{ToolCallID: "b", Result: raw(`"c2VjcmV0"`), Refs: encrypted("/result")}, 1))
	require.NoError(t, run.Publish(t.Context(), &schema.PhaseStartedData{Phase: "plan"}, 0))
	require.NoError(t, run.Publish(t.Context(), &schema.PhaseCompletedData{Phase: "plan", Output: raw(`"c2VjcmV0"`), Refs: encrypted("/output")}, 0))

	var n atomic.Int64
	_, err := run.OpenTurn().Tool(t.Context(), publisher.ToolCall{ID: "a", Name: "pay", Arguments: raw(`"c2VjcmV0"`)}, counted(&n, "paid"))
	require.ErrorIs(t, err, publisher.ErrEncrypted)
	require.ErrorContains(t, err, "arguments of call a in turn 1 of run r1: /arguments: the content is encrypted with key k-2026")
	result, err := run.OpenTurn().Tool(t.Context(), publisher.ToolCall{ID: "b", Occurrence: 1, Name: "look", Replay: schema.ReplayPure}, counted(&n, "seen"))
	require.ErrorIs(t, err, publisher.ErrEncrypted)
	require.Empty(t, result.Result)
	require.Zero(t, n.Load())
	_, err = run.Phase(t.Context(), "plan", nil)
	require.ErrorIs(t, err, publisher.ErrEncrypted)
}
