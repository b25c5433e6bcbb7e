package publisher_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// line is a client's connection on which requests about one subject get lost.
type line struct {
	// about is part of the subjects.
	about string
	// deaf is the number of requests that are still lost. cut breaks the connection with the next one on its way.
	deaf atomic.Int64
	cut  atomic.Bool
	// requests counts those that were sent.
	requests atomic.Int64
}

func (l *line) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	return &lineConn{c, l}, nil
}

type lineConn struct {
	net.Conn
	*line
}

func (c *lineConn) Write(b []byte) (int, error) {
	if n := bytes.Count(b, []byte(c.about)); n > 0 {
		c.requests.Add(int64(n))
		if c.cut.CompareAndSwap(true, false) {
			_ = c.Close()
			return len(b), nil
		}
		if c.deaf.Load() > 0 {
			c.deaf.Add(-1)
			return len(b), nil
		}
	}
	return c.Conn.Write(b)
}

const (
	aboutBlobs = "DIRECT.GET.OBJ_"
	aboutLog   = "DIRECT.GET.WAYMARK_EVENTS"
)

// on is the configuration of an executor behind the line.
func (l *line) on(w *world, name string) func(*publisher.Config) {
	return func(c *publisher.Config) {
		c.Executor = name
		c.Conn = w.server.Conn(w.tb, nats.ReconnectBufSize(-1), nats.SetCustomDialer(l), nats.ReconnectWait(time.Millisecond))
	}
}

// impatient gives answers up soon.
func impatient(c *publisher.Config) { c.RequestTimeout, c.PublishTimeout = time.Second, time.Second }

// loops is an executor's spec with one loop, of the agent coder.
func loops(l publisher.Loop) func(*publisher.ExecutorSpec) {
	return func(s *publisher.ExecutorSpec) { s.Loops, s.Capacity = map[string]publisher.Loop{"coder": l}, 1 }
}

// submitLarge hands in a run whose task is in the object store.
func submitLarge(w *world) {
	w.tb.Helper()
	_, err := w.fleet(named("client")).Submit(w.tb.Context(), publisher.RunSpec{ID: "r1", Agent: "coder", Task: strings.Repeat("x", big)})
	require.NoError(w.tb, err)
}

func TestLoop_ConnectionBreaksWhileALargeFieldIsLoaded_RunCompletes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	submitLarge(w)
	l := &line{about: aboutBlobs}
	l.cut.Store(true)
	ex := serveRuns(t, w.fleet(l.on(w, "exec-1")), nil, loops(publisher.Loop{Model: new(scripted).model}))
	got := ex.outcome(t, "r1")
	require.NoError(t, got.err)
	require.Equal(t, publisher.OutcomeCompleted, got.outcome, "the lost request is sent again")
	require.False(t, l.cut.Load())
}

// returned is an executor whose run is given back while something is away, and completed once it is there again.
func returned(t *testing.T, w *world, l *line) {
	t.Helper()
	l.deaf.Store(math.MaxInt64)
	ex := serveRuns(t, w.fleet(l.on(w, "exec-1"), impatient), nil, loops(publisher.Loop{Model: new(scripted).model}))
	got := ex.outcome(t, "r1")
	require.Equal(t, publisher.OutcomeInterrupted, got.outcome, "%v", got.err)
	require.ErrorIs(t, got.err, publisher.ErrUnavailable)
	require.Zero(t, w.fold("r1").Head.Stalled, "it is no fault of the run")
	l.deaf.Store(0)
	for got.outcome == publisher.OutcomeInterrupted {
		got = ex.outcome(t, "r1")
	}
	require.Equal(t, publisher.OutcomeCompleted, got.outcome, "%v", got.err)
}

func TestLoop_ObjectStoreAway_RunIsGivenBackAndCompletesLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	submitLarge(w)
	returned(t, w, &line{about: aboutBlobs})
}

// A large field is gone until a person restores it.
func TestLoop_LargeFieldIsMissing_RunIsQuarantinedAndARestoreCompletesIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	submitLarge(w)
	store, err := w.js.ObjectStore(t.Context(), schema.BlobBucket("default"))
	require.NoError(t, err)
	objects, err := store.List(t.Context())
	require.NoError(t, err)
	require.Len(t, objects, 1)
	content, err := store.GetBytes(t.Context(), objects[0].Name)
	require.NoError(t, err)
	require.NoError(t, store.Delete(t.Context(), objects[0].Name))

	f := w.fleet(named("exec-1"))
	ex := serveRuns(t, f, nil, loops(publisher.Loop{Model: new(scripted).model}))
	for range schema.DefaultMaxClaims {
		got := ex.outcome(t, "r1")
		require.Equal(t, publisher.OutcomeInterrupted, got.outcome, "%v", got.err)
		require.ErrorIs(t, got.err, publisher.ErrBlob)
	}
	require.Contains(t, w.fold("r1").Head.LastError.Message, objects[0].Name)

	_, err = store.PutBytes(t.Context(), objects[0].Name, content)
	require.NoError(t, err)
	_, err = f.Release(t.Context(), "r1", publisher.ResumeSpec{})
	require.NoError(t, err)
	got := ex.outcome(t, "r1")
	require.Equal(t, publisher.OutcomeCompleted, got.outcome, "%v", got.err)
}

