package story_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/schema"
)

func TestClaimingText_DaemonCannotKnow_DoesNotSayNone(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		reply schema.ExecutorsReply
		text  string
		none  bool
	}{
		"alive":        {schema.ExecutorsReply{Claiming: map[string]int{"coder": 2}, Unsaid: 1}, "2 executors of coder alive", false},
		"none":         {schema.ExecutorsReply{Claiming: map[string]int{"coder": 0}}, "no executor of coder is alive", true},
		"not heard":    {schema.ExecutorsReply{}, "", false},
		"not asked":    {schema.ExecutorsReply{Claiming: map[string]int{"writer": 1}}, "", false},
		"one unsaid":   {schema.ExecutorsReply{Claiming: map[string]int{"coder": 0}, Unsaid: 1}, "unknown whether an executor of coder is alive: 1 executor does not say which agents it claims", false},
		"many unsaid":  {schema.ExecutorsReply{Claiming: map[string]int{"coder": 0}, Unsaid: 2}, "unknown whether an executor of coder is alive: 2 executors do not say which agents they claim", false},
		"unsaid alone": {schema.ExecutorsReply{Claiming: map[string]int{}, Unsaid: 1}, "", false},
	} {
		text, none := story.ClaimingText(&test.reply, "coder")
		require.Equal(t, test.text, text, name)
		require.Equal(t, test.none, none, name)
	}
}
