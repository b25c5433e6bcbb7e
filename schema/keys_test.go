package schema_test

import (
	"bytes"
	"crypto/ed25519"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// signer is a daemon's key.
type signer struct {
	name   string
	public ed25519.PublicKey
	sign   func([]byte) ([]byte, error)
}

// signers are three keys; each test decides which of them belong to the fleet.
var signers = func() (all []signer) {
	for i := range byte(3) {
		private := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{i + 1}, ed25519.SeedSize))
		public, _ := private.Public().(ed25519.PublicKey)
		all = append(all, signer{"UKEY" + string(rune('1'+i)), public, func(text []byte) ([]byte, error) { return ed25519.Sign(private, text), nil }})
	}
	return all
}()

func keysOf(t require.TestingT, keys ...schema.Key) *schema.Keys {
	k, err := schema.NewKeys("f", keys)
	require.NoError(t, err)
	return k
}

// asked is a run that waits for a person, in a fleet with the first two keys, with the time of the next message.
func asked(t *testing.T) (*testRun, *schema.Keys) {
	t.Helper()
	r := newTestRun(t)
	r.start()
	require.Equal(t, schema.Applied, r.write(&schema.RunWaitingData{InterruptID: "i1", Reason: schema.WaitToolApproval}, 0).Kind)
	at := r.now().UnixNano()
	r.keys = keysOf(t,
		schema.Key{Name: signers[0].name, Public: signers[0].public, Since: at},
		schema.Key{Name: signers[1].name, Public: signers[1].public, Since: at, Until: at + int64(time.Second)})
	return r, r.keys
}

// It changes each part of a signed event in turn, and folds it.
func TestSignature_AnythingElse_IsRefused(t *testing.T) {
	t.Parallel()
	answer := &schema.RunInputData{InterruptID: "i1", By: "alice"}
	for name, test := range map[string]struct {
		key    int
		change func(e *schema.Event)
		want   schema.Reason
	}{
		"as it was signed":       {},
		"nothing of a signature": {change: func(e *schema.Event) { e.Extensions = nil }, want: schema.ReasonUnsigned},
		"another's signature": {change: func(e *schema.Event) {
			e.Extensions[schema.AttributeSigner] = signers[1].name
		}, want: schema.ReasonUnsigned},
		"a key of no fleet": {key: 2, want: schema.ReasonUnsigned},
		"another person":    {change: func(e *schema.Event) { e.Data = bytes.ReplaceAll(e.Data, []byte("alice"), []byte("bob")) }, want: schema.ReasonUnsigned},
		"another question":  {change: func(e *schema.Event) { e.Data = bytes.ReplaceAll(e.Data, []byte("i1"), []byte("i2")) }, want: schema.ReasonUnsigned},
		"another id": {change: func(e *schema.Event) {
			e.ID += "x"
		}, want: schema.ReasonUnsigned},
		"another time":   {change: func(e *schema.Event) { e.Time = "2026-03-01T12:00:09Z" }, want: schema.ReasonUnsigned},
		"another turn":   {change: func(e *schema.Event) { e.Turn = 1 }, want: schema.ReasonUnsigned},
		"another daemon": {change: func(e *schema.Event) { e.Source = schema.Source("f", "other") }, want: schema.ReasonUnsigned},
		"another type":   {change: func(e *schema.Event) { e.Type = schema.TypeOf(schema.RunCancelRequested) }, want: schema.ReasonUnsigned},
		"another place": {change: func(e *schema.Event) {
			e.Extensions[schema.AttributeRunDigest] = schema.Hash{}.String()
		}, want: schema.ReasonUnsigned},
		"signed for another place": {change: func(e *schema.Event) {
			require.NoError(t, e.Sign(signers[0].name, schema.Hash{}.String(), signers[0].sign))
		}, want: schema.ReasonMisplaced},
		"signed in another fleet": {change: func(e *schema.Event) {
			digest := e.Extensions[schema.AttributeRunDigest]
			e.Source = "/elsewhere/daemon"
			require.NoError(t, e.Sign(signers[0].name, digest, signers[0].sign))
		}, want: schema.ReasonUnsigned},
		"another attribute": {change: func(e *schema.Event) { e.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" }, want: schema.ReasonUnsigned},
		"the signature in another text": {change: func(e *schema.Event) {
			e.Extensions[schema.AttributeSignature] += "="
		}, want: schema.ReasonUnsigned},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := asked(t)
			e := r.makeControl(answer, 1)
			require.NoError(t, e.Sign(signers[test.key].name, r.head.Digest, signers[test.key].sign))
			if test.change != nil {
				e.Extensions = maps.Clone(e.Extensions)
				test.change(e)
			}
			before := r.head.Digest
			v := r.event(e)
			require.Equal(t, test.want, v.Reason, v.Detail)
			if test.want == "" {
				require.Equal(t, schema.StatusRunning, r.head.Status)
				require.Equal(t, schema.DigestAfter(before, e), r.head.Digest)
				return
			}
			require.Equal(t, schema.StatusWaiting, r.head.Status, "the run goes on waiting")
			require.Equal(t, before, r.head.Digest)
		})
	}
}

