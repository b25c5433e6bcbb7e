package service_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// plain sends a request like a client that knows only request and reply.
func (w *serviceWorld) plain(subject, body string) []byte {
	w.TB.Helper()
	m, err := w.client.Request(subject, []byte(body), testTimeout)
	require.NoError(w.TB, err)
	require.Empty(w.TB, m.Header.Get(schema.HeaderErrorCode), "%s", m.Data)
	require.LessOrEqual(w.TB, int64(m.Size()), w.client.MaxPayload())
	return m.Data
}

// conversation publishes a turn with a call: a task, an answer that asks for the call, and its result of so many bytes.
func (x *writer) conversation(bytes int) {
	x.Turn++
	task := schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(fmt.Sprint("task ", x.Turn))}}
	answer := schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("I look."), schema.CallPart("c1", "look")}}
	x.Publish(&schema.TurnStartedData{Turn: x.Turn, Messages: []schema.Message{task}}, x.Turn)
	x.Publish(&schema.TurnAnsweredData{Turn: x.Turn, Message: answer, Calls: []schema.RequestedCall{
		{ToolCallID: "c1", Name: "look", Arguments: jsontext.Value(`{"n":12345678901234567890.50}`), Replay: schema.ReplayPure},
	}}, x.Turn)
	x.Publish(&schema.ToolReturnedData{ToolCallID: "c1", Result: jsontext.Value(`"` + strings.Repeat("x", bytes) + `"`)}, x.Turn)
}

func TestJoined_PlainRequest_OneReplyHasTheConversation(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.writer("run-1")
	x.Start()
	x.conversation(3)
	x.conversation(3)
	body := w.plain("waymark.get.default.run-1", "")
	require.Equal(t, 4, bytes.Count(body, []byte(`12345678901234567890.50`))+bytes.Count(body, []byte(`"response":"xxx"`)), "to the letter, and once")
	reply := decodeAs[schema.GetReply](t, body)
	requireView(t, x.state(len(x.Acked)), reply.State)
	require.Len(t, reply.State.Messages, 6)

	body = w.plain("waymark.recover.default.run-1", `{"executor":"executor-2","request_id":"r1"}`)
	taken := decodeAs[schema.RecoverReply](t, body)
	require.EqualValues(t, 2, taken.Epoch)
	require.Len(t, taken.State.Messages, 6)
	require.Len(t, taken.State.Takeovers, 1)
	x.resume(taken, "executor-2")
	x.conversation(3)
	again := decodeAs[schema.RecoverReply](t, w.plain("waymark.recover.default.run-1", `{"executor":"executor-2","request_id":"r1"}`))
	require.EqualValues(t, 2, again.Epoch, "the same takeover")
	require.Len(t, again.State.Messages, 9, "the run as it is now")
	require.EqualValues(t, 4, again.NextSequence)
	require.EqualValues(t, 1, w.svc.Stats().Takeovers.Load())

	head := decodeAs[schema.GetReply](t, w.plain("waymark.get.default.run-1", `{"view":"head"}`))
	require.Equal(t, again.Head, head.Head)
	require.Nil(t, head.State)
}

func TestJoined_RunInEachState_IsAnswered(t *testing.T) {
	t.Parallel()
	for name, prepare := range runStates {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newServiceWorld(t)
			x := w.writer("run-1")
			x.Start()
			x.conversation(10)
			x.openCall("call-x", schema.ReplayHold)
			prepare(x)
			reply := decodeAs[schema.GetReply](t, w.plain("waymark.get.default.run-1", ""))
			x.Stamp()
			want := x.state(len(x.Acked))
			require.Equal(t, want.Head, reply.Head)
			requireView(t, want, reply.State)
			require.Equal(t, schema.OutcomeOpen, reply.State.Calls[1].Outcome)
		})
	}
}

// An answer that is larger than a message comes in parts, also after the run was taken over and from a fork.
func TestJoined_LargerThanAMessage_ComesInParts(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"in the log", "sealed", "a fork", "recover"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := newServiceWorld(t)
			x := w.writer("run-1")
			x.Start()
			for range 60 {
				x.conversation(50 << 10)
			}
			n, verb, run := len(x.Acked), schema.VerbGet, "run-1"
			request := any(schema.GetRequest{})
			switch how {
			case "sealed":
				w.checkpointAt(x, 100, w.sealByHand(x, 90, 20, true))
			case "a fork":
				run = "fork"
				w.forkAt(x, "fork", n)
			case "recover":
				verb, request = schema.VerbRecover, takeover("executor-2", "r1")
			}
			want := x.state(n).View()
			a, err := w.ask(verb, run, request)
			require.NoError(t, err)
			require.GreaterOrEqual(t, a.parts, 2)
			require.LessOrEqual(t, int64(a.bytes), int64(a.parts+1)*w.client.MaxPayload())
			got := decodeAs[schema.GetReply](t, a.first).State
			wanted, err := json.Marshal([]any{want.Messages, want.Turns, want.Calls}, json.Deterministic(true))
			require.NoError(t, err)
			answered, err := json.Marshal([]any{got.Messages, got.Turns, got.Calls}, json.Deterministic(true))
			require.NoError(t, err)
			require.True(t, bytes.Equal(wanted, answered))
		})
	}
}

// Of a run that is larger than the daemon folds, the state is refused before anything is read or taken over.
func TestJoined_LargerThanTheDaemonFolds_IsRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a run of 18 MiB")
	}
	t.Parallel()
	w := newServiceWorld(t)
	x := w.writer("run-1")
	x.Start()
	for range 180 {
		x.conversation(100 << 10)
	}
	e := w.refused(schema.VerbGet, "run-1", schema.GetRequest{})
	require.Equal(t, schema.CodeTooLarge, e.Code)
	require.Contains(t, e.Hint, "view events")
	require.Equal(t, schema.CodeTooLarge, w.refused(schema.VerbRecover, "run-1", takeover("executor-2", "r1")).Code)
	reply, a := w.get("run-1", schema.ViewEvents)
	require.EqualValues(t, 1, reply.Head.Epoch, "nothing was taken over")
	require.Equal(t, reply.Head.Digest, a.fold(t, "run-1").Head.Digest)
}

func TestJoined_WrongRequests_AreRefused(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.writer("run-1")
	x.Start()
	x.conversation(10)
	for body, path := range map[string]string{
		`{"view":"whole"}`:           "/view",
		`{"before":3}`:               "/before",
		`{"after":1}`:                "/after",
		`{"after":1,"view":"state"}`: "/after",
	} {
		m, err := w.client.Request("waymark.get.default.run-1", []byte(body), testTimeout)
		require.NoError(t, err)
		e := decodeAs[schema.ServiceError](t, m.Data)
		require.Equal(t, schema.CodeBadRequest, e.Code, body)
		require.JSONEq(t, `{"path":"`+path+`"}`, string(e.Details), body)
	}
}

func TestJoined_EventsAreMissing_SaysSo(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.writer("run-1")
	x.Start()
	for range 3 {
		x.conversation(10)
	}
	w.deleteMsg(x.Acked[4].Stream)
	reply := decodeAs[schema.GetReply](t, w.plain("waymark.get.default.run-1", ""))
	require.False(t, reply.Complete)
	require.NotEmpty(t, reply.Gaps)
	require.NotEmpty(t, reply.State.Messages)
}
