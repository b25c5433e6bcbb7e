package publisher_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// rewind takes a run over behind one of its records, as the daemon will when it is asked to.
func (w *world) rewind(run string, record int) {
	w.tb.Helper()
	log := w.log(run)
	head := schema.NewHead("default", run)
	for i := range log[:record] {
		head.Apply(schema.NoKeys, &log[i])
	}
	at := head.Clone()
	var later []schema.OpenSignal
	for i := range log[record:] {
		later = append(later, schema.SentSignal(&head, head.Apply(schema.NoKeys, &log[record+i]))...)
	}
	point := schema.Point{Kind: schema.PointRecord, Number: uint64(record)} //nolint:gosec // a small number
	to, err := schema.RewindTo(point, &at, later)
	require.NoError(w.tb, err)
	w.control(run, head.Epoch+1, &schema.RunResumedData{
		Executor: "exec-1", Reason: schema.TakeoverRewind, RequestID: "q-1", To: to,
		From: schema.From{Epoch: head.Epoch, Sequence: head.Sequence, Digest: head.Digest},
	})
}

// A run that was rewound is read without what it left behind, by its latest state, at points, by an executor that resumes it, and as the
// base of a fork.
func TestRewind_RunRewound_ReadWithoutWhatItLeftBehind(t *testing.T) {
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "r1")
	turn := func(run *publisher.Run, text string) {
		t.Helper()
		next, err := run.StartTurn(t.Context(), publisher.TurnSpec{Messages: []schema.Message{user(text)}})
		require.NoError(t, err)
		keys, err := next.Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text("answer to " + text)), Calls: []publisher.ToolCall{{ID: "c1", Name: "pay"}}})
		require.NoError(t, err)
		require.NoError(t, next.Begin(t.Context(), keys[0]))
		require.NoError(t, next.Return(t.Context(), keys[0], publisher.ToolResult{Result: raw(`"paid"`)}))
	}
	turn(run, "one") // records 2 to 5
	turn(run, "two") // records 6 to 9
	require.NoError(t, run.Publish(t.Context(), &schema.StateSetData{Key: "plan", Value: raw(`"left behind"`)}, 0))
	w.rewind("r1", 7) // behind the answer of turn 2, whose call began later

	read := func(state *schema.State, err error) {
		t.Helper()
		require.NoError(t, err)
		require.Len(t, state.Messages, 4)
		require.Empty(t, state.Values)
		require.Len(t, state.Head.InDoubt(), 1)
		require.Equal(t, "[8-10 in 2]", abandoned(&state.Head))
	}
	read(f.Get(t.Context(), "r1"))
	left, err := f.GetAt(t.Context(), "r1", schema.Point{Kind: schema.PointRecord, Number: 10})
	require.NoError(t, err)
	require.Len(t, left.Values, 1, "the record itself is still there")
	first, err := f.HeadAt(t.Context(), "r1", schema.Point{Kind: schema.PointResult, Number: 1})
	require.NoError(t, err)
	require.Equal(t, int64(5), first.Records)
	_, err = f.HeadAt(t.Context(), "r1", schema.Point{Kind: schema.PointResult, Number: 2})
	require.ErrorContains(t, err, "it has 2 tool calls", "the rewind left its outcome behind")

	resumed, err := f.Resume(t.Context(), "r1", publisher.ResumeSpec{})
	require.NoError(t, err)
	read(resumed.State(), nil)
	w.control("r1", resumed.Epoch(), &schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledAbandoned})
	require.NoError(t, resumed.Sync(t.Context()))
	turn(resumed, "three")
	state, err := f.Get(t.Context(), "r1")
	require.NoError(t, err)
	require.Len(t, state.Messages, 6)
	require.Equal(t, int32(3), state.Head.Turn)

	fork, err := f.Fork(t.Context(), publisher.ForkSpec{Base: "r1", ID: "r2"})
	require.NoError(t, err)
	require.Len(t, fork.State().Messages, 6)
	again, err := f.Get(t.Context(), "r2")
	require.NoError(t, err)
	require.Len(t, again.Messages, 6)
}

// abandoned names the ranges that rewinds abandoned.
func abandoned(h *schema.Head) string {
	list := make([]string, len(h.Superseded))
	for i, r := range h.Superseded {
		list[i] = fmt.Sprintf("%d-%d in %d", r.After+1, r.Through, r.Epoch)
	}
	return fmt.Sprint(list)
}

// closedAt returns the number of the record with the outcome of each call of a run, in the order in which the calls were recorded.
func closedAt(run string, log []schema.Record) []int {
	var keys []schema.CallKey
	var at []int
	head := schema.NewHead("default", run)
	for i := range log {
		v := head.Apply(schema.NoKeys, &log[i])
		for _, key := range v.Calls {
			keys, at = append(keys, key), append(at, 0)
		}
		for k := range keys {
			if at[k] == 0 && head.FindOpen(keys[k].Turn, keys[k].ToolCallID, keys[k].Occurrence) < 0 {
				at[k] = i + 1
			}
		}
	}
	return at
}