// It publishes a signed answer again when the run waits again under the same id: at once, and so late that the fold
// no longer remembers the first.
func TestSignature_EventIsRepeated_CountsOnce(t *testing.T) {
	t.Parallel()
	r, _ := asked(t)
	answer := r.makeControl(&schema.RunInputData{InterruptID: "i1", By: "alice"}, 1)
	require.NoError(t, answer.Sign(signers[0].name, r.head.Digest, signers[0].sign))
	require.Equal(t, schema.Applied, r.event(answer).Kind)
	again := &schema.RunWaitingData{InterruptID: "i1", Reason: schema.WaitToolApproval}
	require.Equal(t, schema.Applied, r.write(again, 0).Kind)
	require.Equal(t, schema.Duplicate, r.event(answer).Kind)
	for range schema.WindowEvents {
		r.write(&schema.MessageAddedData{Message: userMessage("on")}, 0)
	}
	require.Equal(t, schema.ReasonMisplaced, r.event(answer).Reason)
	require.Equal(t, schema.StatusWaiting, r.head.Status)
	r.keys = schema.NoKeys
	require.Equal(t, schema.Applied, r.event(answer).Kind, "without keys it counts twice: the test repeats what can be repeated")
}

// The server's time counts, whatever time the event has.
func TestSignature_KeyIsRetired_HoldsForWhatWasStoredBefore(t *testing.T) {
	t.Parallel()
	r, keys := asked(t)
	second, _ := keys.Key(signers[1].name)
	e := r.makeControl(&schema.RunInputData{InterruptID: "i1", By: "alice"}, 1)
	e.Time = "2020-01-01T00:00:00Z"
	require.NoError(t, e.Sign(second.Name, r.head.Digest, signers[1].sign))
	header, body := e.Encode()
	for stored, want := range map[int64]schema.Reason{
		second.Since - 1: "", // the fleet had no keys
		second.Since:     "",
		second.Until - 1: "",
		second.Until:     schema.ReasonUnsigned,
		0:                schema.ReasonUnsigned, // it is being published now
	} {
		head := r.head.Clone()
		rec := schema.NewRecord(r.stream+1, header, body)
		rec.Stored = stored
		require.Equal(t, want, head.Apply(keys, &rec).Reason, "stored %d after the key's beginning", stored-second.Since)
	}
}

// An executor's statement about a call or a mark counts in its own name, and not in another's.
func TestKeys_EventsOfExecutors_NameNoOtherActor(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		by   string
		want schema.Reason
	}{
		"no name":        {"", ""},
		"itself":         {"ex-1", ""},
		"a person":       {"alice", schema.ReasonUnsigned},
		"another's name": {"ex-2", schema.ReasonUnsigned},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := asked(t)
			require.Equal(t, test.want, r.write(&schema.CheckpointMarkedData{Name: "m", By: test.by}, 0).Reason)
		})
	}
}

// A reader without the fleet's keys must not assume that it has none.
func TestKeys_WithoutKeys_RefuseEveryControlEvent(t *testing.T) {
	t.Parallel()
	r, keys := asked(t)
	e := r.makeControl(&schema.RunInputData{InterruptID: "i1", By: "alice"}, 1)
	require.NoError(t, e.Sign(signers[0].name, r.head.Digest, signers[0].sign))
	rec := schema.NewRecord(r.stream+1, nil, nil)
	rec.Header, rec.Body = e.Encode()
	forgot, knows := r.head.Clone(), r.head.Clone()
	require.Equal(t, schema.ReasonUnsigned, forgot.Apply(nil, &rec).Reason)
	require.Equal(t, schema.Applied, knows.Apply(keys, &rec).Kind)
}

