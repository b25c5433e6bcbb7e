package service_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func signal(id, payload string) schema.SignalRequest {
	return schema.SignalRequest{SignalID: id, Name: "note", Payload: value(payload), By: "alice"}
}

func TestSignal_LiveRun_OpenInTheOrderOfTheLogUntilConsumed(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	for _, id := range []string{"s 1", "s 2", "s 3"} {
		x.Last = uint64(w.control(schema.VerbSignal, "run-1", signal(id, `{"n":1}`)).Stream)
	}
	got, _ := w.get("run-1", schema.ViewState)
	require.Len(t, got.Head.Signals, 3)
	for i, s := range got.Head.Signals {
		require.Equal(t, fmt.Sprint("s ", i+1), s.SignalID)
	}
	require.Equal(t, "alice", got.State.Signals[0].By)
	require.Zero(t, got.Head.Counts.DeadLetters)
	require.EqualValues(t, 3, w.svc.Stats().Signals.Load())
	x.Publish(&schema.SignalConsumedData{SignalIDs: []string{"s 1", "s 3"}}, 0)
	got, _ = w.get("run-1", schema.ViewHead)
	require.Len(t, got.Head.Signals, 1)
	require.Equal(t, "s 2", got.Head.Signals[0].SignalID)
}

// The sender's run may have another executor when it repeats the signal, and the signal may be consumed by then.
func TestSignal_SameIDAgain_OneSignal(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	first := w.control(schema.VerbSignal, "run-1", signal("s1", `{"a":1,"b":9007199254740993,"c":0.1}`))
	again := signal("s1", `{ "c": 1e-1, "b": 9007199254740993, "a": 1 }`)
	again.By = "bob"
	require.Equal(t, repeated(first), w.control(schema.VerbSignal, "run-1", again))
	x.Last = uint64(first.Stream)
	x.Publish(&schema.SignalConsumedData{SignalIDs: []string{"s1"}}, 0)
	require.Equal(t, repeated(first), w.control(schema.VerbSignal, "run-1", again))
	x.end(schema.StatusCompleted)
	require.Equal(t, repeated(first), w.control(schema.VerbSignal, "run-1", again), "the run has ended since")
	for _, payload := range []string{"", `{"a":1,"b":9007199254740992,"c":0.1}`, `{"a":1,"b":9007199254740993,"c":0.10000000000000000001}`, `null`} {
		e := w.refused(schema.VerbSignal, "run-1", signal("s1", payload))
		require.Equal(t, schema.CodeConflict, e.Code)
		require.Contains(t, e.Message, `signal_id "s1" of run run-1 names another signal already: "note" by alice`)
	}
	other := again
	other.Name = "other"
	require.Equal(t, schema.CodeConflict, w.refused(schema.VerbSignal, "run-1", other).Code)
	got, _ := w.get("run-1", schema.ViewHead)
	require.Empty(t, got.Head.Signals)
	require.Zero(t, got.Head.Counts.DeadLetters)
}

// An open signal that is before the log and the latest segments is compared, too.
func TestSignal_OtherSignalUnderTheIDOfAnOldOpenOne_Refused(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	first := w.control(schema.VerbSignal, "run-1", signal("s1", `{"n":1.5}`))
	x.adopt(first.Stream)
	for range 4 {
		x.TurnOf(10)
	}
	w.checkpointAt(x, len(x.Acked), w.sealByHand(x, len(x.Acked)-2, 3, true))
	require.Equal(t, repeated(first), w.control(schema.VerbSignal, "run-1", signal("s1", `{ "n": 1.50 }`)))
	other := signal("s1", `{"n":1.5}`)
	other.Name = "other"
	for _, req := range []schema.SignalRequest{other, signal("s1", `{"n":2}`), signal("s1", "")} {
		e := w.refused(schema.VerbSignal, "run-1", req)
		require.Equal(t, schema.CodeConflict, e.Code)
		require.Contains(t, e.Message, `signal_id "s1" of run run-1 names another signal already: "note" by alice`)
	}
}

// A lost segment hides the events in it, and no others.
func TestSignal_AgainWhileAnotherSegmentIsLost_Found(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	first := w.control(schema.VerbSignal, "run-1", signal("s1", "1"))
	x.adopt(first.Stream)
	for range 4 {
		x.TurnOf(10)
	}
	index := w.sealByHand(x, len(x.Acked)-2, 3, true)
	w.checkpointAt(x, len(x.Acked), index)
	kv, err := w.JS.KeyValue(t.Context(), w.Names.SegmentBucket())
	require.NoError(t, err)
	others := 0
	for n := 1; n <= index.Count; n++ {
		stored, err := w.Shard.Segments.GetFresh(t.Context(), "run-1", n)
		require.NoError(t, err)
		info, err := schema.DecodeSegmentInfo(stored)
		require.NoError(t, err)
		if info.First.Stream <= first.Stream && first.Stream <= info.Last.Stream {
			continue
		}
		others++
		key := schema.SegmentKey("run-1", n)
		require.NoError(t, kv.Purge(t.Context(), key))
		require.Equal(t, repeated(first), w.control(schema.VerbSignal, "run-1", signal("s1", "1")), "without segment %d", n)
		_, err = kv.Put(t.Context(), key, stored)
		require.NoError(t, err)
	}
	require.Greater(t, others, 2)
}

