package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// writtenFleet is a fleet with a daemon, whose runs a test writes event by event, as an executor without the SDK does.
type writtenFleet struct {
	t     *testing.T
	where []string
	js    jetstream.JetStream
	fleet *publisher.Fleet
	last  map[string]schema.Sequence
	epoch map[string]schema.Epoch
	nonce int
}

func newWrittenFleet(t *testing.T) *writtenFleet {
	t.Helper()
	where, js, fleet := provisioned(t)
	_, stop, err := startDaemon(append([]string{"--http", "off", "--silence", "10m"}, where...), func(string) string { return "" })
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = stop() })
	return &writtenFleet{t: t, where: where, js: js, fleet: fleet, last: map[string]schema.Sequence{}, epoch: map[string]schema.Epoch{}}
}

// ask runs a command line in a terminal of 80 columns, or where a program reads its output.
func (w *writtenFleet) ask(columns string, args ...string) (code int, stdout, stderr string) {
	w.t.Helper()
	var out, complaints bytes.Buffer
	getenv := func(name string) string {
		if name == "COLUMNS" {
			return columns
		}
		return ""
	}
	code = Run(w.t.Context(), append(args, w.where...), getenv, strings.NewReader(""), &out, &complaints)
	return code, out.String(), complaints.String()
}

// told is the output of a command that succeeds.
func (w *writtenFleet) told(args ...string) string {
	w.t.Helper()
	code, stdout, stderr := w.ask("", args...)
	require.Zero(w.t, code, "%v: %s%s", args, stdout, stderr)
	return stdout
}

func (w *writtenFleet) store(e *schema.Event) {
	w.t.Helper()
	header, body := e.Encode()
	_, err := w.js.PublishMsg(w.t.Context(), &nats.Msg{Subject: schema.NamesOf(schema.DefaultFleet, 0).EventSubject(e.Subject), Header: header, Data: body})
	require.NoError(w.t, err)
}

// event makes the executor's next event with data as it is.
func (w *writtenFleet) event(run, name string, turn int32, data string) *schema.Event {
	w.t.Helper()
	epoch := max(w.epoch[run], 1)
	w.last[run]++
	return &schema.Event{
		Source: schema.Source(schema.DefaultFleet, "e"), Type: schema.TypeOf(name), Subject: run, Time: schema.FormatTime(time.Now()), Epoch: epoch,
		Sequence: w.last[run], Turn: turn, DataContentType: schema.ContentTypeJSON, Data: []byte(data),
	}
}

// write stores the executor's next event with data as it is.
func (w *writtenFleet) write(run, name string, turn int32, data string) {
	w.t.Helper()
	e := w.event(run, name, turn, data)
	e.Seal()
	w.store(e)
}

// control stores a control event.
func (w *writtenFleet) control(run string, epoch schema.Epoch, data schema.Data) {
	w.t.Helper()
	w.nonce++
	e, err := schema.NewControl(schema.DefaultFleet, "daemon", run, epoch, fmt.Sprintf("n%d", w.nonce), data, time.Now())
	require.NoError(w.t, err)
	w.store(e)
}

// Ids have a hash of the data's bytes: with other spaces they would be other events.
func TestEvents_RawDataWithSpacesAndLineBreaks_KeepsItsBytes(t *testing.T) {
	t.Parallel()
	w := newWrittenFleet(t)
	want := []string{
		`{"agent": "a", "executor": "e", "instance": "i-1"}`,
		"{\n  \"turn\": 1,\n  \"message\": {\"role\": \"assistant\", \"parts\": [{\"type\": \"text\", \"content\": \"hi\"}]}\n}",
		"{ \"key\":\"a\",\r \"value\": 1.0 }",
		`{"status": "completed"}`,
	}
	w.write("r1", schema.RunStarted, 0, want[0])
	w.write("r1", schema.TurnAnswered, 1, want[1])
	w.write("r1", schema.StateSet, 0, want[2])
	w.write("r1", schema.RunEnded, 0, want[3])
	lines := w.told("events", "r1", "--all", "--no-follow", "--json", "--raw")
	require.Equal(t, len(want), strings.Count(lines, "\n"), lines)
	require.NotContains(t, lines, "\r")
	require.Equal(t, 2, strings.Count(lines, `"data_base64":`), lines)
	for i, line := range strings.Split(strings.TrimSpace(lines), "\n") {
		e, err := schema.Decode(nil, []byte(line))
		require.NoError(t, err)
		require.Equal(t, want[i], string(e.Data))
	}
	w.told("verify", "r1", "--strict")
}

