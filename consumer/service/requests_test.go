package service_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// goOnFor writes turns, and seals them with everything before them into more than three segments.
func (w *serviceWorld) goOnFor(x *writer, turns int) {
	w.TB.Helper()
	for range turns {
		x.TurnOf(10)
	}
	w.checkpointAt(x, len(x.Acked), w.sealByHand(x, len(x.Acked)-2, 6, true))
}

func TestSignal_RepeatedAfterManySegments_OneSignal(t *testing.T) {
	t.Parallel()
	for _, otherEpoch := range []bool{false, true} {
		t.Run(fmt.Sprintf("other epoch %v", otherEpoch), func(t *testing.T) {
			t.Parallel()
			w := newServiceWorld(t)
			x := w.aRun("run-1", 1, 10)
			first := w.control(schema.VerbSignal, "run-1", signal("s1", `{"n":1}`))
			x.adopt(first.Stream)
			x.Publish(&schema.SignalConsumedData{SignalIDs: []string{"s1"}}, 0)
			w.goOnFor(x, 12)
			if otherEpoch {
				w.recover("run-1", takeover("executor-2", "r1"))
			}
			require.Equal(t, repeated(first), w.control(schema.VerbSignal, "run-1", signal("s1", `{"n":1}`)))
			require.Equal(t, schema.CodeConflict, w.refused(schema.VerbSignal, "run-1", signal("s1", `{"n":2}`)).Code)
			require.Empty(t, w.head("run-1").Signals)
		})
	}
}

func TestCancel_RepeatedAfterReopenAndManySegments_StopsNothing(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	req := schema.CancelRequest{By: "alice", RequestID: "c1"}
	first := w.control(schema.VerbCancel, "run-1", req)
	x.adopt(first.Stream)
	x.end(schema.StatusCancelled)
	reopened, _ := w.recover("run-1", schema.RecoverRequest{Executor: "executor-2", RequestID: "r1", Reason: schema.TakeoverReopen})
	x.resume(reopened, "executor-2")
	x.adopt(reopened.LastStream)
	w.goOnFor(x, 12)
	require.Equal(t, repeated(first), w.control(schema.VerbCancel, "run-1", req))
	require.False(t, w.head("run-1").CancelRequested)
}

// Ann allows the deletion of the copy, and her client repeats the answer after the agent has asked another thing under
// the same interrupt id.
func TestInput_RepeatedForAnotherQuestion_AnswersNothing(t *testing.T) {
	t.Parallel()
	for name, between := range map[string]func(*serviceWorld, *writer, *schema.ControlReply, string){
		"many segments": func(w *serviceWorld, x *writer, first *schema.ControlReply, _ string) {
			x.adopt(first.Stream)
			w.goOnFor(x, 12)
		},
		"a rewind": func(w *serviceWorld, x *writer, _ *schema.ControlReply, at string) {
			reply, _ := w.recover("run-1", schema.RecoverRequest{
				Executor: "executor-1", Reason: schema.TakeoverRewind, RequestID: "back", At: at, View: schema.ViewHead,
			})
			x.resume(reply, "executor-1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newServiceWorld(t)
			x := w.aRun("run-1", 1, 10)
			at := fmt.Sprintf("record:%d", w.head("run-1").Records)
			ask := func(message string) {
				x.Publish(&schema.RunWaitingData{InterruptID: "q1", Reason: schema.WaitHumanInput, Message: message}, 0)
			}
			ask("May I delete the copy?")
			yes := schema.InputRequest{InterruptID: "q1", EventID: w.asked("run-1", "q1"), Payload: value(`"yes"`), By: "ann"}
			first := w.control(schema.VerbInput, "run-1", yes)
			between(w, x, first, at)
			ask("May I delete the original?")
			require.Equal(t, repeated(first), w.control(schema.VerbInput, "run-1", yes))
			head := w.head("run-1")
			require.Len(t, head.Interrupts, 1, "the second question has no answer")
			require.Equal(t, "May I delete the original?", head.Interrupts[0].Message)
		})
	}
}

// forge stores a message that is no accepted event under the id that a control event had in another run.
func (w *serviceWorld) forge(run string, there *schema.ControlReply, other string, header nats.Header, body string) {
	w.TB.Helper()
	header["ce-id"] = []string{strings.Replace(there.EventID, other+".", run+".", 1)}
	_, err := w.JS.PublishMsg(w.TB.Context(), &nats.Msg{Subject: w.Names.EventSubject(run), Header: header, Data: []byte(body)})
	require.NoError(w.TB, err)
}

