package service_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/natsd"
	"github.com/waymarkio/waymark/kvstore"
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

func TestJoined_LargerThanAMessage_PagesAddUpWhileTheRunGoesOn(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"in the log", "sealed", "a fork", "recover", "small pages"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := newDamagedWorld(t)
			x := w.writer("run-1")
			x.Start()
			for range 60 {
				x.conversation(50 << 10)
			}
			n := len(x.Acked)
			want := x.state(n).View()
			first, size := "waymark.get.default.run-1", w.client.MaxPayload()
			ask := ""
			switch how {
			case "sealed":
				w.checkpointAt(x, 100, w.sealByHand(x, 90, 20, true))
			case "a fork":
				first = "waymark.get.default.fork"
				w.forkAt(x, "fork", n)
			case "recover":
				first, ask = "waymark.recover.default.run-1", `{"executor":"executor-2","request_id":"r1"}`
			case "small pages":
				ask, size = `{"max_bytes":200000}`, 200_000
			}
			var got schema.StateView
			pages := 0
			for subject, body := first, ask; subject != ""; pages++ {
				m := w.plain(subject, body)
				require.LessOrEqual(t, int64(len(m)), size)
				require.True(t, pages > 0 || int64(len(m)) > size-200_000, "as much as fits")
				reply := decodeAs[schema.GetReply](t, m)
				page := reply.State
				require.Empty(t, page.LeftOut)
				got.Messages, got.Turns, got.Calls = append(page.Messages, got.Messages...), append(page.Turns, got.Turns...), append(page.Calls, got.Calls...)
				subject = ""
				if o := page.Older; o != nil {
					require.Equal(t, o.LastTurn+1, page.Turns[0].Turn)
					require.Equal(t, recorded(want)-recorded(&got), o.Messages)
					subject = o.Subject
					next, err := json.Marshal(o.Request)
					require.NoError(t, err)
					require.Contains(t, string(m), `"request":`+string(next), "unchanged from the answer")
					body = string(next)
				}
				if how != "recover" { // the writer is fenced then
					x.conversation(10)
				}
			}
			require.GreaterOrEqual(t, pages, 3)
			require.Len(t, got.Messages, len(want.Messages))
			require.Equal(t, want.Messages[0], got.Messages[0])
			wanted, err := json.Marshal([]any{want.Messages, want.Turns, want.Calls}, json.Deterministic(true))
			require.NoError(t, err)
			answered, err := json.Marshal([]any{got.Messages, got.Turns, got.Calls}, json.Deterministic(true))
			require.NoError(t, err)
			require.True(t, bytes.Equal(wanted, answered), "the pages are the run as it was when the first was asked for")
		})
	}
}

func TestJoined_MessageLargerThanAReply_SaysWhatIsLeftOut(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.writer("run-1")
	x.Start()
	x.conversation(10)
	x.Turn++
	answer := &schema.TurnAnsweredData{Turn: x.Turn, Message: schema.Message{Role: schema.RoleAssistant}}
	for i := range 8 {
		id := fmt.Sprint("c", i)
		answer.Message.Parts = append(answer.Message.Parts, schema.CallPart(id, "look"))
		answer.Calls = append(answer.Calls, schema.RequestedCall{ToolCallID: id, Name: "look", Replay: schema.ReplayPure})
	}
	x.Publish(answer, x.Turn)
	for i := range 8 {
		x.Publish(&schema.ToolReturnedData{ToolCallID: fmt.Sprint("c", i), Result: jsontext.Value(`"` + strings.Repeat("y", 200<<10+i) + `"`)}, x.Turn)
	}
	reply := decodeAs[schema.GetReply](t, w.plain("waymark.get.default.run-1", ""))
	require.Len(t, reply.State.Messages, 1)
	left := reply.State.LeftOut
	require.Len(t, left, 3)
	require.Equal(t, schema.LeftOut{Path: "/messages/0/parts/7/response", Size: 200<<10 + 9}, left[0])
	require.Empty(t, reply.State.Messages[0].Parts[7].Response)
	require.Len(t, reply.State.Messages[0].Parts[0].Response, 200<<10+2)
	request, err := json.Marshal(reply.State.Older.Request)
	require.NoError(t, err)
	older := decodeAs[schema.GetReply](t, w.plain(reply.State.Older.Subject, string(request)))
	require.Len(t, older.State.Messages, 4)
	require.Nil(t, older.State.Older)
	_, a := w.get("run-1", schema.ViewEvents)
	require.JSONEq(t, `"`+strings.Repeat("y", 200<<10+7)+`"`, string(a.fold(t, "run-1").Calls[8].Result), "the view events has it")
}