// rewind takes a run over behind one of its records, and makes the executor that of the new epoch.
func (w *writtenFleet) rewind(run string, record int) {
	w.t.Helper()
	var log []schema.Record
	require.NoError(w.t, w.fleet.Events(w.t.Context(), run, func(r schema.Record) error { log = append(log, r); return nil }))
	head := schema.NewHead(schema.DefaultFleet, run)
	for i := range log[:record] {
		head.Apply(schema.NoKeys, &log[i])
	}
	at := head.Clone()
	var later []schema.OpenSignal
	for i := range log[record:] {
		later = append(later, schema.SentSignal(&head, head.Apply(schema.NoKeys, &log[record+i]))...)
	}
	to, err := schema.RewindTo(schema.Point{Kind: schema.PointRecord, Number: uint64(record)}, &at, later) //nolint:gosec // a small number
	require.NoError(w.t, err)
	w.control(run, head.Epoch+1, &schema.RunResumedData{
		Executor: "e", Reason: schema.TakeoverRewind, RequestID: "q-1", To: to,
		From: schema.From{Epoch: head.Epoch, Sequence: head.Sequence, Digest: head.Digest},
	})
	w.epoch[run], w.last[run] = head.Epoch+1, 0
}

// rewound writes a run that was rewound behind turn 1, and goes on with another turn 2 that uses the ids of the first.
func (w *writtenFleet) rewound(run string) {
	w.t.Helper()
	turn := func(n int32, said string) {
		w.write(run, schema.TurnAnswered, n, fmt.Sprintf(`{"turn":%d,"message":{"role":"assistant","parts":[{"type":"text","content":%q}]},`+
			`"calls":[{"tool_call_id":"c1","name":"look","arguments":{"at":%q},"replay":"pure"}]}`, n, said, said))
		w.write(run, schema.ToolReturned, n, fmt.Sprintf(`{"tool_call_id":"c1","result":%q}`, said))
	}
	w.write(run, schema.RunStarted, 0, `{"agent":"a","executor":"e"}`)
	turn(1, "one")                                                 // records 2 and 3
	turn(2, "two")                                                 // 4 and 5
	w.write(run, schema.CheckpointMarked, 0, `{"name":"unlucky"}`) // 6
	w.rewind(run, 3)
	turn(2, "again") // 8 and 9
}

// A name of a turn leads to the turn that the run kept. A point that was left behind has another name, which leads to itself.
func TestRunsHistory_RewoundRun_LeftBehindPointsSaySo(t *testing.T) {
	t.Parallel()
	w := newWrittenFleet(t)
	w.rewound("r1")
	said := w.told("runs", "history", "r1")
	require.Equal(t, 1, strings.Count(said, "turn:2 "), said)
	for _, row := range []string{`record:4 +turn.answered +2 +left behind`, `record:5 +tool.returned +2 +left behind`, `record:6 +checkpoint.marked +2 +left behind`} {
		require.Regexp(t, "(?m)^"+row, said)
	}
	require.Equal(t, 3, strings.Count(said, "left behind"), said)
	require.NotContains(t, said, "mark:unlucky")
	require.Contains(t, w.told("runs", "get", "r1", "--at", "record:5", "--view", "state"), `"two"`)
	require.Contains(t, w.told("runs", "get", "r1", "--at", "turn:2", "--view", "state"), `"again"`)
	require.Contains(t, w.told("runs", "history", "r1", "--json"), `"left_behind": true`)
}

