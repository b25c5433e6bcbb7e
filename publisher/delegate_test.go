package publisher_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// delegates is a tool that delegates, and returns the status and the output of the child's end.
func delegates(tries *atomic.Int32) publisher.Tool {
	tool := publisher.NewTool("delegate", "", publisher.Idempotent, func(ctx context.Context, in struct {
		Task string `json:"task"`
	},
	) (string, error) {
		tries.Add(1)
		end, err := publisher.InvocationOf(ctx).Run().Delegate(ctx, publisher.RunSpec{Agent: "helper", Task: in.Task})
		return string(end.Status) + " " + string(end.Output) + " " + end.Summary, err
	})
	tool.Concurrent = true
	return tool
}

// helper serves the runs of the agent helper with work.
func (w *world) helper(t *testing.T, work publisher.Work) *served {
	t.Helper()
	return serveRuns(t, w.fleet(named("helper")), nil, func(spec *publisher.ExecutorSpec) {
		spec.Capacity = 8
		spec.Agents = map[string]func(context.Context, *publisher.Run) (publisher.Work, error){"helper": working(work)}
	})
}

// erase removes a run.
func (w *world) erase(t *testing.T, run string) {
	t.Helper()
	m, err := w.nc.RequestWithContext(t.Context(), schema.ServiceSubject(schema.VerbErase, "default", run), raw(`{"by":"tester","force":true}`))
	require.NoError(t, err)
	require.Contains(t, string(m.Data), `"removal"`)
}

// childOf is the only child of a run.
func (w *world) childOf(t *testing.T, run string) string {
	t.Helper()
	var child string
	require.Eventually(t, func() bool {
		page, err := w.fleet(named("reader")).List(t.Context(), schema.ListRequest{Parent: run})
		if err == nil && len(page.Runs) == 1 {
			child = page.Runs[0].Run
		}
		return child != ""
	}, patience, 10*time.Millisecond)
	return child
}

func TestDelegate_ToolOfALoop_GivesTheChildsEndToTheModel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	var tries atomic.Int32
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("c1", "delegate", `{"task":"one"}`), call("c2", "delegate", `{"task":"two"}`))}}
	f := w.fleet()
	publisher.SetWaitPoll(f, patience) // else it reads the child's log when the daemon takes longer to tell
	s := serveRuns(t, f, nil, func(spec *publisher.ExecutorSpec) {
		spec.Capacity = 1 // the run is released, also without WaitDetached
		spec.Loops = map[string]publisher.Loop{"coder": {Model: m.model, Tools: []publisher.Tool{delegates(&tries)}}}
	})
	begin(t, s, "r1")
	require.Equal(t, publisher.OutcomeWaiting, s.outcome(t, "r1").outcome)
	require.Len(t, w.fold("r1").Head.Interrupts, 2)
	w.helper(t, func(ctx context.Context, run *publisher.Run) error {
		return run.End(ctx, publisher.RunEnd{Summary: "did " + run.Head().Task, Output: json.RawMessage(`{"n":1}`)})
	})
	for got := s.outcome(t, "r1"); got.outcome != publisher.OutcomeCompleted; got = s.outcome(t, "r1") {
		require.Equal(t, publisher.OutcomeWaiting, got.outcome, "%v", got.err)
	}
	last := strings.Join(m.sent()[len(m.sent())-1], "\n")
	require.Contains(t, last, `did one`)
	require.Contains(t, last, `did two`)
	require.Equal(t, 1, strings.Count(last, "did one"), "as the tool's result, and not as a message too")
	state := w.fold("r1")
	require.Len(t, state.Signals, 2)
	require.Empty(t, state.Head.Signals)
	require.Zero(t, state.Head.Counts.DeadLetters)
}