func TestSignal_RunThatCannotHear_RefusedWithWhatToDo(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	full := w.aRun("full", 1, 10)
	for i := range schema.MaxSignals {
		full.Last = uint64(w.control(schema.VerbSignal, "full", signal(fmt.Sprint(i), "")).Stream)
	}
	w.aRun("ended", 1, 10).end(schema.StatusFailed)
	w.aRun("live", 1, 10)
	change := func(change func(*schema.SignalRequest)) schema.SignalRequest {
		r := signal("s1", `1`)
		change(&r)
		return r
	}
	whole := `"` + strings.Repeat("x", schema.MaxSignalPayload-2) + `"`
	for _, c := range []struct {
		name, run string
		req       schema.SignalRequest
		code      schema.Code
		says      string
	}{
		{"ended", "ended", signal("s1", ""), schema.CodeRunEnded, "has ended: failed"},
		{"unknown", "nowhere", signal("s1", ""), schema.CodeNotFound, "no run nowhere"},
		{"full", "full", signal("s1", ""), schema.CodeTooManySignals, "has 64 signals that are not consumed"},
		{"large", "live", signal("s1", `"x`+whole[1:]), schema.CodeTooLarge, "at most 65536 are taken"},
		{"no id", "live", change(func(r *schema.SignalRequest) { r.SignalID = "" }), schema.CodeBadRequest, "/signal_id"},
		{"no name", "live", change(func(r *schema.SignalRequest) { r.Name = "" }), schema.CodeBadRequest, "/name"},
		{"no sender", "live", change(func(r *schema.SignalRequest) { r.By = "" }), schema.CodeBadRequest, "/by"},
		{"long id", "live", change(func(r *schema.SignalRequest) { r.SignalID = strings.Repeat("i", schema.MaxIdentifier+1) }), schema.CodeBadRequest, "/signal_id"},
	} {
		e := w.refused(schema.VerbSignal, c.run, c.req)
		require.Equal(t, c.code, e.Code, c.name)
		require.Contains(t, e.Message, c.says, c.name)
		require.NotEmpty(t, e.Hint, c.name)
	}
	w.control(schema.VerbSignal, "live", signal("s1", whole))
	again := w.control(schema.VerbSignal, "full", signal("3", ""))
	require.True(t, again.Already, "a full run has it")
	full.Publish(&schema.SignalConsumedData{SignalIDs: []string{"0"}}, 0)
	w.control(schema.VerbSignal, "full", signal("s1", ""))
}

// A sender of requests cannot make a run need a key that the run's executor may not have.
func TestRequests_KeyThatTheRunHasNot_Refused(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	refs := func(path, key string) []schema.Ref { return []schema.Ref{{Path: path, KeyID: key, Codec: "c"}} }
	for _, run := range []string{"plain", "encrypted"} {
		x := w.aRun(run, 1, 10)
		x.wait("w1", "")
		if run == "encrypted" {
			x.Publish(&schema.StateSetData{Key: "plan", Value: value(`"c2VjcmV0"`), Refs: refs("/value", "k1")}, 0)
		}
		for verb, req := range map[string]any{
			schema.VerbSignal: schema.SignalRequest{SignalID: "s1", Name: "note", Payload: value(`"c2VjcmV0"`), By: "alice", Refs: refs("/payload", "k2")},
			schema.VerbInput:  schema.InputRequest{InterruptID: "w1", Payload: value(`"c2VjcmV0"`), By: "alice", Refs: refs("/payload", "k2")},
			schema.VerbCancel: schema.CancelRequest{By: "alice", Reason: "c2VjcmV0", Refs: refs("/reason", "k2")},
		} {
			e := w.refused(verb, run, req)
			require.Equal(t, schema.CodeBadRequest, e.Code, verb)
			require.Contains(t, e.Message, `/refs/0/key_id: key "k2" is none of run `+run)
		}
	}
	w.control(schema.VerbSignal, "encrypted", schema.SignalRequest{SignalID: "s1", Name: "note", Payload: value(`"c2VjcmV0"`), By: "alice", Refs: refs("/payload", "k1")})
	got, _ := w.get("encrypted", schema.ViewHead)
	require.Equal(t, []string{"k1"}, got.Head.KeyIDs)
	got, _ = w.get("plain", schema.ViewHead)
	require.Empty(t, got.Head.KeyIDs)
	require.Empty(t, got.Head.Signals)
}

// A run that waits without an executor gets one, and waits again: no number of signals quarantines it.
func TestSignal_WaitingRun_ClaimableAndNeverQuarantined(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 1, 10)
	x.wait("w1", "")
	x.Publish(&schema.RunInterruptedData{Reason: schema.InterruptedWaiting}, 0)
	for i := range 5 {
		got, _ := w.get("run-1", schema.ViewHead)
		require.Equal(t, schema.StatusWaiting, got.Head.Status)
		w.control(schema.VerbSignal, "run-1", signal(fmt.Sprint(i), ""))
		got, _ = w.get("run-1", schema.ViewHead)
		require.Equal(t, schema.StatusInterrupted, got.Head.Status)
		taken, _ := w.recover("run-1", schema.RecoverRequest{Executor: "executor-1", RequestID: fmt.Sprint("r", i), Reason: schema.TakeoverClaim})
		require.Len(t, taken.Head.Signals, i+1)
		x.resume(taken, "executor-1")
		x.Publish(&schema.RunInterruptedData{Reason: schema.InterruptedWaiting}, 0)
	}
	got, _ := w.get("run-1", schema.ViewHead)
	require.Zero(t, got.Head.Stalled)
	require.False(t, got.Quarantined)
}
