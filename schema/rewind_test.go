package schema_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/internal/modelfold"
	"github.com/waymarkio/waymark/schema"
)

// foldKnowing folds a log with what its head says of rewinds.
func foldKnowing(log []schema.Record) *schema.State {
	head := schema.NewHead("f", "r1")
	for i := range log {
		head.Apply(schema.NoKeys, &log[i])
	}
	s := schema.NewState("f", "r1")
	s.Expect(head.Superseded)
	for i := range log {
		s.Apply(schema.NoKeys, &log[i])
	}
	return s
}

// rewind appends a takeover that goes on behind record n, as the daemon finds it.
func (s *simulation) rewind(n int) {
	head := schema.NewHead("f", "r1")
	for i := range s.log[:n] {
		head.Apply(schema.NoKeys, &s.log[i])
	}
	at := head.Clone()
	later := schema.NewLater(&at)
	for i := range s.log[n:] {
		later.Behind(&head, head.Apply(schema.NoKeys, &s.log[n+i]))
	}
	to := schema.RewindTo(schema.Point{Kind: schema.PointRecord, Number: uint64(n)}, &at, later) //nolint:gosec // a small number
	s.takeoverTo(schema.TakeoverRewind, s.head.Epoch+1, to)
}

// content is what a rewind restores. What is in doubt about calls is left out.
func content(t require.TestingT, s *schema.State) string {
	calls := slices.Clone(s.Calls)
	for i := range calls {
		calls[i].InDoubt, calls[i].Epoch = false, 0
	}
	return string(mustMarshal(t, []any{s.Messages, s.Turns, calls, s.Phases, s.Compactions, s.Waits, s.Artifacts, s.Errors, s.Limits, s.Decisions, s.Values, s.Unknown}))
}

// Behind a rewind the state has the content that it had at the record, and goes on from there; so it does behind a second rewind, also to a
// record that the first one left behind.
func TestRewind_AnyRecordOfAnyLog_RestoresItsContent(t *testing.T) {
	rewound := 0
	rapid.Check(t, func(t *rapid.T) {
		s := drawSimulation(t, 25)
		for range rapid.IntRange(1, 3).Draw(t, "rewinds") {
			if s.head.Digest == "" {
				return
			}
			n := rapid.IntRange(1, len(s.log)).Draw(t, "record")
			before := foldKnowing(s.log[:n])
			if before.Head.Digest == "" {
				continue
			}
			epoch := s.head.Epoch
			s.rewind(n)
			if s.head.Epoch == epoch {
				continue // from elsewhere
			}
			rewound++
			after := foldKnowing(s.log)
			require.False(t, after.Stale)
			require.Equal(t, content(t, before), content(t, after))
			require.Equal(t, before.Head.Turn, after.Head.Turn)
			require.Equal(t, s.head, after.Head)
			for range rapid.IntRange(0, 10).Draw(t, "more") {
				s.step()
			}
			after = foldKnowing(s.log)
			require.False(t, after.Stale)
			requireConsistent(t, after)
			m := modelfold.Fold(schema.NoKeys, "f", "r1", s.log)
			if !m.Beyond {
				require.Empty(t, m.StateDifferences(after))
			}
		}
	})
	require.Positive(t, rewound)
}

// A state that meets a rewind it did not expect says that it is stale.
func TestRewind_FoldedInOnePass_IsStale(t *testing.T) {
	r := newTestRun(t)
	r.start()
	r.write(&schema.MessageAddedData{Message: userMessage("left behind")}, 0)
	to := r.rewindTo(1)
	e := r.makeControl(&schema.RunResumedData{
		Executor: "ex-2", Reason: schema.TakeoverRewind, RequestID: "q", To: to,
		From: schema.From{Epoch: r.head.Epoch, Sequence: r.head.Sequence, Digest: r.head.Digest},
	}, 2)
	require.Equal(t, schema.Applied, r.event(e).Kind)
	require.True(t, r.state.Stale)
	r.foldAgain()
	require.Empty(t, r.state.Messages)
}

