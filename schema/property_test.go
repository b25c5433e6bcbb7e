package schema_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/internal/harness/randomlog"
	"github.com/waymarkio/waymark/internal/harness/referencefold"
	"github.com/waymarkio/waymark/schema"
)

// verdictOf is the part of a verdict that two folds must agree on.
type verdictOf struct {
	Kind   schema.VerdictKind
	Reason schema.Reason
	Detail string
	Call   schema.CallKey
}

func brief(v schema.Verdict) verdictOf { return verdictOf{v.Kind, v.Reason, v.Detail, v.Call} }

func TestFold_StoredPrefixAndTail_EqualsWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := drawLog(t, 40)
		whole := schema.NewHead("f", "r1")
		verdicts := make([]verdictOf, len(log))
		prefixes := make([][]byte, 0, len(log))
		for i := range log {
			verdicts[i] = brief(whole.Apply(schema.NoKeys, &log[i]))
			stored, err := schema.EncodeCheckpoint(&schema.Checkpoint{Head: whole})
			require.NoError(t, err)
			require.Less(t, len(stored), schema.MaxCheckpoint)
			prefixes = append(prefixes, stored)
		}
		for cut, stored := range prefixes {
			c, err := schema.DecodeCheckpoint(stored)
			require.NoError(t, err)
			head := c.Head
			for i := cut + 1; i < len(log); i++ {
				require.Equal(t, verdicts[i], brief(head.Apply(schema.NoKeys, &log[i])), "record %d after cut %d", i, cut)
			}
			require.Equal(t, whole, head, "cut after record %d", cut)
		}
	})
}

func TestFold_StateJSONRoundTrip_ContinuesEqually(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := drawLog(t, 40)
		whole := schema.NewState("f", "r1")
		head := schema.NewHead("f", "r1")
		cut := rapid.IntRange(0, len(log)).Draw(t, "cut")
		var stored []byte
		for i := range log {
			if i == cut {
				stored = mustMarshal(t, whole)
			}
			v, hv := whole.Apply(schema.NoKeys, &log[i]), head.Apply(schema.NoKeys, &log[i])
			require.Equal(t, brief(hv), brief(v))
			require.Equal(t, head, whole.Head, "State.Head after record %d", i)
			requireConsistent(t, whole)
		}
		if stored == nil {
			stored = mustMarshal(t, whole)
		}
		resumed := new(schema.State)
		require.NoError(t, json.Unmarshal(stored, resumed))
		for i := cut; i < len(log); i++ {
			resumed.Apply(schema.NoKeys, &log[i])
		}
		require.Equal(t, string(mustMarshal(t, whole)), string(mustMarshal(t, resumed)))
		require.NotPanics(t, func() { whole.Conversation() })
	})
}

func mustMarshal(t require.TestingT, v any) []byte {
	b, err := json.Marshal(v, json.Deterministic(true))
	require.NoError(t, err)
	return b
}

// requireConsistent checks that a state's lists match its head's counts.
func requireConsistent(t require.TestingT, s *schema.State) {
	c := &s.Head.Counts
	require.Equal(t, int64(len(s.Messages)), c.Messages, "messages")
	require.Equal(t, int64(len(s.Turns)), c.Turns, "turns")
	require.Equal(t, int64(len(s.Calls)), c.ToolCalls, "calls")
	require.Equal(t, int64(len(s.Takeovers)), c.Resumes, "takeovers")
	require.Equal(t, int64(len(s.Errors)), c.Errors, "errors")
	require.Equal(t, int64(len(s.Artifacts)), c.Artifacts, "artifacts")
	require.Equal(t, int64(len(s.Compactions)), c.Compactions, "compactions")
	require.Equal(t, int64(len(s.Unknown)), c.Unknown, "unknown")
	var open []schema.CallKey
	settled := 0
	for i := range s.Calls {
		call := &s.Calls[i]
		settled += len(call.Settlements)
		require.Same(t, call, s.Call(call.CallKey), "call keys are unique")
		if call.Outcome == schema.OutcomeOpen {
			open = append(open, call.CallKey)
		} else {
			require.False(t, call.InDoubt, "a closed call is not in doubt")
		}
	}
	require.Equal(t, int64(settled), c.Settled, "settlements")
	var headOpen []schema.CallKey
	for _, o := range s.Head.OpenCalls {
		headOpen = append(headOpen, o.CallKey)
		call := s.Call(o.CallKey)
		require.NotNil(t, call)
		require.Equal(t, call.InDoubt, o.State.InDoubt())
		require.Equal(t, call.Late != nil, o.State == schema.CallLate)
		require.Equal(t, call.Epoch, o.Epoch)
	}
	require.Equal(t, open, headOpen, "open calls, in the order they were recorded")
	if s.Head.TurnOpen {
		require.NotEmpty(t, s.Turns)
		last := s.Turns[len(s.Turns)-1]
		require.Equal(t, s.Head.Turn, last.Turn)
		require.Empty(t, last.EndedAt)
	}
	for _, comp := range s.Compactions {
		require.LessOrEqual(t, comp.At, len(s.Messages))
	}
	require.Equal(t, s.Head.Status.Terminal(), s.Ended != nil, "ended")
}

