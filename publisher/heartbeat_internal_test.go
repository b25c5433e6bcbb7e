package publisher

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestHand_RunTakenOverTwice_IsHeldUntilBothAreDone(t *testing.T) {
	t.Parallel()
	var l hand
	alone, first := l.begin("r1")
	require.True(t, alone)
	alone, second := l.begin("r1")
	require.False(t, alone)
	first()
	require.Equal(t, []schema.HeldRun{{Run: "r1"}}, l.held())
	second()
	require.Empty(t, l.held())
	require.NotNil(t, l.held(), "nil means that there are too many to name")
}
