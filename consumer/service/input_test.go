package service_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

const yesOrNo = `{"type":"object","properties":{"ok":{"type":"boolean"},"why":{"type":"string","maxLength":5}},"required":["ok"]}`

// wait publishes that the run waits for an answer.
func (x *writer) wait(id, responseSchema string) schema.StreamSequence {
	x.World.TB.Helper()
	return x.Publish(&schema.RunWaitingData{InterruptID: id, Reason: schema.WaitHumanInput, Message: "go on?", ResponseSchema: value(responseSchema)}, 0)
}

func answerTo(id, payload string) schema.InputRequest {
	return schema.InputRequest{InterruptID: id, Payload: value(payload), By: "alice"}
}

// value is a JSON text, nil for none.
func value(text string) jsontext.Value {
	if text == "" {
		return nil
	}
	return jsontext.Value(text)
}

// repeated is the reply to a request that an earlier one has done.
func repeated(first *schema.ControlReply) *schema.ControlReply {
	again := *first
	again.Already = true
	return &again
}

func (w *serviceWorld) control(verb, run string, req any) *schema.ControlReply {
	w.TB.Helper()
	a, err := w.ask(verb, run, req)
	require.NoError(w.TB, err)
	return decodeAs[schema.ControlReply](w.TB, a.first)
}

// Only the executor that asked has the key of its schema.
func TestInput_EncryptedSchema_AnswerIsNotChecked(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	for _, asked := range []schema.RunWaitingData{
		{InterruptID: "w1", ResponseSchema: value(`"c2VjcmV0"`), Refs: []schema.Ref{{Path: "/response_schema", KeyID: "k1", Codec: "aes"}}},
		{InterruptID: "w2", Refs: []schema.Ref{{Path: "/response_schema", KeyID: "k1", Codec: "aes", DataRef: schema.DataRef("run-1", strings.Repeat("0", 64)), Size: 1}}},
	} {
		asked.Reason = schema.WaitHumanInput
		x.Publish(&asked, 0)
	}
	for _, id := range []string{"w1", "w2"} {
		w.control(schema.VerbInput, "run-1", answerTo(id, `{"anything":1}`))
	}
}

func TestAnswer_Valid_EndsWait(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	x.wait("w1", yesOrNo)
	reply := w.control(schema.VerbInput, "run-1", answerTo("w1", `{"ok":true}`))
	got, _ := w.get("run-1", schema.ViewState)
	require.Empty(t, got.Head.Interrupts)
	require.Equal(t, schema.StatusRunning, got.Head.Status)
	require.Equal(t, schema.Position{Stream: reply.Stream, ID: reply.EventID}, got.Head.Position)
	require.Zero(t, got.Head.Counts.DeadLetters)
	require.JSONEq(t, `{"ok":true}`, string(got.State.Waits[0].Input.Payload))
	require.EqualValues(t, 1, w.svc.Stats().Inputs.Load())
}

