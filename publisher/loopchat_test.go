package publisher_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// chats serves chats, one that it takes over or one that it begins.
func chats(t *testing.T, f *publisher.Fleet) *served {
	t.Helper()
	return serveRuns(t, f, nil, func(spec *publisher.ExecutorSpec) {
		spec.WaitDetached = true
		spec.Loops = map[string]publisher.Loop{"coder": {Model: new(scripted).model, Chat: true}}
	})
}

// The executor dies behind each event of two turns: the next one answers what has no answer, and the run waits.
func TestLoop_ChatEachCrash_EachMessageAnsweredOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	s := chats(t, w.fleet())
	begin(t, s, "r1")
	require.Equal(t, publisher.OutcomeWaiting, s.outcome(t, "r1").outcome)
	signalTo(t, w.fleet(named("ann")), "s1", `"again"`)
	f := w.fleet(named("exec-2"))
	second := chats(t, f)
	require.NoError(t, second.Adopt(resume(t, f, "r1")))
	require.Equal(t, publisher.OutcomeWaiting, second.outcome(t, "r1").outcome)
	whole, log := w.fold("r1"), w.log("r1")
	require.Len(t, whole.Conversation(), 3)
	require.Equal(t, []string{
		"run.started", "turn.answered", "run.waiting", "run.interrupted",
		"signal.sent", "run.resumed", "turn.started", "turn.answered", "run.waiting", "run.interrupted",
	}, names(log))
	for step := range log {
		after := newWorld(t)
		after.daemon()
		for i := range log[:step+1] {
			e, err := schema.Decode(log[i].Header, log[i].Body)
			require.NoError(t, err)
			after.put(e)
		}
		f := after.fleet(named("exec-3"))
		third := chats(t, f)
		signalTo(t, after.fleet(named("ann")), "s1", `"again"`) // of most steps a repeat
		require.NoError(t, third.Adopt(resume(t, f, "r1")))
		require.Equal(t, publisher.OutcomeWaiting, third.outcome(t, "r1").outcome, "behind %s", names(log)[step])
		got := after.fold("r1")
		require.Equal(t, schema.StatusWaiting, got.Head.Status)
		require.Empty(t, got.Head.Signals)
		require.Equal(t, spoken(whole), spoken(got), "each message once")
		conversation := got.Conversation()
		require.Equal(t, schema.RoleAssistant, conversation[len(conversation)-1].Role)
	}
}

// spoken are the messages of the role user.
func spoken(s *schema.State) (texts []string) {
	for _, m := range s.Conversation() {
		if m.Role == schema.RoleUser {
			texts = append(texts, *m.Parts[0].Content)
		}
	}
	return texts
}