// Each way in which a child can end is told once.
func TestChildEnd_EachKind_IsToldOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	parent := start(t, w.fleet(), "parent")
	f := w.fleet(named("child"))
	child := func(id string) *publisher.Run {
		run, err := f.Start(t.Context(), publisher.RunSpec{ID: id, Parent: &schema.Parent{Run: "parent"}})
		require.NoError(t, err)
		return run
	}
	require.NoError(t, child("completed").End(t.Context(), publisher.RunEnd{Summary: "done", Output: json.RawMessage(`1`)}))
	require.NoError(t, child("failed").End(t.Context(), publisher.RunEnd{Status: schema.StatusFailed, Error: &schema.Error{Type: "broken", Message: "it broke"}}))
	require.NoError(t, child("cancelled").End(t.Context(), publisher.RunEnd{Status: schema.StatusCancelled}))
	require.NoError(t, child("large").End(t.Context(), publisher.RunEnd{Output: json.RawMessage(`"` + strings.Repeat("x", 100<<10) + `"`)}))
	child("erased")
	w.erase(t, "erased")
	var ends map[string]schema.ChildEnd
	require.Eventually(t, func() bool {
		signals, err := parent.Signals(t.Context())
		require.NoError(t, err)
		ends = make(map[string]schema.ChildEnd)
		for _, s := range signals {
			var end schema.ChildEnd
			require.NoError(t, json.Unmarshal(s.Payload, &end))
			require.Equal(t, "child."+string(end.Status), s.Name)
			ends[end.Run] = end
		}
		return len(signals) == 5
	}, patience, 10*time.Millisecond)
	require.Equal(t, schema.ChildEnd{Run: "completed", Status: schema.StatusCompleted, Epoch: 1, Summary: "done", Output: raw("1")}, ends["completed"])
	require.Equal(t, "it broke", ends["failed"].Error.Message)
	require.Equal(t, schema.StatusCancelled, ends["cancelled"].Status)
	require.Equal(t, schema.StatusErased, ends["erased"].Status)
	require.True(t, ends["large"].Partial)
	got, err := parent.Delegate(t.Context(), publisher.RunSpec{ID: "large"})
	require.NoError(t, err)
	require.Len(t, got.Output, 100<<10+2, "read from the child's log")
	w.erase(t, "completed")
	for _, id := range []string{"completed", "erased"} {
		got, err = parent.Delegate(t.Context(), publisher.RunSpec{ID: id})
		require.NoError(t, err)
		require.Equal(t, ends[id], got, "told before its removal")
	}
	require.Len(t, w.fold("parent").Signals, 5)

	// A run that is reopened ends again.
	again, err := f.Resume(t.Context(), "failed", publisher.ResumeSpec{Reason: schema.TakeoverReopen})
	require.NoError(t, err)
	require.NoError(t, again.End(t.Context(), publisher.RunEnd{Summary: "mended"}))
	require.Eventually(t, func() bool { return len(w.fold("parent").Signals) == 6 }, patience, 10*time.Millisecond)
	require.NoError(t, parent.Sync(t.Context()))
	got, err = parent.Delegate(t.Context(), publisher.RunSpec{ID: "failed"})
	require.NoError(t, err)
	require.Equal(t, "mended", got.Summary)
}