func TestNewKeys_WhatCannotBe_IsRefused(t *testing.T) {
	t.Parallel()
	good := schema.Key{Name: signers[0].name, Public: signers[0].public}
	for name, list := range map[string][]schema.Key{
		"there twice":      {good, good},
		"no ed25519 key":   {{Name: "U1", Public: good.Public[:31]}},
		"before it begins": {{Name: "U1", Public: good.Public, Since: 2, Until: 1}},
	} {
		_, err := schema.NewKeys("f", list)
		require.ErrorContains(t, err, name)
	}
	none, err := schema.NewKeys("f", nil)
	require.NoError(t, err)
	require.Same(t, schema.NoKeys, none)
}

// No statement of an executor, under any name, opens or closes a call that is left to a person.
func TestKeys_HeldCall_IsAPersonsWord(t *testing.T) {
	t.Parallel()
	type settled = schema.ToolSettledData
	for name, test := range map[string]struct {
		replay schema.Replay
		data   settled
		source string
		signed bool
		want   schema.Reason
	}{
		"a settlement without a name says rerun": {data: settled{How: schema.SettledRerun}, want: schema.ReasonUnsigned},
		"no policy was said":                     {replay: "none", data: settled{How: schema.SettledRerun}, want: schema.ReasonUnsigned},
		"the run's executor says rerun":          {data: settled{How: schema.SettledRerun, By: "ex-2"}, want: schema.ReasonUnsigned},
		"a source of the sender's choice":        {data: settled{How: schema.SettledRerun, By: "alice"}, source: "alice", want: schema.ReasonUnsigned},
		"a result that was made up":              {data: settled{How: schema.SettledDecided, Result: []byte(`"paid"`)}, want: schema.ReasonUnsigned},
		"verified":                               {data: settled{How: schema.SettledVerified, Result: []byte(`"paid"`)}, want: schema.ReasonUnsigned},
		"abandoned":                              {data: settled{How: schema.SettledAbandoned}, want: schema.ReasonUnsigned},
		"adopted with a result":                  {data: settled{How: schema.SettledAdopted, Result: []byte(`"paid"`)}, want: schema.ReasonUnsigned},
		"the daemon signed it":                   {data: settled{How: schema.SettledRerun, By: "alice"}, signed: true},
		"pure":                                   {replay: schema.ReplayPure, data: settled{How: schema.SettledRerun}},
		"idempotent":                             {replay: schema.ReplayIdempotent, data: settled{How: schema.SettledRerun, By: "ex-2"}},
		"verify":                                 {replay: schema.ReplayVerify, data: settled{How: schema.SettledVerified, Result: []byte(`1`)}},
		"idempotent, in another's name":          {replay: schema.ReplayIdempotent, data: settled{How: schema.SettledRerun, By: "alice"}, source: "alice", want: schema.ReasonUnsigned},
	} {
		t.Run(name, func(t *testing.T) {
			r := held(t, test.replay)
			test.data.ToolCallID = "c1"
			e := r.plain("p1", &test.data)
			if test.source != "" {
				e.Source = schema.Source("f", test.source)
			}
			if test.signed {
				e = r.makeControl(&test.data, 2)
				e.Turn = 1
				require.NoError(t, e.Sign(signers[0].name, r.head.Digest, signers[0].sign))
			}
			before := r.head.Digest
			v := r.event(e)
			require.Equal(t, test.want, v.Reason, v.Detail)
			if test.want != "" {
				require.True(t, r.head.OpenCalls[0].State.InDoubt())
				require.Equal(t, before, r.head.Digest)
			}
		})
	}
}

// held is a run in a fleet with keys with a call in doubt, taken over by ex-2. Without a replay policy the call is
// held.
func held(t *testing.T, replay schema.Replay) *testRun {
	t.Helper()
	r := newTestRun(t)
	r.start()
	call := &schema.ToolCalledData{ToolCallID: "c1", Name: "pay", Replay: schema.ReplayHold}
	switch replay {
	case "":
	case "none":
		call.Replay = ""
	case schema.ReplayVerify:
		call.Replay, call.VerifySubject = replay, "tools.pay"
	default:
		call.Replay = replay
	}
	require.Equal(t, schema.Applied, r.write(call, 1).Kind)
	r.takeover("ex-2")
	r.keys = keysOf(t, schema.Key{Name: signers[0].name, Public: signers[0].public, Since: r.now().UnixNano()})
	require.True(t, r.head.OpenCalls[0].State.InDoubt())
	return r
}

