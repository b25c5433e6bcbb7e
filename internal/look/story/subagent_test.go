package story_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/story"
)

func TestSubAgent_SourceOfACall_IsRead(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"": "", "[]": "", `{"agent_id":1}`: "", `{"agent_type":"Explore"}`: "",
		`{"agent_id":"a1"}`: "sub-agent a1", `{"agent_id":"a1","agent_type":"Explore"}`: "sub-agent Explore a1",
	} {
		require.Equal(t, want, story.SubAgent([]byte(source)), source)
	}
}
