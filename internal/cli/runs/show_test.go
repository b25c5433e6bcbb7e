package runs

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/story"
)

// The text of a failure is what a person looks for: no width of a terminal cuts it.
func TestShow_LongFailure_IsWhole(t *testing.T) {
	t.Parallel()
	page := storyPage{width: 80, most: 80, what: 8}
	long := strings.Repeat("the door is closed ", 10) + "END"
	require.True(t, strings.HasSuffix(page.line(&story.Beat{Kind: story.KindCall, What: "open", Detail: "failed: " + long}), "END"))
	require.True(t, strings.HasSuffix(page.line(&story.Beat{Kind: story.KindCall, What: "open", Detail: long}), "…"))
}