// Turns and steps are those that no rewind left behind; records and events are found wherever they are.
func TestFinder_RewoundRun_FindsWhatCounts(t *testing.T) {
	r := newTestRun(t)
	r.start()
	r.write(&schema.TurnAnsweredData{Turn: 1, Message: assistantMessage(schema.Text("left behind")), Calls: []schema.RequestedCall{{ToolCallID: "c1", Name: "old", Replay: schema.ReplayPure}}}, 1)
	r.write(&schema.ToolReturnedData{ToolCallID: "c1"}, 1)
	to := r.rewindTo(1)
	e := r.makeControl(&schema.RunResumedData{
		Executor: "ex-2", Reason: schema.TakeoverRewind, RequestID: "q", To: to,
		From: schema.From{Epoch: r.head.Epoch, Sequence: r.head.Sequence, Digest: r.head.Digest},
	}, 2)
	require.Equal(t, schema.Applied, r.event(e).Kind)
	r.foldAgain()
	r.w = schema.Writer{Fleet: "f", Run: "r1", Executor: "ex-2", Epoch: 2}
	r.write(&schema.TurnAnsweredData{Turn: 1, Message: assistantMessage(schema.Text("counts")), Calls: []schema.RequestedCall{{ToolCallID: "c1", Name: "new", Replay: schema.ReplayPure}}}, 1)
	r.write(&schema.ToolReturnedData{ToolCallID: "c1"}, 1)
	for point, records := range map[string]int64{"step:1": 5, "turn:1": 6, "turn:0": 4, "record:2": 2} {
		p, err := schema.ParsePoint(point)
		require.NoError(t, err)
		require.Equal(t, records, found(t, r.log, p, r.head.Superseded), point)
	}
}

// The step of a call that was requested before the record and begun behind it is at the record: behind the rewind the call is in doubt. A call
// that was not begun is still requested behind the rewind.
func TestFinder_CallBegunInWhatWasLeftBehind_StepIsAtTheRecord(t *testing.T) {
	for begun, records := range map[bool]int64{true: 2, false: 6} {
		r := newTestRun(t)
		r.start()
		r.write(&schema.TurnAnsweredData{Turn: 1, Message: assistantMessage(), Calls: []schema.RequestedCall{{ToolCallID: "c1", Name: "pay"}}}, 1)
		r.write(&schema.StateSetData{Key: "k", Value: []byte("1")}, 1)
		if begun {
			r.write(&schema.ToolCalledData{ToolCallID: "c1", Name: "pay"}, 1)
		} else {
			r.write(&schema.StateSetData{Key: "k", Value: []byte("2")}, 1)
		}
		r.takeover("ex-2")
		e := r.makeControl(&schema.RunResumedData{
			Executor: "ex-3", Reason: schema.TakeoverRewind, RequestID: "q", To: r.rewindTo(2),
			From: schema.From{Epoch: r.head.Epoch, Sequence: r.head.Sequence, Digest: r.head.Digest},
		}, 3)
		require.Equal(t, schema.Applied, r.event(e).Kind)
		require.Equal(t, begun, r.head.OpenCalls[0].InDoubt)
		require.Equal(t, records, found(t, r.log, schema.Point{Kind: schema.PointStep, Number: 1}, r.head.Superseded))
	}
}

// found returns how many records are up to a point.
func found(t *testing.T, log []schema.Record, p schema.Point, superseded []schema.Superseded) int64 {
	t.Helper()
	f := schema.NewFinder(p, superseded)
	head := schema.NewHead("f", "r1")
	ahead := int64(-1)
	for i := range log {
		rec := schema.Prepare(schema.NoKeys, &log[i])
		if f.Before(&head, &rec) {
			ahead = head.Records
		}
		v := head.ApplyPrepared(&rec)
		switch {
		case ahead >= 0 && f.Confirmed(v):
			return ahead
		case f.Behind(&head, v):
			return head.Records
		}
		if !f.Pending() {
			ahead = -1
		}
	}
	if f.AtEnd(&head) {
		return head.Records
	}
	return -1
}
