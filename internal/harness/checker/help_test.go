package checker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/schema"
)

// world makes small histories by hand: a log, the operations, and the final state.
type world struct {
	turn    int32 // of the events of executors
	t       *testing.T
	head    schema.Head
	log     []schema.Record
	ops     []checker.Op
	clock   int64
	writers map[string]*schema.Writer
	opts    checker.Options
	// complete and places of the final state; places are made from the head if nil.
	complete bool
	unread   map[string]string
	places   map[string]checker.Answer
	stored   *schema.Head
	state    *schema.State
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{
		t: t, head: schema.NewHead("f", "r1"), writers: map[string]*schema.Writer{}, complete: true,
		opts: checker.Options{Fleet: "f", Keys: schema.NoKeys, Least: map[checker.Kind]int{checker.Publish: 1}},
	}
}

func (w *world) tick() int64 {
	w.clock++
	return w.clock
}

func (w *world) writer(actor string) *schema.Writer {
	if w.writers[actor] == nil {
		w.writers[actor] = &schema.Writer{Fleet: "f", Run: "r1", Executor: actor, Epoch: 1}
	}
	return w.writers[actor]
}

// event makes an executor's next event.
func (w *world) event(actor string, data schema.Data) *schema.Event {
	w.t.Helper()
	x := w.writer(actor)
	e, err := x.Event(data, w.turn, time.Unix(1_700_000_000+w.clock, 0), 0)
	require.NoError(w.t, err)
	return e
}

// store appends an event to the log.
func (w *world) store(e *schema.Event) schema.StreamSequence {
	w.t.Helper()
	header, body := e.Encode()
	rec := schema.NewRecord(schema.StreamSequence(len(w.log)+1), header, body)
	w.log = append(w.log, rec)
	w.head.Apply(schema.NoKeys, &rec)
	return rec.Stream
}

func said(token string) schema.Data {
	return &schema.MessageAddedData{Message: schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("said " + token)}}}
}

// op adds an operation that is over, and returns it for the test to change.
func (w *world) op(op checker.Op) *checker.Op {
	w.t.Helper()
	op.ID, op.Run, op.Start, op.End = int64(len(w.ops)+1), "r1", w.tick(), w.tick()
	if op.Outcome == "" {
		op.Outcome = checker.OK
	}
	w.ops = append(w.ops, op)
	return &w.ops[len(w.ops)-1]
}

func (w *world) published(actor string, e *schema.Event, at schema.StreamSequence) *checker.Op {
	w.t.Helper()
	return w.op(checker.Op{
		Actor: actor, Kind: checker.Publish, Event: e.ID, Epoch: e.Epoch, Sequence: e.Sequence, Stream: at, Detail: e.Name(),
	})
}

// start begins the run.
func (w *world) start(actor string) {
	w.t.Helper()
	w.publish(actor, &schema.RunStartedData{Agent: "a", Executor: actor})
}

// publish is a complete successful publish.
func (w *world) publish(actor string, data schema.Data) *schema.Event {
	w.t.Helper()
	e := w.event(actor, data)
	require.NoError(w.t, w.writer(actor).Commit(e))
	w.published(actor, e, w.store(e))
	return e
}

// resumed makes the event of a takeover.
func (w *world) resumed(actor, request string) *schema.Event {
	w.t.Helper()
	h := &w.head
	e, err := schema.NewControl("f", "daemon", "r1", h.Epoch+1, request, &schema.RunResumedData{
		Executor: actor, Reason: schema.TakeoverRequest, RequestID: request,
		From: schema.From{Epoch: h.Epoch, Sequence: h.Sequence, Digest: h.Digest},
	}, time.Unix(1_700_000_000+w.clock, 0))
	require.NoError(w.t, err)
	return e
}

// control stores an event as an operator adds it, and returns it.
func (w *world) control(data schema.Data) *schema.Event {
	w.t.Helper()
	e, err := schema.NewControl("f", "daemon", "r1", w.head.Epoch, fmt.Sprintf("n%d", len(w.log)), data, time.Unix(1_700_000_000+w.clock, 0))
	require.NoError(w.t, err)
	w.store(e)
	return e
}

// copied is the expected head of the stored checkpoint.
func (w *world) copied() *schema.Head {
	h := w.head.Clone()
	return &h
}

// folded is the log's state in an answer.
func (w *world) folded() *schema.State {
	s := schema.NewState("f", "r1")
	for i := range w.log {
		s.Apply(schema.NoKeys, &w.log[i])
	}
	return s.View()
}

// takeover is a complete successful takeover.
func (w *world) takeover(actor, request string) *checker.Op {
	w.t.Helper()
	e := w.resumed(actor, request)
	w.store(e)
	w.writers[actor] = &schema.Writer{Fleet: "f", Run: "r1", Executor: actor, Epoch: e.Epoch}
	return w.op(checker.Op{Actor: actor, Kind: checker.Takeover, Executor: actor, Request: request, Answer: w.answer()})
}

func (w *world) read(actor string) *checker.Op {
	w.t.Helper()
	return w.op(checker.Op{Actor: actor, Kind: checker.Read, Answer: w.answer()})
}

func (w *world) answer() *checker.Answer {
	a := checker.AnswerOf(&w.head, true)
	return &a
}

func (w *world) history() *checker.History { return &checker.History{Ops: w.ops} }

func (w *world) check() *checker.Report {
	w.t.Helper()
	places := w.places
	if places == nil {
		places = map[string]checker.Answer{"checkpoint": checker.AnswerOf(&w.head, w.complete)}
	}
	return checker.Check(w.history(), []checker.Final{{
		Run: "r1", Log: w.log, Head: w.head, Complete: w.complete, Places: places, Stored: w.stored, State: w.state, Unread: w.unread,
	}}, w.opts)
}

// good is a run of two executors, with reads.
func (w *world) good() {
	w.start("ex-1")
	w.publish("ex-1", said("one"))
	w.read("op")
	w.takeover("ex-2", "q1")
	w.publish("ex-2", said("two"))
	w.publish("ex-2", said("three"))
	w.read("op")
}