// An executor that knows what others will send stores records under the ids of their events first.
func TestControl_RefusedRecordWithItsID_IsNoFirstTry(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	ask := func(run string) map[string]any {
		x := w.aRun(run, 1, 10)
		x.openCall("c1", schema.ReplayHold)
		w.recover(run, takeover("executor-2", "r-"+run))
		x.resume(&schema.RecoverReply{Epoch: 2, LastStream: w.head(run).Position.Stream}, "executor-2")
		x.wait("q1", "")
		return map[string]any{
			schema.VerbSignal: signal("order-4711", `1`),
			schema.VerbInput:  schema.InputRequest{InterruptID: "q1", EventID: w.asked(run, "q1"), Payload: value(`"no"`), By: "ann"},
			schema.VerbSettle: schema.SettleRequest{CallKey: schema.CallKey{Turn: 2, ToolCallID: "c1"}, CallEpoch: 1, How: schema.SettledDecided, Result: value(`1`), By: "ann"},
			schema.VerbCancel: schema.CancelRequest{RequestID: "stop-1", By: "ann"},
			schema.VerbMark:   schema.MarkRequest{Name: "good", RequestID: "mark-1", By: "ann"},
		}
	}
	ids := make(map[string]*schema.ControlReply)
	for verb, req := range ask("first") {
		ids[verb] = w.control(verb, "first", req)
	}
	requests := ask("other")
	for _, there := range ids {
		w.forge("other", there, "first", nats.Header{}, `{}`)
		w.forge("other", there, "first", nats.Header{
			"ce-specversion": {"1.0"}, "ce-source": {"urn:x"}, "ce-type": {schema.TypeOf(schema.SignalSent)}, "ce-subject": {"other"}, "ce-epoch": {"1"},
		}, `{}`)
	}
	for verb, req := range requests {
		reply := w.control(verb, "other", req)
		require.False(t, reply.Already, verb)
		require.Equal(t, repeated(reply), w.control(verb, "other", req), verb)
	}
	head := w.head("other")
	require.Len(t, head.Signals, 1)
	require.Empty(t, head.Interrupts)
	require.Empty(t, head.OpenCalls)
	require.True(t, head.CancelRequested)
}

// In a fleet without keys an executor stores an accepted event under the name of what others will ask for.
func TestControl_EventOfAnotherTypeWithItsName_IsNoFirstTry(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	requests := map[string]any{
		schema.VerbCancel:  schema.CancelRequest{RequestID: "stop-1", By: "ann"},
		schema.VerbMark:    schema.MarkRequest{Name: "good", RequestID: "mark-1", By: "ann"},
		schema.VerbHandoff: schema.HandoffRequest{HandoffID: "h1", Action: schema.HandoffDecline, By: "ann"},
	}
	w.aRun("first", 1, 10).offer("h1", "threshold_critical")
	w.aRun("other", 1, 10)
	for verb, req := range requests {
		there := w.control(verb, "first", req)
		w.forge("other", there, "first", nats.Header{
			"ce-specversion": {"1.0"}, "ce-source": {"urn:x"}, "ce-type": {schema.TypeOf(schema.SignalSent)}, "ce-subject": {"other"}, "ce-epoch": {"1"},
			"content-type": {"application/json"}, "ce-time": {"2026-01-01T00:00:00Z"},
		}, fmt.Sprintf(`{"signal_id":%q,"name":"go"}`, verb))
	}
	require.Equal(t, len(requests), w.head("other").Requests.Len(), "the fold accepts the events")
	for verb, req := range requests {
		require.Equal(t, schema.CodeConflict, w.refused(verb, "other", req).Code, verb)
	}
	require.False(t, w.control(schema.VerbCancel, "other", schema.CancelRequest{RequestID: "stop-2", By: "ann"}).Already)
	require.True(t, w.head("other").CancelRequested)
}

// The server drops a message whose id another message had. The ids of control events cannot be known before.
func TestSignal_MessageIDTakenByAnExecutor_Stored(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.aRun("first", 1, 10)
	w.aRun("other", 1, 10)
	there := w.control(schema.VerbSignal, "first", signal("order-4711", `1`))
	_, err := w.JS.PublishMsg(t.Context(), &nats.Msg{Subject: w.Names.EventSubject("other"), Data: []byte(`{}`)},
		jetstream.WithMsgID(strings.Replace(there.EventID, "first.", "other.", 1)))
	require.NoError(t, err)
	require.False(t, w.control(schema.VerbSignal, "other", signal("order-4711", `1`)).Already)
	require.Len(t, w.head("other").Signals, 1)
}

