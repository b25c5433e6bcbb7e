package service_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// paged reads all pages of a run's default view, the oldest first.
func (w *serviceWorld) paged(run, ask string) (got schema.StateView) {
	w.TB.Helper()
	for subject := "waymark.get.default." + run; subject != ""; {
		page := decodeAs[schema.GetReply](w.TB, w.plain(subject, ask)).State
		got.Messages, got.Turns, got.Calls = append(page.Messages, got.Messages...), append(page.Turns, got.Turns...), append(page.Calls, got.Calls...)
		got.LeftOut = append(got.LeftOut, page.LeftOut...)
		if subject = ""; page.Older != nil {
			next, err := json.Marshal(page.Older.Request)
			require.NoError(w.TB, err)
			subject, ask = page.Older.Subject, string(next)
		}
	}
	return got
}

// A value that is set again or deleted is not in the state any more, and does not count.
func TestJoined_ValueSetOverAndOver_StateIsShown(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a run of 18 MiB")
	}
	t.Parallel()
	w := newServiceWorld(t)
	x := w.writer("run-1")
	x.Start()
	x.conversation(10)
	for i := range 180 {
		x.Publish(&schema.StateSetData{Key: "scratchpad", Value: jsontext.Value(fmt.Sprintf(`"%d %s"`, i, strings.Repeat("s", 100<<10)))}, 0)
		if i%10 == 9 {
			x.Publish(&schema.StateDeletedData{Key: "scratchpad"}, 0)
		}
	}
	x.Publish(&schema.StateSetData{Key: "scratchpad", Value: jsontext.Value(`"done"`)}, 0)
	x.conversation(10)
	reply := decodeAs[schema.GetReply](t, w.plain("waymark.get.default.run-1", "{}"))
	require.Len(t, reply.State.Values, 1)
	require.Len(t, reply.State.Messages, 6)
	require.Nil(t, reply.State.Older)
}

// The pages of a rewound run have exactly the turns that are part of it, however many were abandoned.
func TestJoined_MuchWasLeftBehind_StateIsTheRunAsItIs(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a run of 18 MiB")
	}
	t.Parallel()
	w := newServiceWorld(t)
	x := w.writer("run-1")
	x.Start()
	x.conversation(10)
	at := len(x.Acked)
	for range 180 {
		x.conversation(100 << 10)
	}
	reply, _ := w.rewind("run-1", fmt.Sprintf("record:%d", at), schema.ViewHead)
	require.Equal(t, int32(1), reply.Head.Turn)
	x.resume(reply, "executor-1")
	x.Turn = 1
	x.conversation(20)
	x.conversation(30)
	got := w.paged("run-1", "{}")
	require.Len(t, got.Turns, 3)
	require.Len(t, got.Calls, 3)
	require.Len(t, got.Messages, 9)
	require.Len(t, got.Messages[8].Parts[0].Response, 32)
}

// A call with long texts is one entry: its excess is left out, and the pages before it can be reached.
func TestJoined_CallWithALongSideEffect_PagesAreReached(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.writer("run-1")
	x.Start()
	x.conversation(10)
	x.Turn++
	asks := schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.CallPart("c1", "mail")}}
	x.Publish(&schema.TurnAnsweredData{Turn: x.Turn, Message: asks, Calls: []schema.RequestedCall{{
		ToolCallID: "c1", Name: "mail", SideEffect: strings.Repeat("sends a letter ", 1000), IdempotencyKey: strings.Repeat("k", 9000), Replay: schema.ReplayPure,
	}}}, x.Turn)
	x.Publish(&schema.ToolReturnedData{ToolCallID: "c1", Result: jsontext.Value(`1`)}, x.Turn)
	x.conversation(10)
	got := w.paged("run-1", `{"max_bytes":8192}`)
	require.Len(t, got.Messages, 8)
	require.Len(t, got.Calls, 3)
	require.Equal(t, []schema.LeftOut{{Path: "/calls/0/side_effect", Size: 15002}, {Path: "/calls/0/idempotency_key", Size: 9002}}, got.LeftOut)
}
