package schema_test

import (
	"flag"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waymarkio/waymark/schema"
)

// update writes the golden files and transcripts again instead of comparing with them.
var update = flag.Bool("update", false, "write golden files and transcripts again")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testRun is a run's log in the making: it writes records as an executor or the daemon would, and folds
// each into a State and a Head at the same time.
type testRun struct {
	tb     testing.TB
	w      schema.Writer
	state  *schema.State
	head   schema.Head
	stream schema.StreamSequence
	log    []schema.Record
	// nonce numbers control events.
	nonce int
	// keys are the fleet's, schema.NoKeys for none.
	keys *schema.Keys
}

func newTestRun(tb testing.TB) *testRun {
	tb.Helper()
	return &testRun{
		tb:    tb,
		keys:  schema.NoKeys,
		w:     schema.Writer{Fleet: "f", Run: "r1", Executor: "ex-1", Epoch: 1},
		state: schema.NewState("f", "r1"),
		head:  schema.NewHead("f", "r1"),
	}
}

func (r *testRun) now() time.Time {
	return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).Add(time.Duration(r.stream) * time.Second)
}

// record folds a message as the next one of the log; State and Head must give the same verdict.
func (r *testRun) record(header map[string][]string, body []byte) schema.Verdict {
	r.tb.Helper()
	r.stream++
	rec := schema.NewRecord(r.stream, header, body)
	r.log = append(r.log, rec)
	if r.keys.Any() {
		rec.Stored = r.now().UnixNano()
	}
	v := r.state.Apply(r.keys, &rec)
	hv := r.head.Apply(r.keys, &rec)
	require.Equal(r.tb, hv.Kind, v.Kind)
	require.Equal(r.tb, hv.Reason, v.Reason)
	if len(r.log) < 100 || len(r.log)%64 == 0 { // comparing costs more than folding
		require.Equal(r.tb, r.head, r.state.Head, "State.Head must be what a Head alone is")
	}
	return v
}

func (r *testRun) event(e *schema.Event) schema.Verdict {
	r.tb.Helper()
	return r.record(e.Encode())
}

// write publishes an executor's event and folds it.
func (r *testRun) write(d schema.Data, turn int32) schema.Verdict {
	r.tb.Helper()
	e, err := r.w.Event(d, turn, r.now(), 0)
	require.NoError(r.tb, err)
	require.NoError(r.tb, r.w.Commit(e))
	return r.event(e)
}

func (r *testRun) makeControl(d schema.Data, epoch schema.Epoch) *schema.Event {
	r.tb.Helper()
	r.nonce++
	e, err := schema.NewControl(r.w.Fleet, "daemon", r.w.Run, epoch, "n"+time.Duration(r.nonce).String(), d, r.now())
	require.NoError(r.tb, err)
	return e
}

// takeover opens the next epoch for an executor and makes it the writer. It returns the writer it fenced.
func (r *testRun) takeover(executor string) schema.Writer {
	r.tb.Helper()
	old := r.w
	v := r.event(r.makeControl(&schema.RunResumedData{
		Executor: executor, Reason: "claim", RequestID: "q",
		From: schema.From{Epoch: r.head.Epoch, Sequence: r.head.Sequence, Digest: r.head.Digest},
	}, r.head.Epoch+1))
	require.Equal(r.tb, schema.Applied, v.Kind, v.Detail)
	r.w = schema.Writer{Fleet: old.Fleet, Run: old.Run, Executor: executor, Epoch: r.head.Epoch}
	return old
}

func (r *testRun) start() {
	r.tb.Helper()
	require.Equal(r.tb, schema.Applied, r.write(&schema.RunStartedData{Agent: "coder", Executor: r.w.Executor}, 0).Kind)
}

func mustJSON(tb testing.TB, v any) []byte {
	tb.Helper()
	b, err := json.Marshal(v, json.Deterministic(true))
	require.NoError(tb, err)
	return b
}

func userMessage(text string) schema.Message {
	return schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(text)}}
}

func assistantMessage(parts ...schema.Part) schema.Message {
	return schema.Message{Role: schema.RoleAssistant, Parts: parts}
}