// If a run is larger than the daemon folds, the answer has the newest turns, and its requests lead to all others.
func TestJoined_LargerThanTheDaemonHolds_PagesAddUp(t *testing.T) {
	if testing.Short() {
		t.Skip("short: runs of 18 MiB")
	}
	t.Parallel()
	for _, how := range []string{"turns", "messages", "a fork"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			// Pages of 4 MiB: the daemon reads the run for each of them.
			w := newServiceWorldOn(t, natstest.Start(t, natstest.With(func(c *natsd.Config) { c.MaxPayload = 4 << 20 })))
			x := w.writer("run-1")
			x.Start()
			for i := range 180 {
				if how != "messages" {
					x.conversation(100 << 10)
					continue
				}
				text := fmt.Sprint(i, " ", strings.Repeat("m", 100<<10))
				x.Publish(&schema.MessageAddedData{Message: schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(text)}}}, 0)
			}
			want := x.state(len(x.Acked)).View()
			subject, ask := "waymark.get.default.run-1", "{}"
			if how == "a fork" {
				fork := w.forkAt(x, "fork", len(x.Acked))
				fork.conversation(100 << 10)
				subject = "waymark.get.default.fork"
			}
			var got schema.StateView
			runs, points := map[string]bool{}, map[string]bool{}
			for subject != "" {
				page := decodeAs[schema.GetReply](t, w.plain(subject, ask)).State
				require.Empty(t, page.LeftOut)
				got.Messages, got.Turns, got.Calls = append(page.Messages, got.Messages...), append(page.Turns, got.Turns...), append(page.Calls, got.Calls...)
				runs[subject] = true
				if subject = ""; page.Older != nil {
					next, err := json.Marshal(page.Older.Request)
					require.NoError(t, err)
					subject, ask = page.Older.Subject, string(next)
					points[page.Older.Request.At] = true
					require.Equal(t, recorded(want)-recorded(&got)+extra(how, 2), page.Older.Messages)
					require.Equal(t, len(want.Calls)-len(got.Calls)+extra(how, 1), page.Older.Calls)
				}
			}
			require.Greater(t, len(points), 1, "the daemon held a part of it at a time")
			require.Equal(t, how == "a fork", len(runs) == 2, "what a fork forgets is read from its base")
			require.Len(t, got.Messages, len(want.Messages)+extra(how, 3))
			require.Len(t, got.Calls, len(want.Calls)+extra(how, 1))
			require.Len(t, got.Turns, len(want.Turns)+extra(how, 1))
			for i := range want.Messages {
				require.Equal(t, want.Messages[i].Parts, got.Messages[i].Parts)
			}
			for i := range want.Calls {
				require.Equal(t, want.Calls[i].CallKey, got.Calls[i].CallKey)
			}
			taken := decodeAs[schema.RecoverReply](t, w.plain("waymark.recover.default.run-1", `{"executor":"executor-2","request_id":"r1"}`))
			require.EqualValues(t, 2, taken.Epoch)
			require.NotEmpty(t, taken.State.Messages)
		})
	}
}

// recorded counts the messages of an event.
func recorded(v *schema.StateView) (n int) {
	for i := range v.Messages {
		if v.Messages[i].EventID != "" {
			n++
		}
	}
	return n
}

// extra is the number of a fork's own records.
func extra(how string, n int) int {
	if how == "a fork" {
		return n
	}
	return 0
}

func TestJoined_LowPayloadLimit_Kept(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.writer("run-1")
	x.Start()
	for range 30 {
		x.conversation(100)
	}
	for _, most := range []int64{4 << 10, 5000, 6000, 9999} {
		body := w.plain("waymark.get.default.run-1", fmt.Sprintf(`{"max_bytes":%d}`, most))
		require.LessOrEqual(t, int64(len(body)), most)
		reply := decodeAs[schema.GetReply](t, body)
		require.NotEmpty(t, reply.State.Messages)
		require.Equal(t, most, reply.State.Older.Request.MaxBytes)
	}
}

func TestJoined_WrongRequests_AreRefused(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.writer("run-1")
	x.Start()
	x.conversation(10)
	for body, path := range map[string]string{
		`{"view":"whole"}`:                                 "/view",
		`{"before":3}`:                                     "/before",
		`{"at":"record:3","before":100}`:                   "/before",
		`{"at":"record:3","before":-1}`:                    "/before",
		`{"at":"record:3","before":1,"view":"head"}`:       "/before",
		`{"max_bytes":100}`:                                "/max_bytes",
		`{"max_bytes":5000,"view":"events"}`:               "/max_bytes",
		`{"after":1}`:                                      "/after",
		`{"after":1,"view":"state"}`:                       "/after",
		`{"max_bytes":-5000}`:                              "/max_bytes",
		`{"at":"end","before":1,"view":"events"}`:          "/before",
		`{"at":"record:3","before":2,"max_bytes":1000000}`: "",
	} {
		m, err := w.client.Request("waymark.get.default.run-1", []byte(body), testTimeout)
		require.NoError(t, err)
		if path == "" {
			require.Empty(t, m.Header.Get(schema.HeaderErrorCode), "%s", m.Data)
			continue
		}
		e := decodeAs[schema.ServiceError](t, m.Data)
		require.Equal(t, schema.CodeBadRequest, e.Code, body)
		require.JSONEq(t, `{"path":"`+path+`"}`, string(e.Details), body)
	}
}

func TestJoined_EventsAreMissing_SaysSo(t *testing.T) {
	t.Parallel()
	w := newDamagedWorld(t)
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

func TestEvents_NoReplyIsAcknowledged_ErrorSaysSo(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t, func(_ *kvstore.FleetConfig, c *serviceConfig) { c.AckTimeout = 200 * time.Millisecond })
	w.long("run-1", 100, 64<<10)
	sub, err := w.client.SubscribeSync(w.client.NewRespInbox())
	require.NoError(t, err)
	require.NoError(t, w.client.PublishRequest("waymark.get.default.run-1", sub.Subject, []byte(`{"view":"events"}`)))
	var m *nats.Msg
	for n := 1; ; n++ {
		m, err = sub.NextMsg(testTimeout)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(n), m.Header.Get(schema.HeaderReply))
		if m.Header.Get(schema.HeaderErrorCode) != "" {
			break
		}
	}
	e := decodeAs[schema.ServiceError](t, m.Data)
	require.Equal(t, schema.CodeNotAcknowledged, e.Code)
	require.Equal(t, "408", m.Header.Get(schema.HeaderErrorCode))
	require.Contains(t, e.Hint, "Publish an empty message to the reply subject")
	require.EqualValues(t, 1, w.svc.Stats().ClientsGone.Load())
	require.EqualValues(t, 1, w.svc.Stats().Errors()[schema.CodeNotAcknowledged])
}
