package service_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// A client that publishes a message with the id of the daemon's next event makes the server drop that event as a
// duplicate.
func TestTakeover_IDsOfItsEvents_TellNothingOfTheNext(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.aRun("run-1", 1, 10)
	seen := map[string]bool{}
	for _, request := range []string{"q1", "q2", "q3"} {
		_, err := w.ask(schema.VerbRecover, "run-1", takeover("executor-"+request, request))
		require.NoError(t, err)
		reply, _ := w.get("run-1", schema.ViewHead)
		_, random, found := strings.Cut(reply.Head.Position.ID, ".c.")
		require.True(t, found, reply.Head.Position.ID)
		require.Len(t, random, 26)
		require.False(t, seen[random[:6]], "the ids of one process have a beginning of their own: %s", random)
		seen[random[:6]] = true
	}
}
