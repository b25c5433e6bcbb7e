package schema_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// A fold of a large run forgets its oldest messages, before or after a compaction. Every reader sees the same
// compacted content.
func TestForget_CompactedRun_SaysWhatTheCompactionReplaced(t *testing.T) {
	t.Parallel()
	const turns = 6
	for last := int32(1); last <= turns; last++ {
		for through := range last + 1 {
			r := newTestRun(t)
			r.start()
			mustApply(t, r.write(&schema.MessageAddedData{Message: say(schema.RoleSystem, "be brief")}, 0))
			for turn := int32(1); turn <= turns; turn++ {
				mustApply(t, r.write(&schema.TurnStartedData{Turn: turn, Messages: []schema.Message{say(schema.RoleUser, "go on")}}, turn))
				mustApply(t, r.write(asks(turn, pure("a")), turn))
				mustApply(t, r.write(result("a"), turn))
				if turn%2 == 0 {
					mustApply(t, r.write(&schema.MessageAddedData{Message: say(schema.RoleUser, "between")}, 0))
				}
				if turn == last {
					mustApply(t, r.write(&schema.ContextCompactedData{Summary: "so far", ThroughTurn: through}, 0))
				}
			}
			whole := r.state.View()
			require.NotNil(t, whole.Compacted)
			for when := range r.log {
				for place := 0; ; place++ {
					s, found := forgetting(r, place, when)
					if !found {
						break
					}
					v := s.View()
					require.NotNil(t, v.Older)
					require.Equal(t, whole.Compacted, v.Compacted, "through %d behind turn %d, place %d forgotten at record %d", through, last, place, when)
				}
			}
		}
	}
}

// forgetting folds a run into a state. At the record with index when it forgets everything before the first place, and then
// before the place with the given number. found is false if there is no such place yet.
func forgetting(r *testRun, place, when int) (s *schema.State, found bool) {
	s = schema.NewState("f", "r1")
	var places []schema.Place
	for i := range r.log {
		if _, at, begins := s.ApplyAt(r.keys, &r.log[i]); begins {
			places = append(places, at)
		}
		if i != when {
			continue
		}
		if place >= len(places) {
			return nil, false
		}
		s.Forget(places[0])
		if place > 0 {
			s.Forget(places[place])
		}
	}
	return s, true
}