// Each of 20 recorded runs, whose executors died, goes on behind each of its steps: with the calls up to there and no other, nothing
// forgotten, and no call run unasked that was begun before.
func TestResume_BehindEachStepOfRecordedRuns_GoesOnFromThere(t *testing.T) {
	t.Parallel()
	seeds := uint64(20)
	if testing.Short() {
		seeds = 3
		t.Log("short: 3 recorded runs of 20")
	}
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	resumed, left := 0, 0
	for seed := range seeds {
		record := func(id string) []schema.Record {
			w.recordedRun(f, id, rand.New(rand.NewPCG(seed, 15))) //nolint:gosec // chooses a run
			return w.log(id)
		}
		first := fmt.Sprint("run", seed)
		steps := closedAt(first, record(first))
		for k := range steps {
			id := fmt.Sprintf("%s-%d", first, k+1)
			log := record(id)
			n := closedAt(id, log)[k]
			began, open := callsAt(id, log, n)
			run, err := f.Resume(t.Context(), id, publisher.ResumeSpec{At: schema.Point{Kind: schema.PointResult, Number: uint64(k + 1)}}) //nolint:gosec // small
			require.NoError(t, err, id)
			resumed++
			require.ElementsMatch(t, open, keysOf(run.Head().OpenCalls), "%s: the calls that were open behind record %d", id, n)
			head := run.Head()
			require.Equal(t, fmt.Sprintf("[%d-%d in %d]", n+1, len(log), run.Epoch()), abandoned(&head), id)
			left += len(log) - n

			a := newAgent(3, func(int32) []publisher.ToolCall { return nil })
			held, err := a.play(t.Context(), run)
			require.NoError(t, err, id)
			for _, c := range run.State().Calls {
				if !slices.Contains(open, c.CallKey) {
					require.Zero(t, a.effects[c.CallKey], "%s: %v has an outcome and ran once more", id, c.CallKey)
					continue
				}
				if c.Replay == schema.ReplayHold && began[c.CallKey] {
					require.Zero(t, a.effects[c.CallKey], "%s: %v ran unasked", id, c.CallKey)
					require.Contains(t, held, c.CallKey, id)
					continue
				}
				require.Equal(t, 1, a.effects[c.CallKey], "%s: %v is forgotten", id, c.CallKey)
			}
		}
	}
	t.Logf("resumed behind %d steps, %d records left behind", resumed, left)
	require.Greater(t, resumed, 5)
	require.Greater(t, left, 20)
}

func TestResume_AtAPoint_RefusesWhatItCannotDo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	start(t, f, "r1")
	at := schema.Point{Kind: schema.PointResult, Number: 3}
	_, err := f.Resume(t.Context(), "r1", publisher.ResumeSpec{At: at})
	require.ErrorIs(t, err, publisher.ErrPointNotFound)
	require.ErrorContains(t, err, "run r1 has no point result:3: it has 0 tool calls")
	_, err = f.Resume(t.Context(), "r1", publisher.ResumeSpec{At: at, Reason: schema.TakeoverReopen})
	require.ErrorIs(t, err, publisher.ErrConfig)
	_, err = f.Resume(t.Context(), "r1", publisher.ResumeSpec{Reason: schema.TakeoverRewind})
	require.ErrorContains(t, err, "name the point after which the run continues")
}

// A hold call that its run abandoned is made by a fork after a person settled it. Neither another fork at that point nor
// the run itself, after a rewind to it, makes the call unasked: its tool would be called twice with one idempotency key.
func TestRewind_HoldCallThatAForkMade_IsHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f := w.fleet()
	run := start(t, f, "r1")
	turn := openTurn(t, run)
	mail := publisher.ToolCall{ID: "m", Name: "mail"}
	answers(t, turn, mail)
	at := schema.Point{Kind: schema.PointRecord, Number: uint64(run.Head().Records)}        //nolint:gosec // a small number
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{Status: schema.StatusFailed})) // abandons it
	var sent atomic.Int64
	fork, err := f.Fork(t.Context(), publisher.ForkSpec{Base: "r1", ID: "first", At: at})
	require.NoError(t, err)
	_, err = fork.OpenTurn().Tool(t.Context(), mail, counted(&sent, "sent"))
	if held, ok := errors.AsType[*publisher.HeldError](err); ok {
		_, err = f.Settle(t.Context(), "first", schema.SettleRequest{CallKey: held.Key, CallEpoch: held.Epoch, How: schema.SettledRerun, By: "ann"})
		require.NoError(t, err)
		require.NoError(t, fork.AwaitSettled(t.Context(), held.Key))
		_, err = fork.OpenTurn().Tool(t.Context(), mail, counted(&sent, "sent"))
	}
	require.NoError(t, err)
	require.Equal(t, int64(1), sent.Load())

	second, err := f.Fork(t.Context(), publisher.ForkSpec{Base: "r1", ID: "second", At: at})
	require.NoError(t, err)
	back, err := f.Resume(t.Context(), "r1", publisher.ResumeSpec{At: at})
	require.NoError(t, err)
	for name, run := range map[string]*publisher.Run{"second fork": second, "rewind": back} {
		_, err = run.OpenTurn().Tool(t.Context(), mail, counted(&sent, "sent again"))
		require.ErrorIs(t, err, publisher.ErrHeld, name)
	}
	require.Equal(t, int64(1), sent.Load())
}
