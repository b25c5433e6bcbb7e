package schema_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/internal/harness/randomlog"
	"github.com/waymarkio/waymark/internal/harness/referencefold"
	"github.com/waymarkio/waymark/schema"
)

// folded folds a log.
func folded(log []schema.Record) *schema.State {
	s := schema.NewState("f", "r1")
	for i := range log {
		s.Apply(schema.NoKeys, &log[i])
	}
	return s
}

// rewindLog appends a takeover that continues after record n, like the daemon's.
func rewindLog(s *randomlog.Log, n int) {
	head := schema.NewHead("f", "r1")
	for i := range s.Records[:n] {
		head.Apply(schema.NoKeys, &s.Records[i])
	}
	at := head.Clone()
	var later []schema.OpenSignal
	for i := range s.Records[n:] {
		later = append(later, schema.SentSignal(&head, head.Apply(schema.NoKeys, &s.Records[n+i]))...)
	}
	to, err := schema.RewindTo(schema.Point{Kind: schema.PointRecord, Number: uint64(n)}, &at, later) //nolint:gosec // a small number
	if err != nil {
		return // too many signals
	}
	s.Rewind(to)
}

// content is the content that a rewind restores, without which calls are in doubt.
func content(t require.TestingT, s *schema.State) string {
	calls := slices.Clone(s.Calls)
	for i := range calls {
		calls[i].InDoubt, calls[i].Epoch = false, 0
	}
	return string(mustMarshal(t, []any{s.Messages, s.Turns, calls, s.Phases, s.Compactions, s.Waits, s.Artifacts, s.Errors, s.Limits, s.Decisions, s.Values, s.Unknown}))
}

// After a rewind the state has the content that it had at the record, and continues from there. The same holds after
// a second rewind, also to a record that the first one abandoned.
func TestRewind_AnyRecordOfAnyLog_RestoresItsContent(t *testing.T) {
	rewound := 0
	rapid.Check(t, func(t *rapid.T) {
		s := drawKeyed(t, 25, nil)
		for range rapid.IntRange(1, 3).Draw(t, "rewinds") {
			if s.Head.Digest == "" {
				return
			}
			n := rapid.IntRange(1, len(s.Records)).Draw(t, "record")
			before := folded(s.Records[:n])
			if before.Head.Digest == "" {
				continue
			}
			epoch := s.Head.Epoch
			rewindLog(s, n)
			if s.Head.Epoch == epoch {
				continue // from elsewhere
			}
			rewound++
			after := folded(s.Records)
			require.Equal(t, content(t, before), content(t, after))
			require.Equal(t, before.Head.Turn, after.Head.Turn)
			require.Equal(t, before.Head.Limit, after.Head.Limit)
			require.Equal(t, s.Head, after.Head)
			for range rapid.IntRange(0, 10).Draw(t, "more") {
				s.Step()
			}
			after = folded(s.Records)
			requireConsistent(t, after)
			m := referencefold.Fold(schema.NoKeys, "f", "r1", s.Records)
			if !m.Beyond {
				require.Empty(t, m.StateDifferences(after))
			}
		}
	})
	require.Positive(t, rewound)
}

// Each rewind leads to a record of an earlier one's abandoned range: the work for all of them grows with their number,
// not with the number of ways through them.
func TestRewind_ManyIntoAbandonedRecords_EachRestoresItsContent(t *testing.T) {
	r := newTestRun(t)
	r.start()
	const messages = 40
	for i := range messages {
		r.write(&schema.MessageAddedData{Message: userMessage(strconv.Itoa(i))}, 0)
	}
	for n := 2; n <= messages; n++ {
		to := r.rewindTo(n)
		e := r.makeControl(&schema.RunResumedData{
			Executor: "ex-2", Reason: schema.TakeoverRewind, RequestID: "q", To: to,
			From: schema.From{Epoch: r.head.Epoch, Sequence: r.head.Sequence, Digest: r.head.Digest},
		}, r.head.Epoch+1)
		require.Equal(t, schema.Applied, r.event(e).Kind)
		require.Len(t, r.state.Messages, n-1)
		require.Equal(t, strconv.Itoa(n-2), *r.state.Messages[n-2].Parts[0].Content)
	}
}

