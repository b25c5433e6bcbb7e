package publisher_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// turnWith is one turn with one call, whose tool returns the result.
func turnWith(t *testing.T, run *publisher.Run, id string, result any) {
	t.Helper()
	turn := openTurn(t, run)
	call := publisher.ToolCall{ID: id, Name: "read", Replay: schema.ReplayPure}
	answers(t, turn, call)
	_, err := turn.Tool(t.Context(), call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		return publisher.Result(result)
	})
	require.NoError(t, err)
}

func callIDs(s *schema.State) []string {
	var ids []string
	for i := range s.Calls {
		ids = append(ids, s.Calls[i].ToolCallID)
	}
	return ids
}

func TestFork_OfAFork_ContinuesWithOrigin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	origin := start(t, f, "origin")
	turnWith(t, origin, "c1", 1)
	turnWith(t, origin, "c2", 2)

	turn1 := schema.Point{Kind: schema.PointTurn, Number: 1}
	fork, err := f.Fork(t.Context(), publisher.ForkSpec{ID: "fork", Base: "origin", At: turn1})
	require.NoError(t, err)
	require.Equal(t, []string{"c1"}, callIDs(fork.State()))
	require.Equal(t, "write it", fork.State().Started.Task)
	turnWith(t, origin, "c3", 3)
	turnWith(t, fork, "f2", 20)

	second, err := f.Fork(t.Context(), publisher.ForkSpec{ID: "second", Base: "fork", At: schema.Point{}})
	require.NoError(t, err)
	require.Equal(t, []string{"c1", "f2"}, callIDs(second.State()))
	turnWith(t, fork, "f3", 30)

	// Resumed by another, the fork of the fork has all that it stands on, and goes on.
	other := w.fleet(func(c *publisher.Config) { c.Executor = "exec-2" })
	resumed := resume(t, other, "second")
	require.Equal(t, schema.Epoch(2), resumed.Epoch())
	turnWith(t, resumed, "s3", 300)
	turnWith(t, origin, "c4", 4)
	require.Equal(t, []string{"c1", "f2", "s3"}, callIDs(resumed.State()))

	for run, want := range map[string][]string{
		"origin": {"c1", "c2", "c3", "c4"}, "fork": {"c1", "f2", "f3"}, "second": {"c1", "f2", "s3"},
	} {
		state, err := f.Get(t.Context(), run)
		require.NoError(t, err)
		require.Equal(t, want, callIDs(state), run)
		require.Len(t, state.Messages, len(want), run)
		require.Zero(t, state.Head.Counts.DeadLetters, run)
	}
	require.Equal(t, resumed.State(), func() *schema.State {
		state, err := other.Get(t.Context(), "second")
		require.NoError(t, err)
		return state
	}())
	require.Equal(t, []string{"run.started", "run.resumed", "turn.answered", "tool.returned"}, names(w.log("second")),
		"a fork stores its own events alone")
	at, err := f.GetAt(t.Context(), "second", schema.Point{Kind: schema.PointTurn, Number: 3})
	require.NoError(t, err)
	require.Equal(t, []string{"c1", "f2", "s3"}, callIDs(at))
}

func TestFork_OpenCall_InDoubt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	origin := start(t, f, "origin")
	turn := openTurn(t, origin)
	calls := []publisher.ToolCall{{ID: "c1", Name: "read", Replay: schema.ReplayPure}, {ID: "c2", Name: "pay", Replay: schema.ReplayHold}}
	_, err := turn.Answer(t.Context(), publisher.Answer{Message: assistant(schema.CallPart("c1", "read"), schema.CallPart("c2", "pay")), Calls: calls})
	require.NoError(t, err)

	fork, err := f.Fork(t.Context(), publisher.ForkSpec{ID: "fork", Base: "origin"})
	require.NoError(t, err)
	require.Len(t, fork.Head().OpenCalls, 2)
	var ran atomic.Int64
	result, err := fork.Turn(1).Tool(t.Context(), calls[0], counted(&ran, "fork"))
	require.NoError(t, err)
	require.JSONEq(t, `"fork"`, string(result.Result))
	_, err = fork.Turn(1).Tool(t.Context(), calls[1], counted(&ran, "paid twice"))
	require.ErrorIs(t, err, publisher.ErrHeld, "the other run's executor may be at it")
	require.Equal(t, int64(1), ran.Load())

	result, err = turn.Tool(t.Context(), calls[1], counted(&ran, "origin"))
	require.NoError(t, err)
	require.JSONEq(t, `"origin"`, string(result.Result))
	require.Len(t, origin.Head().OpenCalls, 1, "what the fork does is nothing to its origin")
}