func TestLoop_LogNotReadAsItBegins_RunIsGivenBackAndCompletesLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	_, err := w.fleet(named("client")).Submit(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder", Task: "write it"})
	require.NoError(t, err)
	returned(t, w, &line{about: aboutLog})
}

func TestLoop_ParentRemovedBeforeTheChildsFirstTurn_ChildCompletes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f := w.fleet()
	parent := start(t, f, "p1")
	offer, err := parent.Handoff(schema.HandoffOfferedData{Reason: "task_complete", HandoffID: "h1", NextAgent: "coder"}).Offer(t.Context())
	require.NoError(t, err)
	child, err := f.AcceptHandoff(t.Context(), offer, publisher.RunSpec{ID: "c1", Task: "carry on"})
	require.NoError(t, err)
	require.NoError(t, parent.End(t.Context(), publisher.RunEnd{}))
	body, err := json.Marshal(&schema.EraseRequest{By: "ann", Force: true})
	require.NoError(t, err)
	_, err = w.nc.Request(schema.ServiceSubject(schema.VerbErase, "default", "p1"), body, patience)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := f.Head(t.Context(), "p1")
		return errors.Is(err, publisher.ErrRunErased)
	}, patience, 10*time.Millisecond)
	ex := serveRuns(t, f, nil, loops(publisher.Loop{Model: new(scripted).model}))
	require.NoError(t, ex.Adopt(child))
	got := ex.outcome(t, "c1")
	require.Equal(t, publisher.OutcomeCompleted, got.outcome, "%v", got.err)
}

// searching is own work that asks for one call with these arguments. In epoch 1 its tool reports that it began, and
// stops with its executor.
func searching(arguments string, began chan<- struct{}) publisher.Work {
	return func(ctx context.Context, run *publisher.Run) error {
		call := publisher.ToolCall{ID: "c1", Name: "search", Arguments: raw(arguments), Replay: schema.ReplayPure}
		_, err := run.Turn(1).Tool(ctx, call, func(ctx context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
			if inv.Epoch > 1 {
				return publisher.Result("found")
			}
			close(began)
			<-ctx.Done()
			return publisher.ToolResult{}, context.Cause(ctx)
		})
		return err
	}
}

// A deploy of work that asks for another call than the recorded one, three claims, and a rollback.
func TestExecutor_WorkDiverges_RunIsQuarantinedAndARollbackCompletesIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	claims := func(s *publisher.ExecutorSpec) { s.Capacity = 1 }
	began := make(chan struct{})
	before := serveRuns(t, w.fleet(), searching(`{"q":"x"}`, began))
	begin(t, before, "r1")
	<-began
	require.NoError(t, before.stop())
	require.Equal(t, publisher.OutcomeInterrupted, before.outcome(t, "r1").outcome)

	after := serveRuns(t, w.fleet(named("exec-2")), searching(`{"query":"x"}`, nil), claims)
	for range schema.DefaultMaxClaims {
		got := after.outcome(t, "r1")
		require.Equal(t, publisher.OutcomeInterrupted, got.outcome, "%v", got.err)
		require.ErrorIs(t, got.err, publisher.ErrDiverged)
	}
	require.NoError(t, after.stop())
	head := w.fold("r1").Head
	require.True(t, head.Status.Claimable())
	require.Equal(t, schema.DefaultMaxClaims, head.Stalled, "no executor claims it any more")
	require.Contains(t, head.LastError.Message, "diverged from its record")

	rolled := w.fleet(named("exec-3"))
	_, err := rolled.Release(t.Context(), "r1", publisher.ResumeSpec{})
	require.NoError(t, err)
	back := serveRuns(t, rolled, searching(`{"q":"x"}`, nil), claims)
	got := back.outcome(t, "r1")
	require.Equal(t, publisher.OutcomeCompleted, got.outcome, "%v", got.err)
}

func TestBlob_StoreAway_IsUnavailableAndNotDamaged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	require.NoError(t, run.AddMessage(t.Context(), user(strings.Repeat("x", big))))
	ref := run.State().Messages[0].Refs[0].DataRef
	l := &line{about: aboutBlobs}
	f := w.fleet(l.on(w, "exec-2"), impatient)
	l.deaf.Store(math.MaxInt64)
	_, err := f.Blob(t.Context(), ref)
	require.ErrorIs(t, err, publisher.ErrUnavailable)
	require.NotErrorIs(t, err, publisher.ErrBlob)
}