// A clone and its original are rewound independently of each other.
func TestState_CloneRewound_OriginalIsUnchanged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawKeyed(t, 25, nil)
		if s.Head.Digest == "" {
			return
		}
		state := folded(s.Records)
		before := content(t, state)
		n := rapid.IntRange(1, len(s.Records)).Draw(t, "record")
		if head := folded(s.Records[:n]).Head; head.Digest == "" {
			return // no event counts up to there
		}
		rewindLog(s, n)
		for range rapid.IntRange(0, 10).Draw(t, "more") {
			s.Step()
		}
		clone := state.Clone()
		for i := range s.Records {
			clone.Apply(schema.NoKeys, &s.Records[i])
		}
		require.Equal(t, before, content(t, state))
		for i := range s.Records {
			state.Apply(schema.NoKeys, &s.Records[i])
		}
		require.Equal(t, content(t, clone), content(t, state))
	})
}

// Turns and results are found among the records that no rewind abandoned; records and events are found anywhere.
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
	r.w = schema.Writer{Fleet: "f", Run: "r1", Executor: "ex-2", Epoch: 2}
	r.write(&schema.TurnAnsweredData{Turn: 1, Message: assistantMessage(schema.Text("counts")), Calls: []schema.RequestedCall{{ToolCallID: "c1", Name: "new", Replay: schema.ReplayPure}}}, 1)
	r.write(&schema.ToolReturnedData{ToolCallID: "c1"}, 1)
	for point, records := range map[string]int64{"result:1": 6, "turn:1": 6, "turn:0": 4, "record:2": 2} {
		p, err := schema.ParsePoint(point)
		require.NoError(t, err)
		require.Equal(t, records, found(t, r.log, p, r.head.Superseded), point)
	}
}

func TestFinder_Result_IsBehindTheOutcomeOfTheCall(t *testing.T) {
	r := newTestRun(t)
	r.start()
	mustApply(t, r.write(answerOf(1, schema.RequestedCall{ToolCallID: "a", Name: "n", Replay: schema.ReplayPure},
		schema.RequestedCall{ToolCallID: "b", Name: "n", Replay: schema.ReplayPure}), 1)) // records 1 and 2
	mustApply(t, r.write(&schema.ToolReturnedData{ToolCallID: "b", Result: []byte(`1`)}, 1))
	mustApply(t, r.write(&schema.ToolReturnedData{ToolCallID: "a", Result: []byte(`2`)}, 1))
	mustApply(t, r.write(&schema.ToolCalledData{ToolCallID: "c", Name: "n"}, 2))
	at := func(n uint64) int64 {
		return found(t, r.log, schema.Point{Kind: schema.PointResult, Number: n}, r.head.Superseded)
	}
	require.Equal(t, int64(4), at(1), "the first call returned last")
	require.Equal(t, int64(3), at(2))
	require.Equal(t, int64(-1), at(3), "it has no outcome")
	mustApply(t, r.write(&schema.ToolFailedData{ToolCallID: "c", Error: schema.Error{Type: "t", Message: "m"}}, 2))
	require.Equal(t, int64(6), at(3))
	r.rewind(4)
	require.Equal(t, int64(4), at(1))
	require.Equal(t, int64(-1), at(3), "it was left behind")
}

// found returns the number of records up to a point.
func found(t *testing.T, log []schema.Record, p schema.Point, superseded []schema.Superseded) int64 {
	t.Helper()
	f := schema.NewFinder(p, superseded)
	head := schema.NewHead("f", "r1")
	var ahead int64
	for i := range log {
		rec := schema.Prepare(schema.NoKeys, &log[i])
		if ahead = -1; f.Before(&head) {
			ahead = head.Records
		}
		v := head.ApplyPrepared(&rec)
		switch {
		case ahead >= 0 && f.Confirmed(v):
			return ahead
		case f.Behind(&head, v):
			return head.Records
		}
	}
	if f.AtEnd(&head) {
		return head.Records
	}
	return -1
}

// rewind takes the run over after record n, like the daemon, and returns where it continues.
func (r *testRun) rewind(n int) *schema.Base {
	r.tb.Helper()
	to := r.rewindTo(n)
	v := r.rewound(to)
	require.Equal(r.tb, schema.Applied, v.Kind, v.Detail)
	return to
}