// plain stores an event of an executor that has no sequence.
func (w *writtenFleet) plain(run, name string, turn int32, data string) {
	w.t.Helper()
	w.nonce++
	e := w.event(run, name, turn, data)
	w.last[run]--
	e.Sequence, e.ID = 0, fmt.Sprintf("plain-%d", w.nonce)
	w.store(e)
}

// application writes a run with application state and two signals, of which one is consumed.
func (w *writtenFleet) application(run string) {
	w.t.Helper()
	w.write(run, schema.RunStarted, 0, `{"agent":"a","executor":"e"}`)
	w.write(run, schema.StateSet, 0, `{"key":"plan","value":{"step":2}}`)
	w.write(run, schema.StateSet, 0, fmt.Sprintf(`{"key":"notes","value":%q}`, strings.Repeat("x", 2000)))
	for _, id := range []string{"s1", "s2"} {
		w.control(run, 1, &schema.SignalSentData{SignalID: id, Name: "note-" + id, By: "ann"})
	}
	w.write(run, schema.SignalConsumed, 0, `{"signal_ids":["s1"]}`)
}

func TestPlan_ApplicationStateAndSignals_AreShown(t *testing.T) {
	t.Parallel()
	w := newWrittenFleet(t)
	w.application("r1")
	said := w.told("plan", "r1")
	require.Regexp(t, `(?m)^plan +\{"step":2\} +\d+s ago$`, said)
	require.Regexp(t, `(?m)^notes +2.0 KiB +\d+s ago$`, said)
	for _, said := range []string{said, w.told("runs", "get", "r1")} {
		require.Regexp(t, `(?m)^signals +1 not read yet$`, said)
		require.Regexp(t, `(?m)^s2 +note-s2 +\d+s ago$`, said)
		require.NotRegexp(t, `(?m)^s1 `, said)
	}
	w.write("r1", schema.RunEnded, 0, `{"status":"completed"}`)
	require.Eventually(t, func() bool {
		return strings.Contains(w.told("runs", "get", "r1"), "the run ended with 1 signal unread")
	}, time.Minute, pollEvery)
}