func TestFork_ImpossibleState_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	origin := start(t, f, "origin")
	turnWith(t, origin, "c1", 1)
	head := origin.Head()
	before, err := f.HeadAt(t.Context(), "origin", schema.Point{Kind: schema.PointSequence, Number: 2})
	require.NoError(t, err)
	head.Digest = before.Digest
	forger := schema.Writer{Fleet: "default", Run: "fork", Executor: "exec-1", Epoch: 1}
	e, err := forger.Event(&schema.RunStartedData{Agent: "coder", Executor: "exec-1", Base: schema.BaseOf(schema.Point{}, 3, &head)}, 0, time.Now(), 0)
	require.NoError(t, err)
	w.put(e)
	_, err = f.Get(t.Context(), "fork")
	require.ErrorIs(t, err, publisher.ErrIncomplete)
	_, err = f.Resume(t.Context(), "fork", publisher.ResumeSpec{})
	require.ErrorIs(t, err, publisher.ErrIncomplete)
	head, err = f.Head(t.Context(), "fork")
	require.NoError(t, err)
	require.EqualValues(t, 1, head.Epoch, "an executor that cannot read it does not take it over")
}

func TestFork_DuplicateEvent_Readable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	turnWith(t, start(t, f, "origin"), "c1", 1)
	log := w.log("origin")
	last := log[len(log)-1]
	_, err := w.js.PublishMsg(t.Context(), &nats.Msg{Subject: w.names.EventSubject("origin"), Header: last.Header, Data: last.Body})
	require.NoError(t, err)
	_, err = f.Fork(t.Context(), publisher.ForkSpec{ID: "fork", Base: "origin"})
	require.NoError(t, err)
	state, err := f.Get(t.Context(), "fork")
	require.NoError(t, err)
	require.EqualValues(t, len(log)+1, state.Head.Base.Records)
	require.Equal(t, []string{"c1"}, callIDs(resume(t, w.fleet(func(c *publisher.Config) { c.Executor = "exec-2" }), "fork").State()))
}

// A fork may depend on as many runs as readers follow, and no deeper fork can be started.
func TestFork_UnreadableBase_NotStarted(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a chain of as many forks as there may be")
	}
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run, base := "origin", (*schema.Base)(nil)
	for i := range schema.MaxBases + 1 {
		out := schema.Writer{Fleet: "default", Run: run, Executor: "exec-1", Epoch: 1}
		e, err := out.Event(&schema.RunStartedData{Agent: "coder", Executor: "exec-1", Base: base}, 0, time.Now(), 0)
		require.NoError(t, err)
		w.put(e)
		head := w.fold(run).Head
		require.EqualValues(t, 1, head.Counts.Events)
		base = schema.BaseOf(schema.Point{}, 1, &head)
		if i < schema.MaxBases {
			run = fmt.Sprintf("fork-%d", i+1)
		}
	}
	require.Equal(t, fmt.Sprintf("fork-%d", schema.MaxBases), run)
	_, err := f.Get(t.Context(), run)
	require.NoError(t, err)
	_, err = f.Fork(t.Context(), publisher.ForkSpec{ID: "too-deep", Base: run})
	require.ErrorIs(t, err, publisher.ErrConfig)
	_, err = f.Head(t.Context(), "too-deep")
	require.ErrorIs(t, err, publisher.ErrRunNotFound)
	_, err = f.Fork(t.Context(), publisher.ForkSpec{ID: "as-deep", Base: fmt.Sprintf("fork-%d", schema.MaxBases-1)})
	require.NoError(t, err)
	_, err = f.Get(t.Context(), "as-deep")
	require.NoError(t, err)
	resume(t, f, "as-deep")
}

func TestFork_Invalid_RefusedWithReason(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	turnWith(t, start(t, f, "origin"), "c1", 1)
	for _, c := range []struct {
		name string
		spec publisher.ForkSpec
		err  error
	}{
		{"under the run's own id", publisher.ForkSpec{ID: "origin", Base: "origin"}, publisher.ErrConfig},
		{"under no id", publisher.ForkSpec{Base: "origin"}, publisher.ErrConfig},
		{"of no run", publisher.ForkSpec{ID: "f", Base: "missing"}, publisher.ErrRunNotFound},
		{"at no point", publisher.ForkSpec{ID: "f", Base: "origin", At: schema.Point{Kind: schema.PointTurn, Number: 7}}, publisher.ErrPointNotFound},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := f.Fork(t.Context(), c.spec)
			require.ErrorIs(t, err, c.err)
		})
	}
	_, err := f.Fork(t.Context(), publisher.ForkSpec{ID: "f", Base: "origin"})
	require.NoError(t, err)
	_, err = f.Fork(t.Context(), publisher.ForkSpec{ID: "f", Base: "origin"})
	require.ErrorIs(t, err, publisher.ErrRunExists)
}