// Work of its own delegates. Its executor is killed at each step, and the child is one.
func TestDelegate_ExecutorLeavesAtEachStep_SameChild(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	spec := publisher.RunSpec{ID: "c1", Agent: "helper", Task: "one"}
	delegate := func(ctx context.Context, name string) (schema.ChildEnd, error) {
		f := w.fleet(named(name))
		defer func() { require.NoError(t, f.Close(t.Context())) }()
		run, err := f.Resume(t.Context(), "r1", publisher.ResumeSpec{})
		require.NoError(t, err)
		return run.Delegate(ctx, spec)
	}
	_, err := w.fleet(named("starter")).Submit(t.Context(), publisher.RunSpec{ID: "r1", ModelTier: "big", Labels: map[string]string{"tenant": "acme"}})
	require.NoError(t, err)
	// One is killed before the child is there, one as soon as it is, one in the wait or somewhere before it.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = delegate(ctx, "early")
	require.ErrorIs(t, err, context.Canceled)
	_, err = w.fleet(named("reader")).Head(t.Context(), "c1")
	require.ErrorIs(t, err, publisher.ErrRunNotFound)
	ctx, kill := context.WithCancel(t.Context())
	_, err = w.nc.Subscribe(w.names.EventSubject("c1"), func(*nats.Msg) { kill() })
	require.NoError(t, err)
	_, err = delegate(ctx, "first")
	require.ErrorIs(t, err, context.Canceled)
	ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	_, err = delegate(ctx, "second")
	cancel()
	require.Error(t, err)
	// The child ends while the run has no executor.
	ended := w.helper(t, func(ctx context.Context, run *publisher.Run) error {
		return run.End(ctx, publisher.RunEnd{Summary: "done"})
	})
	require.Equal(t, publisher.OutcomeCompleted, ended.outcome(t, "c1").outcome)
	require.Eventually(t, func() bool { return len(w.fold("r1").Head.Signals) == 1 }, patience, 10*time.Millisecond)
	for _, name := range []string{"third", "fourth"} { // the third consumes the signal, and is killed then
		end, err := delegate(t.Context(), name)
		require.NoError(t, err)
		require.Equal(t, "done", end.Summary)
		require.Empty(t, w.fold("r1").Head.Signals)
	}
	require.Equal(t, "c1", w.childOf(t, "r1"))
	require.Len(t, w.fold("r1").Signals, 1)
	child := w.fold("c1").Head
	require.Equal(t, map[string]string{"tenant": "acme"}, child.Labels, "what selects the tenant's runs selects this one")
	require.Equal(t, "big", child.ModelTier)
}

// A child whose executors die is quarantined, which wakes its parent once.
func TestDelegate_ChildIsKilledForGood_Returns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	s := serveRuns(t, w.fleet(), func(ctx context.Context, run *publisher.Run) error {
		end, err := run.Delegate(ctx, publisher.RunSpec{ID: "c1", Agent: "helper"})
		if err != nil {
			return err
		}
		return run.End(ctx, publisher.RunEnd{Summary: string(end.Status)})
	}, func(spec *publisher.ExecutorSpec) { spec.Capacity = 1 })
	begin(t, s, "r1")
	require.Equal(t, publisher.OutcomeWaiting, s.outcome(t, "r1").outcome)
	for i := range schema.DefaultMaxClaims {
		f := w.fleet(named("helper-" + string(rune('a'+i))))
		require.Eventually(t, func() bool {
			claim, err := f.Claim(t.Context(), publisher.ClaimSpec{Agents: []string{"helper"}})
			return err == nil && claim != nil
		}, patience, 10*time.Millisecond)
		require.NoError(t, f.Close(t.Context())) // its run is orphaned
	}
	require.Equal(t, publisher.OutcomeCompleted, s.outcome(t, "r1").outcome)
	require.Equal(t, "quarantined", w.fold("r1").Head.Summary)
	require.Len(t, w.fold("r1").Signals, 1)
}

func TestDelegate_TooDeepOrTooMany_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f := w.fleet()
	deep, err := f.Start(t.Context(), publisher.RunSpec{ID: "deep", Parent: &schema.Parent{Run: "r0", Depth: publisher.MaxDelegateDepth}})
	require.NoError(t, err)
	_, err = deep.Delegate(t.Context(), publisher.RunSpec{ID: "c1"})
	require.ErrorIs(t, err, publisher.ErrDelegation)
	_, err = start(t, f, "r1").Delegate(t.Context(), publisher.RunSpec{})
	require.ErrorIs(t, err, publisher.ErrConfig, "work of its own names the child")
	_, err = f.Head(t.Context(), "c1")
	require.ErrorIs(t, err, publisher.ErrRunNotFound)
	require.ErrorContains(t, f.Signal(t.Context(), "r1", publisher.SignalSpec{ID: "child.c1.1", Name: "child.completed"}), "begins with child.", "only the daemon tells")
}

