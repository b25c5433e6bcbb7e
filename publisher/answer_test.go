package publisher_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// TestAnAnswerIsRecordedWithAllItsCallsOrNotAtAll: whoever goes on with a turn that has its answer takes the recorded
// calls for all that the model asked for.
func TestAnAnswerIsRecordedWithAllItsCallsOrNotAtAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	turn := openTurn(t, start(t, w.fleet(), "r1"))
	keys, err := turn.Answer(t.Context(), assistant(schema.CallPart("c1", "read"), schema.CallPart("c2", "mail")),
		publisher.ToolCall{ID: "c1", Name: "read"}, publisher.ToolCall{ID: "c2", Name: "mail"})
	require.NoError(t, err)
	require.Len(t, keys, 2)
	require.Equal(t, 3, w.batched(), "the text and both calls are one atomic batch, on one replica, too")
}