// Models use ids of calls more than once: a person's answer is told about the call that was asked about.
func TestRunsShow_CallsShareAnID_NamesTheOneThatWasAskedAbout(t *testing.T) {
	t.Parallel()
	w := newWrittenFleet(t)
	w.write("r1", schema.RunStarted, 0, `{"agent":"a","executor":"e"}`)
	w.write("r1", schema.TurnAnswered, 1, `{"turn":1,"message":{"role":"assistant","parts":[]},"calls":[`+
		`{"tool_call_id":"call_0","occurrence":1,"name":"mail","replay":"hold","arguments":{"to":"Ann"}},{"tool_call_id":"call_0","occurrence":2,"name":"note","replay":"pure"}]}`)
	w.write("r1", schema.ToolDecided, 1, `{"tool_call_id":"call_0","occurrence":1,"decision":"ask","policy":"outside"}`)
	w.write("r1", schema.RunWaiting, 1, `{"interrupt_id":"q1","reason":"tool_approval","tool_call_id":"call_0","occurrence":1,"message":"May I?"}`)
	for _, words := range [][]string{{"runs", "show", "r1"}, {"runs", "show", "r1", "--json"}} {
		said := w.told(words...)
		require.Contains(t, said, "ask about mail", words)
		require.Contains(t, said, "for approval of mail: May I?", words)
		require.NotContains(t, said, "of note", words)
		require.NotContains(t, said, "about note", words)
	}
	// A settlement ends the wait of its own call only.
	w.write("r2", schema.RunStarted, 0, `{"agent":"a","executor":"e"}`)
	w.write("r2", schema.TurnAnswered, 1, `{"turn":1,"message":{"role":"assistant","parts":[]},"calls":[`+
		`{"tool_call_id":"call_0","occurrence":1,"name":"mail","replay":"hold"},{"tool_call_id":"call_0","occurrence":2,"name":"post","replay":"hold"}]}`)
	for i, tool := range []string{"mail", "post"} {
		w.write("r2", schema.ToolCalled, 1, fmt.Sprintf(`{"tool_call_id":"call_0","occurrence":%d,"name":%q,"replay":"hold"}`, i+1, tool))
	}
	require.NoError(t, takeOver(t.Context(), w.js.Conn(), "r2", "e2", schema.TakeoverRequest))
	w.last["r2"], w.epoch["r2"] = 0, 2
	for i, q := range []string{"q1", "q2"} {
		e := w.event("r2", schema.RunWaiting, 1, fmt.Sprintf(`{"interrupt_id":%q,"reason":"tool_in_doubt","tool_call_id":"call_0","occurrence":%d}`, q, i+1))
		e.Source = schema.Source(schema.DefaultFleet, "e2")
		e.Seal()
		w.store(e)
	}
	w.told("settle", "r2", "1", "call_0", "--occurrence", "2", "--how", "abandoned")
	said := w.told("runs", "show", "r2")
	require.Regexp(t, `a person must settle mail call call_0 *\n`, said)
	require.Regexp(t, `waits +\S+… +a person must settle mail`, said)
	require.NotRegexp(t, `waits +\S+… +a person must settle post`, said)
	require.Contains(t, said, "post")
}

func TestRunsShow_HeldAfterReopen_NamesToolAndCall(t *testing.T) {
	t.Parallel()
	w := newWrittenFleet(t)
	w.write("r1", schema.RunStarted, 0, `{"agent":"a","executor":"e"}`)
	w.write("r1", schema.ToolCalled, 1, `{"tool_call_id":"c1","name":"mail","replay":"hold"}`)
	w.write("r1", schema.RunEnded, 0, `{"status":"cancelled"}`)
	w.told("reopen", "r1")
	require.NoError(t, takeOver(t.Context(), w.js.Conn(), "r1", "e2", schema.TakeoverRequest))
	w.last["r1"], w.epoch["r1"] = 0, 3
	e := w.event("r1", schema.RunWaiting, 1, `{"interrupt_id":"q1","reason":"tool_in_doubt","tool_call_id":"c1"}`)
	e.Source = schema.Source(schema.DefaultFleet, "e2")
	e.Seal()
	w.store(e)
	require.Regexp(t, `a person must settle mail call c1 *\n`, w.told("runs", "show", "r1"))
}