// The work hands over to another run: the parent waits for that one.
func TestDelegate_ChildHandsOver_WaitsForTheRunThatContinues(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	parent := start(t, w.fleet(), "parent")
	w.helper(t, func(ctx context.Context, run *publisher.Run) error {
		if run.ID() != "c1" {
			return run.End(ctx, publisher.RunEnd{Summary: "done by " + run.ID()})
		}
		child, err := run.Continue(ctx, run.Handoff(schema.HandoffOfferedData{Reason: "threshold_critical"}), publisher.RunSpec{ID: "c2"})
		if err != nil {
			return err
		}
		return child.End(ctx, publisher.RunEnd{Summary: "done by " + child.ID()})
	})
	end, err := parent.Delegate(t.Context(), publisher.RunSpec{ID: "c1", Agent: "helper"})
	require.NoError(t, err)
	require.Equal(t, "done by c2", end.Summary)
}

// The daemon died after each step of telling a parent: the fold had listed the end, or the parent had the signal, or the child
// was reopened in between.
func TestChildEnd_DaemonDiedBetweenSteps_IsToldOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	start(t, w.fleet(), "parent")
	f := w.fleet(named("child"))
	for _, id := range []string{"ended", "lives"} {
		run, err := f.Start(t.Context(), publisher.RunSpec{ID: id, Parent: &schema.Parent{Run: "parent"}})
		require.NoError(t, err)
		if id == "ended" {
			require.NoError(t, run.End(t.Context(), publisher.RunEnd{}))
		}
	}
	kv, err := w.js.KeyValue(t.Context(), w.names.CheckpointBucket())
	require.NoError(t, err)
	list := func(runs ...string) {
		for _, run := range runs {
			_, err := kv.Put(t.Context(), schema.UntoldKeyPrefix+run, nil)
			require.NoError(t, err)
		}
	}
	told := func() {
		require.Eventually(t, func() bool {
			keys, err := kv.ListKeysFiltered(t.Context(), schema.UntoldKeyPrefix+">")
			require.NoError(t, err)
			left := 0
			for range keys.Keys() {
				left++
			}
			return left == 0 && len(w.fold("parent").Signals) == 1
		}, patience, 10*time.Millisecond)
	}
	list("ended", "lives", "unknown")
	w.daemon()
	told()
	list("ended", "lives")
	told()
	require.Equal(t, "child.ended.1", w.fold("parent").Signals[0].SignalID)
	require.Zero(t, w.fold("parent").Head.Counts.DeadLetters)
}

// A run that names itself as its parent, and hands over, is the parent of the run that continues it and its own.
func TestChildEnd_ParentsInACircle_OthersAreTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f := w.fleet()
	for _, id := range []string{"b1", "b2", "b3"} {
		run, err := f.Start(t.Context(), publisher.RunSpec{ID: id, Parent: &schema.Parent{Run: id}})
		require.NoError(t, err)
		next, err := run.Continue(t.Context(), run.Handoff(schema.HandoffOfferedData{HandoffID: "h", Reason: "task_complete"}), publisher.RunSpec{})
		require.NoError(t, err)
		require.NoError(t, next.End(t.Context(), publisher.RunEnd{}))
	}
	start(t, f, "honest")
	child, err := f.Start(t.Context(), publisher.RunSpec{ID: "child", Parent: &schema.Parent{Run: "honest"}})
	require.NoError(t, err)
	require.NoError(t, child.End(t.Context(), publisher.RunEnd{}))
	require.Eventually(t, func() bool { return len(w.fold("honest").Signals) == 1 }, patience, 10*time.Millisecond)
	untold := func() (keys []string) {
		kv, err := w.js.KeyValue(t.Context(), schema.NamesOf(schema.DefaultFleet, 0).CheckpointBucket())
		require.NoError(t, err)
		list, err := kv.ListKeysFiltered(t.Context(), schema.UntoldKeyPrefix+">")
		require.NoError(t, err)
		for key := range list.Keys() {
			keys = append(keys, key)
		}
		return keys
	}
	require.Eventually(t, func() bool { return len(untold()) == 0 }, patience, 10*time.Millisecond, "each is asked once")
}
