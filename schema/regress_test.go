package schema_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	ce "github.com/cloudevents/sdk-go/v2/event"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// The tests of this file each hold a fault that was found in review.

func TestRegress_StructuredWhiteSpace_SameHash(t *testing.T) {
	e := &schema.Event{ID: "1", Source: "/s", Type: "t", DataContentType: schema.ContentTypeJSON, Data: []byte(" {\"a\": 1}\n")}
	b, err := e.EncodeStructured()
	require.NoError(t, err)
	back, err := schema.Decode(nil, b)
	require.NoError(t, err)
	require.Equal(t, string(e.Data), string(back.Data))
	require.Equal(t, e.ContentHash(), back.ContentHash())
}

func TestRegress_SeveralErrors_OrderStable(t *testing.T) {
	header := map[string][]string{
		"ce-specversion": {"1.0"}, "ce-id": {""}, "ce-epoch": {"x"}, "ce-turn": {"x"},
		"ce-time": {"x"}, "ce-sequence": {"x"}, "ce-dataref": {"x"},
	}
	_, first := schema.Decode(header, nil)
	require.Error(t, first)
	for range 50 {
		_, err := schema.Decode(header, nil)
		require.EqualError(t, err, first.Error())
	}
}

func TestRegress_ContentTypeTwice_Refused(t *testing.T) {
	header := map[string][]string{
		"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/s"}, "ce-type": {"t"},
		"Content-Type": {"application/json"}, "content-type": {"text/plain"},
	}
	_, err := schema.Decode(header, nil)
	var bad *schema.AttributeError
	require.ErrorAs(t, err, &bad)
	require.Equal(t, "content-type", bad.Name)
}

func TestRegress_HeaderNames_FoldOnlyASCII(t *testing.T) {
	_, err := schema.Decode(map[string][]string{
		"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/s"}, "ce-type": {"t"}, "ce-\u212Aind": {"x"},
	}, nil)
	var bad *schema.AttributeError
	require.ErrorAs(t, err, &bad)
}

func TestRegress_IDsAndTimes_Bounded(t *testing.T) {
	base := func() map[string][]string {
		return map[string][]string{"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/s"}, "ce-type": {"t"}}
	}
	long := base()
	long["ce-id"] = []string{strings.Repeat("x", schema.MaxIdentifier+1)}
	_, err := schema.Decode(long, nil)
	require.ErrorContains(t, err, "attribute id")
	late := base()
	late["ce-time"] = []string{"2026-01-01T00:00:00." + strings.Repeat("0", 1000) + "Z"}
	_, err = schema.Decode(late, nil)
	require.ErrorContains(t, err, "attribute time")
	waiting := &schema.RunWaitingData{InterruptID: "i", Reason: "auth", ExpiresAt: late["ce-time"][0]}
	require.ErrorContains(t, schema.Validate(waiting), "/expires_at")
}

func TestRegress_ManyHeaderLines_HaveFrame(t *testing.T) {
	rec := schema.Record{Stream: 7, Header: map[string][]string{}, Body: []byte("x")}
	for i := range 1000 {
		rec.Header[fmt.Sprintf("x-%d", i)] = []string{"v"}
	}
	r := schema.NewFrameReader(schema.AppendFrame(nil, &rec))
	back, err := r.Next()
	require.NoError(t, err)
	require.True(t, rec.Equal(&back))
}

func TestRegress_SegmentDescription_Protected(t *testing.T) {
	stored, err := schema.EncodeSegment(schema.SegmentInfo{Fleet: "f", Run: "run1", Number: 1, Events: 3}, nil, []byte("frames"))
	require.NoError(t, err)
	forged := []byte(strings.Replace(string(stored), `"run":"run1"`, `"run":"run2"`, 1))
	_, err = schema.DecodeSegmentInfo(forged)
	require.ErrorIs(t, err, schema.ErrCorrupt)
}

// sealedSegment and sealedCheckpoint give a description or checkpoint with any content a correct sum.
func sealedSegment(description, packed string) []byte {
	open := description + `,"sum":"`
	sum := sha256.Sum256([]byte(open + "\"}\n" + packed))
	return []byte(open + hex.EncodeToString(sum[:]) + "\"}\n" + packed)
}

func sealedCheckpoint(members string) []byte {
	open := members + `,"sum":"`
	sum := sha256.Sum256([]byte(open + `"}`))
	return []byte(open + hex.EncodeToString(sum[:]) + `"}`)
}

