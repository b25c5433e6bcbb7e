package publisher

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every stage and every event: what the table may never say.
func TestHandleStages_EveryStageAndEvent_KeepTheRules(t *testing.T) {
	for from := range handleStage(handleStages) {
		for on := range handleEvent(handleEvents) {
			to := from.after(on)
			name := fmt.Sprintf("stage %d, event %d, to %d", from, on, to)
			require.False(t, from.ended() && to != from, "%s: the first reason stays", name)
			require.False(t, from != handleStarting && to == handleStarting, "%s: a run starts once", name)
			require.False(t, from == handleUnresolved && to == handleUsable && on != handleAnswered, "%s: an event may be stored, and others follow", name)
			switch on {
			case handleGone:
				require.True(t, to.ended(), name)
			case handleRelease:
				require.True(t, to.ended(), name)
				require.Equal(t, from != handleLost, to == handleReleased, "%s: a run that another process has is not released", name)
			case handleUnanswered:
				require.True(t, to == handleUnresolved || to.ended(), name)
			case handleStored, handleAnswered:
				require.Equal(t, from.ended(), to.ended(), name)
			}
		}
	}
}
