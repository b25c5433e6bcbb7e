package conform_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// tape is a recording in the making: what an executor of fleet f wrote into run r-1, with the daemon's events between.
type tape struct {
	t      *testing.T
	out    bytes.Buffer
	run    string
	head   schema.Head
	writer schema.Writer
	clock  time.Time
	stream schema.StreamSequence
	nonce  int
	// wire: lines are messages with headers, not CloudEvents.
	wire bool
}

func newTape(t *testing.T) *tape {
	t.Helper()
	return &tape{
		t: t, run: "r-1", head: schema.NewHead("f", "r-1"), clock: time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC),
		writer: schema.Writer{Fleet: "f", Run: "r-1", Executor: "ex-1", Epoch: 1},
	}
}

func (r *tape) now() time.Time {
	r.clock = r.clock.Add(time.Second)
	return r.clock
}

// change is made to an event before it is numbered.
type change func(*schema.Event)

// make builds the executor's next event. What changes it comes before its id.
func (r *tape) make(data schema.Data, turn int32, changes ...change) *schema.Event {
	r.t.Helper()
	e, err := r.writer.Event(data, turn, r.now(), 0)
	require.NoError(r.t, err)
	for _, c := range changes {
		c(e)
	}
	r.seal(e)
	return e
}

func (r *tape) seal(e *schema.Event) {
	if e.Sequence == 0 {
		r.nonce++
		e.ID = fmt.Sprintf("plain-%d", r.nonce)
		return
	}
	e.Seal()
}

// put records an event as it is, and folds it for the takeovers to come.
func (r *tape) put(e *schema.Event) schema.Verdict {
	r.t.Helper()
	r.stream++
	if r.wire {
		header, body := e.Encode()
		r.message("waymark.events.f.0."+r.run, header, body)
	} else {
		line, err := e.EncodeStructured()
		require.NoError(r.t, err)
		r.out.Write(append(line, '\n'))
	}
	header, body := e.Encode()
	rec := schema.NewRecord(r.stream, header, body)
	v := r.head.Apply(schema.NoKeys, &rec)
	if e.Sequence == r.writer.Last+1 && e.Epoch == r.writer.Epoch && r.head.Sequence == e.Sequence {
		r.writer.Last = e.Sequence
	}
	return v
}

// write records the executor's next event, which is valid.
func (r *tape) write(data schema.Data, turn int32, changes ...change) {
	r.t.Helper()
	v := r.put(r.make(data, turn, changes...))
	require.Contains(r.t, []schema.VerdictKind{schema.Applied, schema.Evidence, schema.Duplicate}, v.Kind, v.Detail)
}

// refused records the executor's next event, which is not.
func (r *tape) refused(data schema.Data, turn int32, changes ...change) {
	r.t.Helper()
	v := r.put(r.make(data, turn, changes...))
	require.Equal(r.t, schema.Rejected, v.Kind)
}

func (r *tape) control(data schema.Data, turn int32, changes ...change) schema.Verdict {
	r.t.Helper()
	r.nonce++
	e, err := schema.NewControl("f", "waymark", r.run, r.head.Epoch, fmt.Sprintf("n%d", r.nonce), data, r.now())
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
		e.ID = schema.ControlID(r.run, e.Epoch, "t")
	})
	require.Equal(r.t, schema.Applied, v.Kind, v.Detail)
	r.writer.Executor, r.writer.Epoch, r.writer.Last = executor, r.head.Epoch, 0
}

// message records a message as waymark conform --record does.
func (r *tape) message(subject string, header map[string][]string, body []byte, published ...bool) {
	r.t.Helper()
	line, err := json.Marshal(map[string]any{
		"subject": subject, "at": schema.FormatTime(r.clock), "headers": header, "body": string(body), "published": len(published) > 0,
	}, json.Deterministic(true))
	require.NoError(r.t, err)
	r.out.Write(append(line, '\n'))
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

func (r *tape) says(turn int32, parts ...schema.Part) {
	r.t.Helper()
	r.write(&schema.MessageAddedData{Message: schema.Message{Role: schema.RoleAssistant, Parts: parts}}, turn)
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

func plain(e *schema.Event) { e.Sequence = 0 }

func bare(e *schema.Event) { e.Sequence, e.Epoch = 0, 0 }
