package publisher

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExecutorStates_Triggers_HaveTransitions(t *testing.T) {
	t.Parallel()
	for on := workDone; on <= serverAway; on++ {
		require.Equal(t, on, transitionOn(on).on)
		require.NotEmpty(t, transitionOn(on).when)
	}
	require.Len(t, transitions, int(serverAway))
}