// rewound appends a rewind to a base.
func (r *testRun) rewound(to *schema.Base) schema.Verdict {
	r.tb.Helper()
	executor := fmt.Sprintf("ex-%d", r.head.Epoch+1)
	v := r.event(r.makeControl(&schema.RunResumedData{
		Executor: executor, Reason: schema.TakeoverRewind, RequestID: "q", To: to,
		From: schema.From{Epoch: r.head.Epoch, Sequence: r.head.Sequence, Digest: r.head.Digest},
	}, r.head.Epoch+1))
	if v.Kind == schema.Applied {
		r.w = schema.Writer{Fleet: "f", Run: "r1", Executor: executor, Epoch: r.head.Epoch}
	}
	return v
}

// A requested call that needs a begin belongs to the timeline that requested it: in a fork and after a rewind it is in
// doubt, whether the run began it later, abandoned it, was denied it, or did nothing with it.
func TestRequestedCall_ForkOrRewind_NeedsASettlementUnlessRerunnable(t *testing.T) {
	for name, later := range map[string]func(*testRun){
		"nothing":   func(*testRun) {},
		"abandoned": func(r *testRun) { r.write(&schema.TurnStartedData{Turn: 2}, 2) },
		"denied": func(r *testRun) {
			r.write(&schema.ToolFailedData{ToolCallID: "c1", Error: schema.Error{Type: schema.DeniedType}}, 1)
		},
		"begun": func(r *testRun) {
			require.Equal(r.tb, schema.Applied, r.write(&schema.ToolCalledData{ToolCallID: "c1", Name: "pay", Replay: schema.ReplayHold}, 1).Kind)
		},
	} {
		for _, replay := range []schema.Replay{schema.ReplayPure, schema.ReplayIdempotent, schema.ReplayVerify, schema.ReplayHold} {
			t.Run(name+" "+string(replay), func(t *testing.T) {
				r := newTestRun(t)
				r.start()
				mustApply(t, r.write(answerOf(1, schema.RequestedCall{ToolCallID: "c1", Name: "pay", Replay: replay, VerifySubject: "pay.verify"}), 1))
				at := r.head.Clone()
				later(r)
				r.rewind(2)
				fork := forkOf(t, schema.BaseOf(schema.Point{Kind: schema.PointRecord, Number: 2}, 2, &at))
				doubt := !replay.Rerunnable()
				require.Equal(t, doubt, r.state.Calls[0].InDoubt)
				for name, r := range map[string]*testRun{"fork": fork, "rewind": r} {
					require.Len(t, r.head.OpenCalls, 1, name)
					o := r.head.OpenCalls[0]
					require.Equal(t, replay, o.Replay, name)
					want := map[schema.Replay]schema.CallState{schema.ReplayVerify: schema.CallInDoubt, schema.ReplayHold: schema.CallHeld}
					require.Equal(t, cmp.Or(want[replay], schema.CallRequested), o.State, name)
					// An executor whose own policy is hold does not run it unasked, whatever is recorded.
					v := r.write(&schema.ToolCalledData{ToolCallID: "c1", Name: "pay", Replay: schema.ReplayHold}, 1)
					require.Equal(t, schema.Rejected, v.Kind, name)
				}
			})
		}
	}
}

// A rewind reopens the signals that are open at the record and those sent after it. They may exceed the maximum.
func TestRewindTo_MoreSignalsThanCanBeOpen_IsRefused(t *testing.T) {
	r := newTestRun(t)
	r.start()
	head := r.head.Clone()
	var later []schema.OpenSignal
	for i := range schema.MaxSignals + 1 {
		id := fmt.Sprintf("s%d", i)
		later = append(later, schema.SentSignal(&r.head, r.event(r.makeControl(&schema.SignalSentData{SignalID: id, Name: "n"}, 1)))...)
		r.write(&schema.SignalConsumedData{SignalIDs: []string{id}}, 0)
	}
	_, err := schema.RewindTo(schema.Point{Kind: schema.PointRecord, Number: 1}, &head, later)
	require.ErrorContains(t, err, "65 signals would be open after record 1, at most 64 can be: continue after a later record")
	require.Equal(t, schema.Applied, r.rewound(r.rewindTo(3)).Kind)
	require.Len(t, r.head.Signals, schema.MaxSignals)
}