// Refused events are in the log like all others: a person must be able to tell them apart, and be told what to run next.
func TestEvents_RefusedOnes_AreMarkedWithTheNextStep(t *testing.T) {
	t.Parallel()
	w := newWrittenFleet(t)
	w.write("r1", schema.RunStarted, 0, `{"agent":"a","executor":"e"}`)
	w.plain("r1", schema.StateSet, 0, `{"key":"plan","value":1}`)
	w.write("r1", schema.ToolReturned, 1, `{"tool_call_id":"c1"}`)
	w.write("r1", schema.RunEnded, 0, `{"status":"completed"}`)
	w.plain("r1", schema.StateSet, 0, `{"key":"plan","value":2}`)
	said := w.told("events", "r1", "--all", "--no-follow")
	require.Regexp(t, `(?m)1\.2 +tool\.returned +refused: unknown_call, `, said)
	require.Regexp(t, `(?m)1\.- +state\.set +refused: run_ended, `, said)
	require.Regexp(t, `(?m)1\.- +state\.set +plan, 1$`, said, "an executor's event without a sequence is no control event")
	require.Equal(t, 2, strings.Count(said, "refused: "), said)
	require.Contains(t, w.told("events", "r1", "--all", "--no-follow", "--json"), `"refused":"run_ended, `)
	var complaints string
	require.Eventually(t, func() bool {
		code, stdout, stderr := w.ask("", "runs", "get", "r1")
		require.Zero(t, code, stderr)
		complaints = stderr
		return strings.Contains(stdout, "2 dead letters")
	}, time.Minute, pollEvery)
	require.Regexp(t, `(?m)^see why 2 events were refused with: waymark .*verify r1$`, complaints)
	require.Eventually(t, func() bool { // the fold worker stores dead letters later than runs get sees them
		_, doctor, _ := w.ask("", "doctor")
		return strings.Contains(doctor, "verify r1")
	}, time.Minute, pollEvery, "a command that is there, on the server that was asked")

	w.rewound("r2")
	said = w.told("events", "r2", "--all", "--no-follow")
	require.Equal(t, 3, strings.Count(said, "left behind: "), said)
	require.Regexp(t, `(?m)1\.4 +turn\.answered +left behind: turn 2, `, said)
	require.Contains(t, said, "2.c      run.resumed")
	require.Equal(t, 3, strings.Count(w.told("events", "r2", "--all", "--no-follow", "--json"), `"left_behind":true`))
	require.Regexp(t, `(?m)^left behind +records 4-6$`, w.told("runs", "get", "r2"))
}

// Cipher text is not shown as if it were text, and a person can answer a question whose schema only the executor can read.
func TestEncryptedFields_ViewsAndInput_NameTheKey(t *testing.T) {
	t.Parallel()
	w := newWrittenFleet(t)
	ref := func(path string) string { return fmt.Sprintf(`{"path":%q,"key_id":"k1","codec":"aes"}`, path) }
	w.write("r1", schema.RunStarted, 0, `{"agent":"a","executor":"e"}`)
	w.write("r1", schema.TurnAnswered, 1, `{"turn":1,"message":{"role":"assistant","parts":[{"type":"text","content":"c2VjcmV0"}]},`+
		`"calls":[{"tool_call_id":"c1","name":"look","arguments":"c2VjcmV0","replay":"pure"},{"tool_call_id":"c2","name":"pay","arguments":"c2VjcmV0","replay":"pure"}],`+
		`"refs":[`+ref("/message/parts/0/content")+`,`+ref("/calls/0/arguments")+`,`+ref("/calls/1/arguments")+`]}`)
	w.write("r1", schema.ToolReturned, 1, `{"tool_call_id":"c1","result":"c2VjcmV0","refs":[`+ref("/result")+`]}`)
	w.write("r1", schema.ToolFailed, 1, `{"tool_call_id":"c2","error":{"type":"io","message":"c2VjcmV0"},"refs":[`+ref("/error/message")+`]}`)
	w.write("r1", schema.StateSet, 0, `{"key":"plan","value":"c2VjcmV0","refs":[`+ref("/value")+`]}`)
	w.write("r1", schema.RunWaiting, 1, `{"interrupt_id":"i1","reason":"human_input","message":"c2VjcmV0","response_schema":"c2VjcmV0","refs":[`+
		ref("/message")+`,`+ref("/response_schema")+`]}`)
	const text = "(encrypted with key k1)"
	for words, times := range map[string]int{
		"events r1 --all --no-follow": 5, "plan r1": 1, "input r1": 2,
	} {
		said := w.told(strings.Fields(words)...)
		require.NotContains(t, said, "c2VjcmV0", words)
		require.Equal(t, times, strings.Count(said, text), "%s:\n%s", words, said)
	}
	require.Contains(t, w.told("input", "r1"), "The daemon stores the answer in plain text and cannot check it")
	asked := w.told("input", "r1", "--json")
	require.Regexp(t, `"response_schema": "k1"`, asked, "a program is told the key")
	require.Contains(t, w.told("input", "r1", "--text", "go on"), "answered")
}