func TestAnswer_Invalid_Refused(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	x.wait("w1", yesOrNo)
	x.wait("broken", `{"type":"text"}`)
	x.wait("remote", `{"$ref":"http://127.0.0.1:1/s.json"}`)
	x.wait("free", ``)
	ended := w.aRun("ended", 1, 10)
	ended.wait("w1", yesOrNo)
	ended.Publish(&schema.RunEndedData{Status: "failed"}, 0)
	held := w.aRun("held", 1, 10)
	held.openCall("call-x", schema.ReplayHold)
	taken, _ := w.recover("held", takeover("executor-2", "req-1"))
	held.resume(taken, "executor-2")
	held.Publish(&schema.RunWaitingData{InterruptID: "doubt", Reason: schema.WaitToolInDoubt, ToolCallID: "call-x"}, 2)
	req := func(change func(*schema.InputRequest)) schema.InputRequest {
		r := answerTo("w1", `{"ok":true}`)
		change(&r)
		return r
	}
	for _, c := range []struct {
		name, run string
		req       any
		code      schema.Code
		says      string
		details   string
	}{
		{"what the run does not wait for", "run-1", answerTo("w9", `{}`), schema.CodeUnknownInterrupt, `waits for "w1" (human_input)`, ``},
		{"a run that has ended", "ended", answerTo("w1", `{"ok":true}`), schema.CodeRunEnded, "failed", ``},
		{"a run that does not exist", "unknown", answerTo("w1", `{}`), schema.CodeNotFound, "unknown", ``},
		{
			"what was not asked for", "run-1", answerTo("w1", `{"ok":"yes","why":"because"}`), schema.CodeInvalidAnswer, `at "/ok"`,
			`[{"path":"/ok","problem":"got string, want boolean"},{"path":"/why","problem":"maxLength: got 7, want 5"}]`,
		},
		{"nothing where something is asked for", "run-1", answerTo("w1", ``), schema.CodeInvalidAnswer, "is required", `[{"path":"","problem":"is required"}]`},
		{"a schema that is none", "run-1", answerTo("broken", `{}`), schema.CodeInvalidAnswer, "/type", ``},
		{"a schema that leads elsewhere", "run-1", answerTo("remote", `{}`), schema.CodeInvalidAnswer, "below $defs of the outermost schema", ``},
		{"a call in doubt, which wants to be settled", "held", answerTo("doubt", `{}`), schema.CodeConflict, "call-x", ``},
		{"no interrupt", "run-1", req(func(r *schema.InputRequest) { r.InterruptID = "" }), schema.CodeBadRequest, "/interrupt_id", ``},
		{"an answer without a sender", "run-1", req(func(r *schema.InputRequest) { r.By = "" }), schema.CodeBadRequest, "/by", ``},
		{"the word of the daemon", "run-1", req(func(r *schema.InputRequest) { r.Status = "expired" }), schema.CodeBadRequest, "/status", ``},
		{"an unknown status", "run-1", req(func(r *schema.InputRequest) { r.Status = "maybe" }), schema.CodeBadRequest, "/status", ``},
		{"an answer without a question", "run-1", []byte(`{"interrupt_id":"w1","payload":{"ok":true},"by":"alice"}`), schema.CodeBadRequest, "/event_id", ``},
		{"a payload that no event carries", "run-1", answerTo("free", `"`+strings.Repeat("x", 520<<10)+`"`), schema.CodeTooLarge, "at most", ``},
		{"a payload that the fold would refuse", "run-1", answerTo("free", nested(600)), schema.CodeBadRequest, "nested", ``},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := w.refused(schema.VerbInput, c.run, c.req)
			require.Equal(t, c.code, e.Code, e.Message)
			require.Contains(t, e.Message, c.says)
			if c.details != "" {
				require.JSONEq(t, c.details, string(e.Details))
			}
			if c.code == schema.CodeInvalidAnswer {
				require.NotEmpty(t, decodeAs[[]map[string]string](t, e.Details))
			}
		})
	}
	got, _ := w.get("run-1", schema.ViewHead)
	require.Len(t, got.Head.Interrupts, 4, "nothing was changed")
	require.Equal(t, x.Model(), got.Head)
}

func TestAnswer_Cancelled_NeedsNoPayloadOrSchema(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	for _, s := range []string{yesOrNo, `{"type":"text"}`, ``} {
		x.wait("w1", s)
		w.control(schema.VerbInput, "run-1", schema.InputRequest{InterruptID: "w1", Status: "cancelled", By: "alice"})
		got, _ := w.get("run-1", schema.ViewHead)
		require.Empty(t, got.Head.Interrupts)
		x.Last = uint64(got.Head.Position.Stream)
	}
}

func TestAnswer_NoSchema_Accepted(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	x.wait("w1", ``)
	x.wait("w2", ``)
	w.control(schema.VerbInput, "run-1", answerTo("w1", `["anything"]`))
	w.control(schema.VerbInput, "run-1", answerTo("w2", ``))
	got, _ := w.get("run-1", schema.ViewHead)
	require.Empty(t, got.Head.Interrupts)
	require.Zero(t, got.Head.Counts.DeadLetters)
}

// The first answer stays. A second sender is told so, unless it repeats the same answer.
func TestAnswer_Repeated_OneEvent(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	x.wait("w1", yesOrNo)
	req := answerTo("w1", `{"ok":true}`)
	req.EventID = w.asked("run-1", "w1")
	first := w.control(schema.VerbInput, "run-1", req)
	require.Equal(t, repeated(first), w.control(schema.VerbInput, "run-1", req))
	for _, other := range []func(*schema.InputRequest){
		func(r *schema.InputRequest) { r.By = "bob" },
		func(r *schema.InputRequest) { r.Payload = value(`{"ok":false}`) },
		func(r *schema.InputRequest) { r.Status, r.Payload = schema.InputCancelled, nil },
	} {
		again := req
		other(&again)
		e := w.refused(schema.VerbInput, "run-1", again)
		require.Equal(t, schema.CodeUnknownInterrupt, e.Code)
		require.Contains(t, e.Message, `question "w1" of run run-1 was answered already, as resolved by alice`)
	}

	w.recover("run-1", takeover("executor-2", "req-9"))
	require.Equal(t, repeated(first), w.control(schema.VerbInput, "run-1", req), "in a later epoch, too")
	got, _ := w.get("run-1", schema.ViewHead)
	require.Zero(t, got.Head.Counts.DeadLetters)
}