// What abandoned records used stays in the run's usage, and does not count towards its limit, also after a second rewind
// to a point before or after the first range.
func TestReachedLimit_AfterRewinds_CountsTheTimelineAlone(t *testing.T) {
	r := newTestRun(t)
	r.start()
	limit := func() int64 {
		_, used, _ := r.head.ReachedLimit(0, 1)
		return used
	}
	turn := func(n int32, tokens int64) {
		mustApply(t, r.write(&schema.TurnAnsweredData{Turn: n, Message: assistantMessage(), Usage: &schema.Usage{InputTokens: tokens}}, n))
	}
	require.Equal(t, r.head.StartedAt, r.head.TimelineStart())
	turn(1, 100) // record 2
	turn(2, 20)
	r.rewind(2) // record 4
	require.Equal(t, int64(100), limit())
	turn(2, 3) // record 5
	require.Equal(t, int64(103), limit())
	turn(3, 5000)
	before := r.now()
	r.rewind(5)
	require.Equal(t, int64(103), limit())
	require.Equal(t, schema.FormatTime(before), r.head.TimelineStart())
	r.rewind(1)
	require.Zero(t, limit())
	turn(1, 7)
	require.Equal(t, int64(7), limit())
	require.Equal(t, int64(5130), r.head.Usage.Tokens(), "all of it was used")
}

// A rewind that the fold would refuse is not written: once stored and refused, it would fence the executor and open
// no epoch.
func TestRewindTo_MostRangesInFrontOfTheRecord_IsRefused(t *testing.T) {
	r := newTestRun(t)
	r.start()
	for range schema.MaxRewinds {
		r.rewind(len(r.log))
	}
	require.Len(t, r.head.Superseded, schema.MaxRewinds)
	_, err := schema.RewindTo(schema.Point{Kind: schema.PointRecord, Number: uint64(len(r.log))}, &r.head, nil)
	require.ErrorContains(t, err, "rewinds abandoned 64 ranges before record 65, the maximum: continue after an earlier record")
	r.rewind(2)
	require.Len(t, r.head.Superseded, 2, "the ranges behind the point are left behind themselves")
}

// The fold takes the ranges in a rewind's head unchanged. A range that reaches beyond the run's end hides every later
// event from all readers of the content: each is acknowledged, accepted and counted, but no state, resume or fork has
// it, and the head does not show it.
func TestRewind_RangesOfTheHeadAreAbsurd_IsRefused(t *testing.T) {
	for name, forged := range map[string]schema.Superseded{
		"behind the end": {After: 0, Through: math.MaxInt64},
		"below 0":        {After: math.MinInt64, Through: 1},
		"backwards":      {After: 5, Through: 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTestRun(t)
			r.start()
			r.write(&schema.MessageAddedData{Message: userMessage("one")}, 0)
			to := r.rewindTo(2)
			to.Head.Superseded = []schema.Superseded{forged}
			if v := r.rewound(to); v.Kind == schema.Applied {
				r.write(&schema.MessageAddedData{Message: userMessage("two")}, 0)
				require.Len(t, r.state.Messages, 2, "events after the rewind are in the state")
				require.Fail(t, "accepted")
			}
		})
	}
}

// A tool gets the same key for every execution of a call, and models use their call ids again. The call of a turn
// after a rewind is not the call of the superseded turn. A call that was requested at the record is the same one.
func TestRewind_CallWithTheIDOfOneLeftBehind_HasAnotherIdempotencyKey(t *testing.T) {
	r := newTestRun(t)
	r.start()
	call := func(turn int32, arguments string) (key string) {
		t.Helper()
		require.Equal(t, schema.Applied, r.write(&schema.TurnAnsweredData{
			Turn: turn, Message: assistantMessage(),
			Calls: []schema.RequestedCall{{ToolCallID: "call_0", Name: "pay", Arguments: []byte(arguments), Replay: schema.ReplayIdempotent}},
		}, turn).Kind)
		return r.head.OpenCalls[0].IdempotencyKey("r1")
	}
	first := call(1, `{"to":"a"}`)
	require.Equal(t, "r1.1.call_0.1", first)
	r.rewind(2)
	require.Equal(t, first, r.head.OpenCalls[0].IdempotencyKey("r1"))
	r.rewind(1)
	require.Equal(t, "r1@3.1.call_0.1", call(1, `{"to":"b"}`))
	r.rewind(1)
	require.Equal(t, "r1@4.1.call_0.1", call(1, `{"to":"c"}`))
	require.Equal(t, schema.Applied, r.write(&schema.ToolCalledData{ToolCallID: "more", Name: "pay"}, 1).Kind)
	require.Equal(t, "r1@4.1.more.1", r.head.OpenCalls[1].IdempotencyKey("r1"))
	require.Empty(t, referencefold.Fold(schema.NoKeys, "f", "r1", r.log).Differences(&r.head))
}