func TestFold_Replays_ChangeNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := drawLog(t, 30)
		s := schema.NewState("f", "r1")
		for i := range log {
			s.Apply(schema.NoKeys, &log[i])
		}
		before := mustMarshal(t, s)
		for i := range log {
			require.Equal(t, schema.Replayed, s.Apply(schema.NoKeys, &log[i]).Kind)
		}
		require.Equal(t, string(before), string(mustMarshal(t, s)))
	})
}

func TestHead_Clone_SharesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := drawLog(t, 30)
		h := schema.NewHead("f", "r1")
		cut := rapid.IntRange(0, len(log)).Draw(t, "cut")
		var clone schema.Head
		var before []byte
		for i := range log {
			if i == cut {
				clone = h.Clone()
				require.Equal(t, h, clone)
				before = mustMarshal(t, clone)
			}
			h.Apply(schema.NoKeys, &log[i])
		}
		if before != nil {
			require.Equal(t, string(before), string(mustMarshal(t, clone)))
		}
	})
}

// fill gives each value that can be reached from v a value of its own that is not zero.
func fill(v reflect.Value, n *int64) {
	*n++
	switch {
	case v.Type() == reflect.TypeFor[jsontext.Value]():
		v.SetBytes(fmt.Appendf(nil, `{"m%d":%d}`, *n, *n))
	case v.Kind() == reflect.Struct:
		for _, field := range v.Fields() {
			fill(field, n)
		}
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 4)) // with room: an append to a shared array must show
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case v.Kind() == reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, n)
		fill(value, n)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case v.Kind() == reflect.String:
		v.SetString(fmt.Sprint("text ", *n))
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	case v.CanInt():
		v.SetInt(*n % 100)
	default:
		v.SetUint(uint64(*n % 100)) //nolint:gosec // small; panics on a kind that no head has yet
	}
}

// wreck clears, in place, everything that v holds by reference: the entries of lists and maps, and what pointers point
// to. JSON texts are replaced, never changed, so they may be shared as strings are.
func wreck(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for _, field := range v.Fields() {
			wreck(field)
		}
	case reflect.Pointer:
		if v.Type() != reflect.TypeFor[*schema.Removal]() { // its list of keys is read once and never changed
			wreck(v.Elem())
		}
		v.Elem().SetZero()
	case reflect.Slice:
		for i := 0; i < v.Len() && v.Type() != reflect.TypeFor[jsontext.Value](); i++ {
			wreck(v.Index(i))
			v.Index(i).SetZero()
		}
	case reflect.Map:
		v.Clear()
	default: // a value of its own
	}
}

// filledHead is a head without a field that is zero.
func filledHead() schema.Head {
	var h schema.Head
	fill(reflect.ValueOf(&h).Elem(), new(int64))
	return h
}

func TestHead_CloneOfEachField_IsChangedAlone(t *testing.T) {
	t.Parallel()
	h, want := filledHead(), filledHead()
	clone := h.Clone()
	require.Equal(t, want, clone)
	for field, v := range reflect.ValueOf(&clone).Elem().Fields() {
		wreck(v)
		is, was := reflect.ValueOf(h).FieldByIndex(field.Index), reflect.ValueOf(want).FieldByIndex(field.Index)
		require.Equal(t, was.Interface(), is.Interface(), "Head.Clone shares %s with the original: clone it there", field.Name)
	}
}

func TestBaseOf_EachFieldOfTheHead_IsTakenOverOrCleared(t *testing.T) {
	t.Parallel()
	cleared := strings.Fields("Handoff Handoffs Signals Marks Forks Gaps Superseded Window Requests")
	takenOver := strings.Fields(`Fleet Run Agent Executor Instance ModelTier Priority Build Task ThreadID Parent ResumedFrom Base Labels KeyIDs Status Unattended
		Stalled Implicit Epoch Sequence Position Digest RequestID Turn TurnOpen TurnAnswered TurnPurpose TurnEpoch TurnMessages MaxTurns MaxTokens
		CompletionTool Phase CompletedPhases OpenCalls TurnCalls Interrupts CancelRequested CancelPosition Paused LastError Counts Usage Erased Records
		SizeWarning Summary Limit LimitTurn CompletedBy StartedAt UpdatedAt EndedAt`)
	h := filledHead()
	base := reflect.ValueOf(schema.BaseOf(schema.Point{}, 8, &h).Head)
	for field, was := range reflect.ValueOf(h).Fields() {
		is := base.FieldByIndex(field.Index)
		switch {
		case slices.Contains(cleared, field.Name):
			require.True(t, is.IsZero(), "BaseOf takes over %s", field.Name)
		case slices.Contains(takenOver, field.Name):
			require.Equal(t, was.Interface(), is.Interface(), "BaseOf does not take over %s", field.Name)
		default:
			require.Fail(t, "a field of the head without a decision", "does a fork take over %s? Decide in BaseOf, and name it in this test", field.Name)
		}
	}
}