// A person's decision about one attempt at a call settles no other one, whatever stands in the log.
func TestSettle_RecordForgedUnderTheSeenAttempt_OtherAttemptStaysOpen(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	x.openCall("c1", schema.ReplayHold)
	taken, _ := w.recover("run-1", takeover("executor-2", "r1"))
	seen := w.head("run-1").OpenCalls[0]
	first := w.control(schema.VerbSettle, "run-1", schema.SettleRequest{CallKey: seen.CallKey, CallEpoch: seen.Epoch, How: schema.SettledRerun, By: "bob"})
	x.resume(taken, "executor-2")
	x.Last = uint64(first.Stream)
	x.Publish(&schema.ToolCalledData{ToolCallID: "c1", Name: "send"}, 2)
	w.recover("run-1", takeover("executor-3", "r2"))
	w.forge("run-1", first, "run-1", nats.Header{}, `{}`)
	e := w.refused(schema.VerbSettle, "run-1", schema.SettleRequest{CallKey: seen.CallKey, CallEpoch: seen.Epoch, How: schema.SettledDecided, Result: value(`1`), By: "alice"})
	require.Equal(t, schema.CodeConflict, e.Code)
	require.Len(t, w.head("run-1").InDoubt(), 1)
}

// A signal costs the same in a run of any length.
func TestSignal_LongRun_ReadsAsMuchAsInAShortOne(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	nc := w.Server.Conn(t)
	sub, err := nc.SubscribeSync("$JS.API.>")
	require.NoError(t, err)
	answers, err := nc.SubscribeSync("_INBOX.>")
	require.NoError(t, err)
	require.NoError(t, sub.SetPendingLimits(-1, -1))
	require.NoError(t, answers.SetPendingLimits(-1, -1))
	seen := func() (requests, bytes int) {
		require.NoError(t, nc.Flush())
		requests, _, err := sub.Pending()
		require.NoError(t, err)
		_, bytes, err = answers.Pending()
		require.NoError(t, err)
		return requests, bytes
	}
	cost := func(run string, turns int) (requests, bytes int) {
		x := w.aRun(run, turns, 100)
		w.checkpointAt(x, len(x.Acked), schema.SegmentIndex{})
		w.head(run) // the service knows the checkpoint from then on
		before, read := seen()
		w.control(schema.VerbSignal, run, signal("s1", `1`))
		after, readThen := seen()
		return after - before, readThen - read
	}
	cost("first", 1) // the service opens what it needs
	short, few := cost("short", 2)
	long, many := cost("long-", 100)
	require.Equal(t, short, long, "requests")
	require.Less(t, many, few+1<<10, "bytes")
}

func TestControl_RunWithTheMostRequests_TakesOnlyWhatNeedsNoMemory(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	x.wait("q1", "")
	first := w.control(schema.VerbSignal, "run-1", signal("s1", `1`))
	x.adopt(first.Stream)
	fill := func(n int) {
		for w.head("run-1").Requests.Len() < n {
			for range n - w.head("run-1").Requests.Len() {
				e, err := schema.NewControl("default", "service-1", "run-1", 1, schema.RequestNonce(schema.RequestName(fmt.Sprint(x.Last))), &schema.CheckpointMarkedData{Name: "m"}, time.Now())
				require.NoError(t, err)
				x.Send(e)
			}
		}
	}
	fill(schema.MaxRequests - schema.ReservedRequests)
	e := w.refused(schema.VerbSignal, "run-1", signal("s2", `1`))
	require.Equal(t, schema.CodeRunFull, e.Code)
	require.Contains(t, e.Hint, "hand-off")
	require.Equal(t, repeated(first), w.control(schema.VerbSignal, "run-1", signal("s1", `1`)), "it has forgotten none")
	mark := schema.MarkRequest{Name: "mine", By: "ann", RequestID: "m1"}
	marked := w.control(schema.VerbMark, "run-1", mark)
	x.adopt(marked.Stream)
	fill(schema.MaxRequests)
	require.Equal(t, repeated(marked), w.control(schema.VerbMark, "run-1", mark))
	mark.Name, mark.RequestID = "another", "m2"
	require.Equal(t, schema.CodeRunFull, w.refused(schema.VerbMark, "run-1", mark).Code)
	require.Equal(t, schema.CodeRunFull, w.refused(schema.VerbRecover, "run-1", schema.RecoverRequest{
		Executor: "executor-1", Reason: schema.TakeoverRewind, RequestID: "back", At: "record:3", View: schema.ViewHead,
	}).Code)
	mark.RequestID = ""
	w.control(schema.VerbMark, "run-1", mark)
	answer := schema.InputRequest{InterruptID: "q1", EventID: w.asked("run-1", "q1"), Payload: value(`1`), By: "ann"}
	w.control(schema.VerbInput, "run-1", answer)
	require.Equal(t, schema.CodeUnknownInterrupt, w.refused(schema.VerbInput, "run-1", answer).Code, "nothing is answered twice")
	w.control(schema.VerbCancel, "run-1", schema.CancelRequest{By: "ann"})
	require.Equal(t, schema.MaxRequests, w.head("run-1").Requests.Len())
}