// A fork and its base may both run the same call: with one key the tool sees no difference, and runs it once.
func TestFork_OpenCallOfTheBase_KeepsItsIdempotencyKey(t *testing.T) {
	r := newTestRun(t)
	r.start()
	r.write(&schema.TurnAnsweredData{Turn: 1, Message: assistantMessage(), Calls: []schema.RequestedCall{{ToolCallID: "c1", Name: "pay", Replay: schema.ReplayIdempotent}}}, 1)
	fork := forkOf(t, schema.BaseOf(schema.Point{}, 2, &r.head))
	require.Equal(t, r.head.OpenCalls[0].IdempotencyKey(r.head.Run), fork.head.OpenCalls[0].IdempotencyKey(fork.head.Run))
	plan := schema.PlanOf(fork.state)
	require.Equal(t, "r1.1.c1.1", plan.Calls[0].IdempotencyKey)
}

// An executor may begin its own hold call with a verify subject. The call must still be listed as held when the run ends,
// or the operator never learns that a payment has no outcome.
func TestHeldCalls_HoldCallBegunWithAVerifySubject_IsListedWhenTheRunEnds(t *testing.T) {
	r := newTestRun(t)
	r.start()
	r.write(&schema.TurnAnsweredData{Turn: 1, Message: assistantMessage(), Calls: []schema.RequestedCall{{ToolCallID: "c1", Name: "pay", Replay: schema.ReplayHold}}}, 1)
	require.Equal(t, schema.Applied, r.write(&schema.ToolCalledData{ToolCallID: "c1", Name: "pay", VerifySubject: "tools.pay"}, 1).Kind)
	require.Equal(t, schema.Applied, r.write(&schema.RunEndedData{Status: string(schema.StatusFailed)}, 0).Kind)
	require.Len(t, r.head.HeldCalls(), 1)
}

// A wait for a signal and a signal that no turn was started with are never open together: the wait would not end.
func TestWaiting_ForASignal_EndsWithOne(t *testing.T) {
	wait := &schema.RunWaitingData{InterruptID: "s", Reason: schema.WaitSignal}
	r := newTestRun(t)
	r.start()
	require.Equal(t, schema.Applied, r.write(wait, 0).Kind) // record 2
	require.Equal(t, schema.StatusWaiting, r.head.Status)
	require.Contains(t, schema.InstructionsOf(&r.head, 0).Lines, "waits for s (signal): waymark signal r1")
	require.Equal(t, schema.Applied, r.write(&schema.RunInterruptedData{Reason: schema.InterruptedWaiting}, 0).Kind)
	require.False(t, r.head.Status.Claimable())
	require.Equal(t, schema.Applied, r.event(r.makeControl(&schema.SignalSentData{SignalID: "a", Name: "hurry", By: "ann"}, 1)).Kind)
	require.Empty(t, r.head.Interrupts)
	require.True(t, r.head.Status.Claimable())
	require.Equal(t, schema.ReasonSignal, r.write(wait, 0).Reason)

	r.rewind(2) // the wait is open there, and the signal is open again
	require.Len(t, r.head.Signals, 1)
	require.Empty(t, r.head.Interrupts)
	require.Equal(t, schema.StatusRunning, r.head.Status)

	require.Equal(t, schema.Applied, r.write(&schema.TurnStartedData{Turn: 1, Signals: []string{"a"}}, 1).Kind)
	require.Equal(t, schema.Applied, r.write(wait, 0).Kind, "the turn has the signal")
	require.Equal(t, schema.Applied, r.write(&schema.TurnEndedData{Turn: 1}, 1).Kind)
	require.Empty(t, r.head.Interrupts, "the turn did not tell it")
	require.Empty(t, referencefold.Fold(schema.NoKeys, "f", "r1", r.log).Differences(&r.head))
}