// plain is an unsigned event without a sequence, of the run's executor.
func (r *testRun) plain(id string, d schema.Data) *schema.Event {
	return &schema.Event{
		ID: id, Source: schema.Source("f", "ex-2"), Type: schema.TypeOf(d.EventName()), Subject: "r1", Epoch: r.head.Epoch, Turn: 1,
		Time: schema.FormatTime(r.now()), Data: mustJSON(r.tb, d),
	}
}

// signedInput is a person's answer, signed.
func (r *testRun) signedInput(d *schema.RunInputData) {
	e := r.makeControl(d, r.head.Epoch)
	require.NoError(r.tb, e.Sign(signers[0].name, r.head.Digest, signers[0].sign))
	v := r.event(e)
	require.Equal(r.tb, schema.Applied, v.Kind, v.Detail)
}

// Neither a question about a begun call, nor its answer, nor a decision lets an executor run the call again: only a
// settlement does.
func TestKeys_OnlyASettlement_ReopensACall(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]schema.RunInputData{
		"allow":   {InterruptID: "i1", Payload: []byte(`{"decision":"allow"}`)},
		"deny":    {InterruptID: "i1", Payload: []byte(`{"decision":"deny"}`)},
		"expired": {InterruptID: "i1", Status: schema.InputExpired},
	} {
		t.Run(name, func(t *testing.T) {
			r := held(t, "")
			ask := &schema.RunWaitingData{InterruptID: "i1", Reason: schema.WaitToolApproval, ToolCallID: "c1"}
			require.Equal(t, schema.Applied, r.event(r.plain("ask", ask)).Kind)
			r.signedInput(&answer)
			for _, decision := range []string{schema.DecisionAsk, schema.DecisionAllow, schema.DecisionDeny} {
				require.Equal(t, schema.Applied, r.event(r.plain("says "+decision, &schema.ToolDecidedData{ToolCallID: "c1", Decision: decision})).Kind)
				rerun := &schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledRerun}
				require.Equal(t, schema.ReasonUnsigned, r.event(r.plain("behind "+decision, rerun)).Reason)
				require.Equal(t, schema.ReasonCallOpen, r.event(r.plain("again "+decision, &schema.ToolCalledData{ToolCallID: "c1", Name: "pay", Requested: decision == schema.DecisionAsk})).Reason)
				require.True(t, r.head.OpenCalls[0].State.InDoubt())
			}
		})
	}
}

// An executor's event can only name the run's executor, no claim, and no verified key.
func TestKeys_UnsignedEvents_ProveNoActor(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		data   schema.Data
		source string
		want   schema.Reason
	}{
		"a mark by its source":         {&schema.CheckpointMarkedData{Name: "m", By: "alice"}, "alice", schema.ReasonUnsigned},
		"a mark by the executor":       {&schema.CheckpointMarkedData{Name: "m", By: "ex-2"}, "", ""},
		"a mark that has a claim":      {&schema.CheckpointMarkedData{Name: "m", Claimed: "alice"}, "", schema.ReasonUnsigned},
		"a mark by a verified key":     {&schema.CheckpointMarkedData{Name: "m", By: "operator:UB1"}, "", schema.ReasonUnsigned},
		"a decision by a policy":       {&schema.ToolDecidedData{ToolCallID: "c1", Decision: "deny", By: "no-network"}, "", ""},
		"a decision by a verified key": {&schema.ToolDecidedData{ToolCallID: "c1", Decision: "allow", By: "operator:UB1"}, "", schema.ReasonUnsigned},
		"a decision that has a claim": {
			&schema.ToolDecidedData{ToolCallID: "c1", Decision: "allow", Extra: []byte(`{"claimed":"alice"}`)}, "", schema.ReasonUnsigned,
		},
		"a settlement that has a claim": {&schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledRerun, Claimed: "alice"}, "", schema.ReasonUnsigned},
	} {
		t.Run(name, func(t *testing.T) {
			r := held(t, schema.ReplayIdempotent)
			e := r.plain("p1", test.data)
			if test.source != "" {
				e.Source = schema.Source("f", test.source)
			}
			v := r.event(e)
			require.Equal(t, test.want, v.Reason, v.Detail)
		})
	}
}
