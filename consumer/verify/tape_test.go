package verify_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/verify"
	"github.com/waymarkio/waymark/schema"
)

// tape is the log of run r-1 of fleet f: the events of an executor, with the daemon's events between.
type tape struct {
	t       *testing.T
	records []schema.Record
	head    schema.Head
	writer  schema.Writer
	clock   time.Time
	nonce   int
}

func newTape(t *testing.T) *tape {
	t.Helper()
	return &tape{
		t: t, head: schema.NewHead("f", "r-1"), clock: time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC),
		writer: schema.Writer{Fleet: "f", Run: "r-1", Executor: "ex-1", Epoch: 1},
	}
}

func (r *tape) now() time.Time {
	r.clock = r.clock.Add(time.Second)
	return r.clock
}

// change is made to an event before it gets its id.
type change func(*schema.Event)

func (r *tape) make(data schema.Data, turn int32, changes ...change) *schema.Event {
	r.t.Helper()
	e, err := r.writer.Event(data, turn, r.now(), 0)
	require.NoError(r.t, err)
	for _, c := range changes {
		c(e)
	}
	if e.Sequence == 0 {
		r.nonce++
		e.ID = fmt.Sprintf("plain-%d", r.nonce)
		return e
	}
	e.Seal()
	return e
}

func (r *tape) put(e *schema.Event) schema.Verdict {
	r.t.Helper()
	header, body := e.Encode()
	return r.message(header, body)
}

func (r *tape) message(header map[string][]string, body []byte) schema.Verdict {
	r.t.Helper()
	rec := schema.NewRecord(schema.StreamSequence(len(r.records)+1), header, body)
	r.records = append(r.records, rec)
	v := r.head.Apply(schema.NoKeys, &rec)
	if e := v.Event; e != nil && e.Sequence == r.writer.Last+1 && e.Epoch == r.writer.Epoch && r.head.Sequence == e.Sequence {
		r.writer.Last = e.Sequence
	}
	return v
}

// write appends the executor's next event, which the fold does not refuse.
func (r *tape) write(data schema.Data, turn int32, changes ...change) {
	r.t.Helper()
	v := r.put(r.make(data, turn, changes...))
	require.NotEqual(r.t, schema.Rejected, v.Kind, v.Detail)
}

// refused appends the executor's next event, which the fold refuses.
func (r *tape) refused(data schema.Data, turn int32, changes ...change) {
	r.t.Helper()
	require.Equal(r.t, schema.Rejected, r.put(r.make(data, turn, changes...)).Kind)
}

func (r *tape) control(data schema.Data, turn int32, changes ...change) schema.Verdict {
	r.t.Helper()
	r.nonce++
	e, err := schema.NewControl("f", "waymark", "r-1", r.head.Epoch, fmt.Sprintf("n%d", r.nonce), data, r.now())
	require.NoError(r.t, err)
	e.Turn = turn
	for _, c := range changes {
		c(e)
	}
	return r.put(e)
}

func (r *tape) takeover(executor, reason string) {
	r.t.Helper()
	data := &schema.RunResumedData{
		Executor: executor, Reason: reason, RequestID: fmt.Sprintf("q%d", r.nonce),
		From: schema.From{Epoch: r.head.Epoch, Sequence: r.head.Sequence, Digest: r.head.Digest},
	}
	v := r.control(data, 0, func(e *schema.Event) {
		e.Epoch = r.head.Epoch + 1
		e.ID = schema.ControlID("r-1", e.Epoch, "t")
	})
	require.Equal(r.t, schema.Applied, v.Kind, v.Detail)
	r.writer.Executor, r.writer.Epoch, r.writer.Last = executor, r.head.Epoch, 0
}

func (r *tape) start() {
	r.t.Helper()
	r.write(&schema.RunStartedData{Agent: "coder", Executor: "ex-1"}, 0)
}

func (r *tape) turn(n int32) { r.t.Helper(); r.write(&schema.TurnStartedData{Turn: n}, n) }

func (r *tape) endTurn(n int32) { r.t.Helper(); r.write(&schema.TurnEndedData{Turn: n}, n) }

func (r *tape) end() { r.t.Helper(); r.write(&schema.RunEndedData{Status: "completed"}, 0) }

func (r *tape) call(id string, replay schema.Replay, turn int32) {
	r.t.Helper()
	d := &schema.ToolCalledData{ToolCallID: id, Name: "tool", Replay: replay}
	if replay == schema.ReplayVerify {
		d.VerifySubject = "tools.verify"
	}
	r.write(d, turn)
}

// answers writes the model's answer, whose message names the calls that it asks for.
func (r *tape) answers(turn int32, calls ...schema.RequestedCall) {
	r.t.Helper()
	m := schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("so")}}
	for _, c := range calls {
		m.Parts = append(m.Parts, schema.CallPart(c.ToolCallID, c.Name))
	}
	r.write(&schema.TurnAnsweredData{Turn: turn, Message: m, Calls: calls}, turn)
}

func (r *tape) result(id string, turn int32) {
	r.t.Helper()
	r.write(&schema.ToolReturnedData{ToolCallID: id, Result: []byte(`"done"`)}, turn)
}

// worked is a run in its first turn.
func worked(t *testing.T) *tape {
	t.Helper()
	r := newTape(t)
	r.start()
	r.turn(1)
	return r
}

// doubt is a run that was taken over with an open call.
func doubt(t *testing.T, replay schema.Replay) *tape {
	t.Helper()
	r := worked(t)
	r.call("c1", replay, 1)
	r.takeover("ex-2", "claim")
	return r
}

func (r *tape) judge() []verify.Mistake { return verify.Judge("f", "r-1", r.records) }

func plain(e *schema.Event) { e.Sequence = 0 }

func bare(e *schema.Event) { e.Sequence, e.Epoch = 0, 0 }