func TestRegress_FutureFormatNewFields_Named(t *testing.T) {
	_, _, err := schema.DecodeSegment(sealedSegment(`{"format":4,"fleet":["changed"]`, "x"))
	require.ErrorIs(t, err, schema.ErrFormat)
	require.NotErrorIs(t, err, schema.ErrCorrupt)
	_, err = schema.DecodeCheckpoint(sealedCheckpoint(`{"format":2,"run":{"id":"changed"},"status":1`))
	require.ErrorIs(t, err, schema.ErrFormat)
	require.NotErrorIs(t, err, schema.ErrCorrupt)
	_, err = schema.DecodeCheckpoint(sealedCheckpoint(`{"format":1,"run":{"id":"changed"}`))
	require.ErrorIs(t, err, schema.ErrCorrupt)
}

func TestRegress_CallBeyondLimit_OpensNoTurn(t *testing.T) {
	r := newTestRun(t)
	r.start()
	r.write(&schema.TurnStartedData{Turn: 1}, 1)
	for i := range schema.MaxOpenCalls {
		v := r.write(&schema.ToolCalledData{ToolCallID: fmt.Sprintf("c%d", i), Name: "n"}, 1)
		require.Equal(t, schema.Applied, v.Kind, v.Detail)
	}
	v := r.write(&schema.ToolCalledData{ToolCallID: "c", Name: "n"}, 2)
	require.Equal(t, schema.ReasonTooMany, v.Reason)
	require.Equal(t, int32(1), r.head.Turn)
	require.Len(t, r.state.Turns, 1)
	require.Equal(t, int32(1), r.state.Turns[0].Turn)
}

func TestRegress_ImplicitTurn_NoPurposeLeft(t *testing.T) {
	r := newTestRun(t)
	r.start()
	r.write(&schema.TurnStartedData{Turn: 1, Purpose: schema.PurposeRecovery}, 1)
	r.write(&schema.TurnEndedData{Turn: 1}, 1)
	r.write(&schema.TurnEndedData{Turn: 2}, 2)
	require.Empty(t, r.head.TurnPurpose)
}

func TestRegress_MessageBeforeTurn_NotSuperseded(t *testing.T) {
	r := newTestRun(t)
	r.start()
	r.write(&schema.MessageAddedData{Message: userMessage("early")}, 1)
	r.write(&schema.TurnStartedData{Turn: 1, Messages: []schema.Message{userMessage("first")}}, 1)
	r.takeover("ex-2")
	v := r.write(&schema.TurnStartedData{Turn: 1, Messages: []schema.Message{userMessage("second")}}, 1)
	require.True(t, v.Superseded)
	require.Len(t, r.state.Messages, 2)
	require.Equal(t, "early", *r.state.Messages[0].Parts[0].Content)
	require.Equal(t, "second", *r.state.Messages[1].Parts[0].Content)
	require.Equal(t, int64(len(r.state.Messages)), r.head.Counts.Messages)
}

func TestRegress_RequiredFieldMissing_Refused(t *testing.T) {
	err := schema.Validate(&schema.RunResumedData{Executor: "e", Reason: "claim", RequestID: "q"})
	require.ErrorContains(t, err, "/from/epoch")
	err = schema.Validate(&schema.RunResumedData{Executor: "e", Reason: "claim", RequestID: "q", From: schema.From{Epoch: 1}})
	require.ErrorContains(t, err, "/from/digest")
	err = schema.Validate(&schema.ContextCompactedData{ThroughTurn: 1})
	require.ErrorContains(t, err, "/summary")
	ref := schema.Ref{Path: "/summary", DataRef: schema.DataRef("r1", strings.Repeat("0", 64))}
	require.NoError(t, schema.Validate(&schema.ContextCompactedData{ThroughTurn: 1, Refs: []schema.Ref{ref}}))
}

func TestRegress_DataNotObject_Refused(t *testing.T) {
	for _, body := range []string{"null", " null ", "[]", `"x"`, "1"} {
		_, err := schema.ParseData(&schema.Event{Type: schema.TypeOf(schema.RunCancelRequested), Data: []byte(body)})
		var bad *schema.DataError
		require.ErrorAs(t, err, &bad, body)
	}
}

func TestRegress_CloudEventsSDK_BytesSurvive(t *testing.T) {
	e := &schema.Event{ID: "1", Source: "/s", Type: "t", DataContentType: "application/octet-stream", Data: []byte{0xff, 0, 0xfe}}
	structured, err := e.EncodeStructured()
	require.NoError(t, err)
	var sdk ce.Event
	require.NoError(t, sdk.UnmarshalJSON(structured))
	back, err := schema.FromCloudEvent(sdk)
	require.NoError(t, err)
	require.Equal(t, e.Data, back.Data)
	b, err := sdk.MarshalJSON()
	require.NoError(t, err)
	back, err = schema.Decode(nil, b)
	require.NoError(t, err)
	require.Equal(t, e.Data, back.Data)
}