// The result of a run is in an object store that is away for a while.
func TestResult_ObjectStoreAway_Waits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	run := start(t, w.fleet(), "r1")
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{Output: raw(`"` + strings.Repeat("x", big) + `"`)}))
	l := &line{about: aboutBlobs}
	f := w.fleet(l.on(w, "exec-2"), func(c *publisher.Config) { c.RequestTimeout = 300 * time.Millisecond })
	l.deaf.Store(3) // each takes as long as a deadline
	result, err := f.Result(t.Context(), "r1")
	require.NoError(t, err)
	require.Len(t, result.Output, big+2)
}

// Each turn brings one more large result, and each request to the model needs all of them.
func TestLoop_LargeResults_AreReadOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	const results = 12
	m := &scripted{answers: make(map[int32]publisher.Answer)}
	for i := range int32(results) {
		m.answers[i+1] = calls(call("", "look", fmt.Sprintf(`{"at":%d}`, i)))
	}
	tool := look(func(_ context.Context, at int) (string, error) { return strings.Repeat("x", big+at), nil })
	l := &line{about: aboutBlobs}
	f := w.fleet(l.on(w, "exec-1"), func(c *publisher.Config) { // a late answer is not asked for again
		c.TryTimeout, c.PublishTimeout, c.RequestTimeout = patience, patience, patience
	})
	run := start(t, f, "r1")
	require.NoError(t, publisher.Loop{Model: m.model, Tools: []publisher.Tool{tool}}.Work(t.Context(), run))
	require.LessOrEqual(t, l.requests.Load(), int64(results), "only each put looks for an earlier one")

	other := &line{about: aboutBlobs}
	again := w.fleet(other.on(w, "exec-2"))
	taken, err := again.Resume(t.Context(), "r1", publisher.ResumeSpec{Reason: schema.TakeoverReopen})
	require.NoError(t, err)
	first, err := taken.Conversation(t.Context())
	require.NoError(t, err)
	read := other.requests.Load()
	require.Positive(t, read)
	second, err := taken.Conversation(t.Context())
	require.NoError(t, err)
	require.Equal(t, first, second)
	require.Equal(t, read, other.requests.Load(), "the executor has them")
}

// The tool of a hold call ran, and the object store is away for longer than a request when its large result is
// recorded. The process has the result: no person is asked for it.
func TestExecutor_OutcomeCannotBeStoredInTime_IsRecordedBeforeTheRunIsGivenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	var ran atomic.Int64
	work := func(ctx context.Context, run *publisher.Run) error {
		_, err := run.Turn(1).Tool(ctx, publisher.ToolCall{ID: "c1", Name: "pay"}, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
			ran.Add(1)
			return publisher.Result(strings.Repeat("x", big))
		})
		return err
	}
	l := &line{about: aboutBlobs}
	l.deaf.Store(2)
	ex := serveRuns(t, w.fleet(l.on(w, "exec-1"), func(c *publisher.Config) { c.RequestTimeout, c.TryTimeout = time.Second, time.Second }), work,
		func(s *publisher.ExecutorSpec) { s.Capacity = 1 })
	begin(t, ex, "r1")
	got := ex.outcome(t, "r1")
	require.Equal(t, publisher.OutcomeInterrupted, got.outcome, "%v", got.err)
	got = ex.outcome(t, "r1")
	require.Equal(t, publisher.OutcomeCompleted, got.outcome, "%v", got.err)
	require.EqualValues(t, 1, ran.Load())
	require.NotContains(t, names(w.log("r1")), "run.waiting")
}

// The pause before the next claim grows, so that a run whose fleet never answers is not claimed many times a second.
func TestExecutor_WorkNeverAnswered_ClaimsSlowDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	s := serveRuns(t, w.fleet(), func(context.Context, *publisher.Run) error {
		return fmt.Errorf("read the key: %w", publisher.ErrUnavailable)
	}, func(spec *publisher.ExecutorSpec) { spec.Capacity = 1 })
	begin(t, s, "r1")
	require.Equal(t, publisher.OutcomeInterrupted, s.outcome(t, "r1").outcome)
	first := time.Now()
	for range 4 {
		require.Equal(t, publisher.OutcomeInterrupted, s.outcome(t, "r1").outcome)
	}
	require.GreaterOrEqual(t, time.Since(first), 750*time.Millisecond, "50, 100, 200 and 400 ms")
	require.Zero(t, w.fold("r1").Head.Stalled)
}
