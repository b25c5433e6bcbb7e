package publisher

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every stage and every event: what the table may never say.
func TestCallStages_EveryStageAndEvent_KeepTheRules(t *testing.T) {
	for from := range callStage(callStages) {
		for on := range callEvent(callEvents) {
			to := from.after(on)
			name := fmt.Sprintf("stage %d, event %d, to %d", from, on, to)
			require.False(t, !from.open() && to.open(), "%s: a closed call is opened", name)
			require.False(t, to == callRunning && from != callRunning && on != callBegins, "%s: a call runs that was not begun", name)
			require.False(t, to == callRan && from != callRan && (from != callRunning || on != callReturns), "%s: an outcome of a tool that did not run", name)
			require.False(t, from == callRan && to.begun() && to != callRan, "%s: a tool runs again whose outcome is known", name)
			require.False(t, from.begun() && to.mine(), "%s: a call that was begun may begin as if it were not", name)
			require.False(t, from.waits() && to == callReady && on != callRecorded && on != callRerun, "%s: nothing keeps the previous executor from beginning it", name)
			require.False(t, from == callHanded && to != callHanded, "%s: an outcome is given twice", name)
			switch on {
			case callOver, callOverByOther, callSuperseded:
				require.False(t, to.open(), "%s: the record closed it", name)
			case callBegins:
				require.False(t, from.open() && !to.begun(), "%s: it was begun", name)
			case callRerun:
				require.False(t, from.open() && to.waits(), "%s: the log refuses the epoch before", name)
			case callTakenOver, callRecorded, callAllowed, callRerunByOther, callReturns, callDelivered:
			}
			require.Equal(t, to, to.after(on), "%s: the same event again", name)
		}
	}
}

// From an unknown call every stage is reached, and the next request for its id can get another call.
func TestCallStages_FromUnknown_AllReachedAndAllEnd(t *testing.T) {
	seen := map[callStage]bool{callUnknown: true}
	for queue := []callStage{callUnknown}; len(queue) > 0; queue = queue[1:] {
		for on := range callEvent(callEvents) {
			if to := queue[0].after(on); !seen[to] {
				seen[to] = true
				queue = append(queue, to)
			}
		}
	}
	require.Len(t, seen, callStages)
	for from := range callStage(callStages) {
		require.Equal(t, callHanded, from.after(callOverByOther).after(callDelivered), "from stage %d", from)
	}
}

// Every stage and every event: what the table may never say.
func TestHandleStages_EveryStageAndEvent_KeepTheRules(t *testing.T) {
	ended := func(s handleStage) bool { return s == handleLost || s == handleReleased }
	for from := range handleStage(handleStages) {
		for on := range handleEvent(handleEvents) {
			to := from.after(on)
			name := fmt.Sprintf("stage %d, event %d, to %d", from, on, to)
			require.False(t, ended(from) && to != from, "%s: the first reason stays", name)
			require.False(t, from != handleStarting && to == handleStarting, "%s: a run starts once", name)
			require.False(t, from == handleUnresolved && to == handleUsable && on != handleAnswered, "%s: an event may be stored, and others follow", name)
			switch on {
			case handleGone:
				require.True(t, ended(to), name)
			case handleRelease:
				require.True(t, ended(to), name)
				require.Equal(t, from != handleLost, to == handleReleased, "%s: a run that another process has is not released", name)
			case handleUnanswered:
				require.True(t, to == handleUnresolved || ended(to), name)
			case handleStored, handleAnswered:
				require.Equal(t, ended(from), ended(to), name)
			}
		}
	}
}