func TestFold_BodyReused_NoEffect(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := drawLog(t, 30)
		a, b := schema.NewState("f", "r1"), schema.NewState("f", "r1")
		for i := range log {
			a.Apply(schema.NoKeys, &log[i])
			rec := log[i]
			rec.Body = append([]byte(nil), rec.Body...)
			b.Apply(schema.NoKeys, &rec)
			clear(rec.Body) // a reader that re-uses its buffer
		}
		require.Equal(t, string(mustMarshal(t, a)), string(mustMarshal(t, b)))
	})
}

func TestFold_RandomLog_EqualsReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := drawLog(t, 50)
		s := schema.NewState("f", "r1")
		m := referencefold.New("f", "r1")
		for i := range log {
			v := s.Apply(schema.NoKeys, &log[i])
			kind := m.Apply(schema.NoKeys, &log[i])
			require.Equal(t, kind, v.Kind, "record %d: %s %s", i, v.Reason, v.Detail)
			require.Empty(t, m.StateDifferences(s), "after record %d", i)
			for _, c := range s.Head.OpenCalls {
				require.True(t, c.State.Requested() || c.State == schema.CallBegun || c.State.InDoubt(), "%+v", c)
			}
		}
	})
}

// Control events are signed correctly, incorrectly, by other keys and for other places.
func TestModel_FleetWithKeys_AgreesWithTheFold(t *testing.T) {
	t.Parallel()
	seen := map[schema.Reason]int{}
	for range 50 { // -short draws few logs: repeat until both reasons occurred
		agreesWithKeys(t, seen)
		if seen[schema.ReasonUnsigned] > 0 && seen[schema.ReasonMisplaced] > 0 {
			break
		}
	}
	require.Positive(t, seen[schema.ReasonUnsigned], "no log has an event that is not signed as it must be")
	require.Positive(t, seen[schema.ReasonMisplaced], "no log has an event that was signed for another place")
}

// agreesWithKeys counts the reasons of refusals in seen.
func agreesWithKeys(t *testing.T, seen map[schema.Reason]int) {
	t.Helper()
	rapid.Check(t, func(t *rapid.T) {
		begin := int64(1_700_000_000 + rapid.IntRange(0, 20).Draw(t, "since"))
		keys := keysOf(t,
			schema.Key{Name: signers[0].name, Public: signers[0].public, Since: begin * 1e9},
			schema.Key{Name: signers[1].name, Public: signers[1].public, Since: (begin + 5) * 1e9, Until: (begin + 20) * 1e9})
		log := drawKeyed(t, 50, keys).Records
		s := schema.NewState("f", "r1")
		m := referencefold.New("f", "r1")
		for i := range log {
			v := s.Apply(keys, &log[i])
			kind := m.Apply(keys, &log[i])
			require.Equal(t, kind, v.Kind, "record %d: %s %s", i, v.Reason, v.Detail)
			require.Empty(t, m.StateDifferences(s), "after record %d", i)
			seen[v.Reason]++
		}
	})
}

func TestFold_Fork_EqualsReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := drawLog(t, 30)
		base := schema.NewHead("f", "r1")
		for i := range log {
			base.Apply(schema.NoKeys, &log[i])
		}
		if base.Status == "" {
			return // nothing to fork
		}
		fork := randomlog.Begin(t, randomlog.Config{Run: "r2"}, &schema.RunStartedData{
			Agent: "a", Executor: "ex-1", Base: schema.BaseOf(schema.Point{}, int64(len(log)), &base),
		})
		for range rapid.IntRange(0, 20).Draw(t, "steps") {
			fork.Step()
		}
		h, m := schema.NewHead("f", "r2"), referencefold.New("f", "r2")
		for i := range fork.Records {
			v, kind := h.Apply(schema.NoKeys, &fork.Records[i]), m.Apply(schema.NoKeys, &fork.Records[i])
			require.Equal(t, kind, v.Kind, "record %d: %s %s", i, v.Reason, v.Detail)
			require.Empty(t, m.Differences(&h), "after record %d", i)
		}
	})
}