func TestAnswer_Racing_OneAccepted(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	x.wait("w1", yesOrNo)
	x.wait("w2", yesOrNo)
	questions := []string{w.asked("run-1", "w1"), w.asked("run-1", "w2")}
	var wg sync.WaitGroup
	errs := make([]error, 8)
	same := make([]*schema.ControlReply, 8)
	for i := range errs {
		wg.Go(func() {
			req := answerTo("w1", `{"ok":true}`)
			req.By, req.EventID = fmt.Sprintf("person-%d", i), questions[0]
			_, errs[i] = w.ask(schema.VerbInput, "run-1", req)
		})
		wg.Go(func() {
			req := answerTo("w2", `{"ok":false}`)
			req.EventID = questions[1]
			if a, err := w.ask(schema.VerbInput, "run-1", req); err == nil {
				same[i] = decodeAs[schema.ControlReply](t, a.first)
			}
		})
	}
	wg.Wait()
	requireOneWon(t, errs, schema.CodeUnknownInterrupt)
	for i := range same {
		require.NotNil(t, same[i])
		require.Equal(t, repeated(same[0]), repeated(same[i]), "one request, however often it is asked")
	}
	got, _ := w.get("run-1", schema.ViewHead)
	require.Zero(t, got.Head.Counts.DeadLetters)
}

func TestAnswer_SchemaSealed_Found(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 3, 10)
	x.wait("w1", yesOrNo)
	sealed := len(x.Acked)
	for range 4 {
		x.TurnOf(10)
	}
	w.checkpointAt(x, len(x.Acked), w.sealByHand(x, sealed+6, 3, true))
	e := w.refused(schema.VerbInput, "run-1", answerTo("w1", `{"ok":1}`))
	require.Equal(t, schema.CodeInvalidAnswer, e.Code, e.Message)
	w.control(schema.VerbInput, "run-1", answerTo("w1", `{"ok":true}`))
}

func TestAnswer_RepeatedAfterSeal_Found(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	x.wait("w1", yesOrNo)
	req := answerTo("w1", `{"ok":true}`)
	req.EventID = w.asked("run-1", "w1")
	first := w.control(schema.VerbInput, "run-1", req)
	x.adopt(first.Stream)
	for range 3 {
		x.TurnOf(10)
	}
	w.checkpointAt(x, len(x.Acked), w.sealByHand(x, len(x.Acked)-2, 12, true))
	require.Equal(t, repeated(first), w.control(schema.VerbInput, "run-1", req))
}

// adopt adds a control event to the writer's model of its run.
func (x *writer) adopt(at schema.StreamSequence) {
	x.World.TB.Helper()
	stream, err := x.World.JS.Stream(x.World.TB.Context(), x.World.Names.EventStream())
	require.NoError(x.World.TB, err)
	m, err := stream.GetMsg(x.World.TB.Context(), uint64(at))
	require.NoError(x.World.TB, err)
	x.Acked = append(x.Acked, schema.NewRecord(at, m.Header, m.Data))
	x.Last = uint64(at)
}

func TestAnswer_SchemaLost_Reported(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	at := x.wait("w1", yesOrNo)
	x.TurnOf(10)
	w.checkpointAt(x, len(x.Acked), schema.SegmentIndex{})
	w.deleteMsg(at)
	e := w.refused(schema.VerbInput, "run-1", answerTo("w1", `{"ok":true}`))
	require.Equal(t, schema.CodeDamaged, e.Code, e.Message)
	w.control(schema.VerbInput, "run-1", schema.InputRequest{InterruptID: "w1", Status: "cancelled", By: "alice"})
}

func TestAnswer_LargeSchema_ReadFromBlobStore(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	store, err := w.JS.ObjectStore(t.Context(), schema.BlobBucket("default"))
	require.NoError(t, err)
	wait := func(id, text string, put bool) {
		sum := sha256.Sum256([]byte(text))
		digest := hex.EncodeToString(sum[:])
		if put {
			_, err := store.PutBytes(t.Context(), schema.BlobName("run-1", digest), []byte(text))
			require.NoError(t, err)
		}
		x.Publish(&schema.RunWaitingData{InterruptID: id, Reason: schema.WaitHumanInput, Refs: []schema.Ref{
			{Path: "/response_schema", DataRef: schema.DataRef("run-1", digest), Size: int64(len(text))},
		}}, 0)
	}
	wait("w1", yesOrNo, true)
	wait("lost", `{"type":"string"}`, false)
	wait("large", `{"title":"`+strings.Repeat("x", 300<<10)+`"}`, true)
	require.Equal(t, schema.CodeInvalidAnswer, w.refused(schema.VerbInput, "run-1", answerTo("w1", `{"ok":1}`)).Code)
	w.control(schema.VerbInput, "run-1", answerTo("w1", `{"ok":true}`))
	e := w.refused(schema.VerbInput, "run-1", answerTo("lost", `"x"`))
	require.Contains(t, e.Message, "is missing")
	require.Equal(t, schema.CodeInvalidAnswer, e.Code)
	require.Contains(t, w.refused(schema.VerbInput, "run-1", answerTo("large", `"x"`)).Message, "at most 65536")
	require.ErrorIs(t, store.Delete(t.Context(), "nothing"), jetstream.ErrObjectNotFound)
}