// This keeps the other tests of this file honest: a rule that no random log reaches would never be compared.
func TestRandomLogs_Coverage_Reached(t *testing.T) {
	seen := map[string]int{}
	logs := rapid.Custom(func(t *rapid.T) []schema.Record { return drawLog(t, 50) })
	for seed := range 500 {
		h := schema.NewHead("f", "r1")
		for _, rec := range logs.Example(seed) {
			before := h.Clone()
			v := h.Apply(schema.NoKeys, &rec)
			note := func(what string, is bool) {
				if is {
					seen[what]++
				}
			}
			note("waits without an executor", h.Unattended != "")
			note("becomes claimable by an answer", before.Unattended != "" && h.Status.Claimable() && len(h.Interrupts) == 0)
			note("becomes claimable by a cancellation", before.Unattended != "" && h.Status.Claimable() && len(h.Interrupts) > 0)
			note("comes back by itself", before.Status.Claimable() && !h.Status.Claimable() && h.Epoch == before.Epoch)
			note("two claims without progress", h.Stalled >= 2)
			note("progress", before.Stalled > 0 && h.Stalled == 0 && h.Epoch == before.Epoch)
			for i := range h.OpenCalls {
				c := &h.OpenCalls[i]
				note("requested over a takeover", c.State.Requested() && h.Epoch > before.Epoch && before.Epoch > 0)
				note("requested again", i < len(before.OpenCalls) && before.OpenCalls[i].CallKey == c.CallKey && before.OpenCalls[i].State.InDoubt() && c.State.Requested())
			}
			note("a requested call is begun", v.Begun)
			note("a requested call is abandoned", len(v.Abandoned) > 0)
			note("a requested call may have run", len(h.OpenCalls) == len(before.OpenCalls) && len(h.InDoubt()) > len(before.InDoubt()) && h.Epoch == before.Epoch)
			note("an answer is over", v.Over && h.TurnAnswered)
			for _, o := range h.Interrupts {
				note("waits for a settlement", o.Reason == schema.WaitToolInDoubt)
			}
			note("a settlement ends the waiting", before.Counts.Settled < h.Counts.Settled && len(h.Interrupts) < len(before.Interrupts))
			for _, o := range h.Handoffs {
				note("hand-off "+o.Status, true)
			}
		}
	}
	t.Log(seen)
	for _, what := range []string{
		"waits without an executor", "becomes claimable by an answer", "becomes claimable by a cancellation", "comes back by itself",
		"two claims without progress", "progress", "requested again", "waits for a settlement",
		"a settlement ends the waiting", "hand-off offered", "hand-off accepted", "requested over a takeover", "a requested call is begun",
		"a requested call is abandoned", "a requested call may have run", "an answer is over",
	} {
		require.Positive(t, seen[what], what)
	}
}

// settled is a copy of a state that can be compared: a history has functions.
func settled(s *schema.State) *schema.State {
	s = s.Clone()
	s.Settle()
	return s
}

func TestFold_Adopt_EqualsApply(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := drawLog(t, 40)
		applied, adopted := schema.NewState("f", "r1"), schema.NewState("f", "r1")
		for i := range log {
			want := applied.Apply(schema.NoKeys, &log[i])
			unplaced := log[i]
			unplaced.Stream = 0
			next := adopted.Head.Clone()
			switch v := next.Apply(schema.NoKeys, &unplaced); want.Kind {
			case schema.Applied, schema.Evidence, schema.Duplicate:
				require.Equal(t, brief(want), brief(v))
				adopted.Adopt(next, v, log[i].Stream)
			default:
				adopted.Apply(schema.NoKeys, &log[i])
			}
			require.Equal(t, settled(applied), settled(adopted), "after record %d", i)
		}
	})
}

// A copy of a state is what the state was, whatever comes to the state; and two copies go on alike, each by itself.
func TestState_Clone_GoesOnByItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := drawLog(t, 40)
		s := schema.NewState("f", "r1")
		cut := rapid.IntRange(0, len(log)).Draw(t, "cut")
		for i := range log[:cut] {
			s.Apply(schema.NoKeys, &log[i])
		}
		before := string(mustMarshal(t, s))
		kept := s.Clone()
		goesOn := func(s *schema.State) string {
			for i := range log[cut:] {
				s.Apply(schema.NoKeys, &log[cut+i])
			}
			return string(mustMarshal(t, s))
		}
		first := kept.Clone()
		want := goesOn(s)
		require.Equal(t, before, string(mustMarshal(t, kept)), "what came to the state is not in its copy")
		require.Equal(t, want, goesOn(first))
		require.Equal(t, want, goesOn(kept.Clone()))
		require.Equal(t, want, string(mustMarshal(t, first)), "nor is what came to a copy in another")
		require.Equal(t, before, string(mustMarshal(t, kept)))
	})
}
