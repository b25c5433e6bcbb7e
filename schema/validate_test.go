package schema_test

import (
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestValidate_DataError_NamesPath(t *testing.T) {
	long := strings.Repeat("x", schema.MaxIdentifier+1)
	for _, tc := range []struct{ event, data, path, problem string }{
		{schema.RunStarted, `{}`, "/agent", "required"},
		{schema.RunStarted, `{"agent":"a"}`, "/executor", "required"},
		{schema.RunStarted, `{"agent":"a.b","executor":"e"}`, "/agent", "not a valid name"},
		{schema.RunStarted, `{"agent":"a","executor":"e","max_turns":-1}`, "/max_turns", "at least 0"},
		{schema.RunStarted, `{"agent":"a","executor":"e","parent":{}}`, "/parent/run", "required"},
		{schema.RunStarted, `{"agent":"a","executor":"e","labels":{"":"x"}}`, "/labels", "key"},
		{schema.RunStarted, `{"agent":"a","executor":"e","labels":{"a":1}}`, "/labels/a", "string"},
		{schema.RunStarted, `{"agent":"a","executor":"e","instance":"a.b"}`, "/instance", "not a valid name"},
		{schema.RunStarted, `{"agent":"a","executor":"e","handoff":{}}`, "/handoff/run", "required"},
		{schema.RunStarted, `{"agent":"a","executor":"e","handoff":{"run":"r"}}`, "/handoff/handoff_id", "required"},
		{schema.RunStarted, `{"agent":"a","executor":"e","handoff":{"run":"r","handoff_id":"h"}}`, "/handoff/offer_hash", "required"},
		{schema.RunStarted, `{"agent":"a","executor":"e","handoff":{"run":"r","handoff_id":"h","offer_hash":"x"}}`, "/handoff/offer_hash", "64"},
		{schema.RunStarted, `{"agent":1}`, "/agent", "a JSON number where a string"},
		{schema.RunStarted, `{"agent":"a","agent":"b"}`, "/agent", "duplicate"},
		{schema.RunStarted, `{"agent":"` + "\xff" + `"}`, "/agent", "UTF-8"},
		{schema.RunStarted, `{"agent":"a"`, "", "not valid JSON"},
		{schema.RunStarted, `[]`, "", "an object is wanted"},
		{schema.RunStarted, `{"agent":"a","executor":"e","thread_id":"` + long + `"}`, "/thread_id", "at most"},
		{schema.RunResumed, `{}`, "/executor", "required"},
		{schema.RunResumed, `{"executor":"e"}`, "/reason", "required"},
		{schema.RunResumed, `{"executor":"e","instance":"?"}`, "/instance", "not a valid name"},
		{schema.RunResumed, `{"executor":"e","reason":"because"}`, "/reason", "none of"},
		{schema.RunResumed, `{"executor":"e","reason":"claim"}`, "/request_id", "required"},
		{schema.RunResumed, `{"executor":"e","reason":"claim","request_id":"q","from":{"epoch":1,"sequence":1}}`, "/from/digest", "required"},
		{schema.RunResumed, `{"executor":"e","reason":"claim","request_id":"q","from":{"epoch":1,"sequence":1,"digest":"x"}}`, "/from/digest", "64"},
		{schema.RunResumed, `{"executor":"e","reason":"claim","request_id":"q","from":{"epoch":1,"sequence":-1}}`, "/from/sequence", ""},
		{schema.RunWaiting, `{}`, "/interrupt_id", "required"},
		{schema.RunWaiting, `{"interrupt_id":"i"}`, "/reason", "required"},
		{schema.RunWaiting, `{"interrupt_id":"i","reason":"auth","expires_at":"tomorrow"}`, "/expires_at", "RFC 3339"},
		{schema.RunWaiting, `{"interrupt_id":"i","reason":"tool_in_doubt"}`, "/tool_call_id", "required"},
		{schema.RunWaiting, `{"interrupt_id":"i","reason":"tool_approval","tool_call_id":"c","occurrence":-1}`, "/occurrence", "at least 0"},
		{schema.RunInput, `{}`, "/interrupt_id", "required"},
		{schema.RunInput, `{"interrupt_id":"i","status":"x"}`, "/status", "none of"},
		{schema.RunOrphaned, `{"missed":-1}`, "/missed", "at least 0"},
		{schema.RunOrphaned, `{"last_seen":"x"}`, "/last_seen", "RFC 3339"},
		{schema.RunOrphaned, `{"executor":"a.b"}`, "/executor", "not a valid name"},
		{schema.RunOrphaned, `{"instance":"a.b"}`, "/instance", "not a valid name"},
		{schema.RunInterrupted, `{"reason":"x"}`, "/reason", "none of"},
		{schema.RunEnded, `{}`, "/status", "required"},
		{schema.RunEnded, `{"status":"running"}`, "/status", "none of"},
		{schema.RunEnded, `{"status":"failed","error":{}}`, "/error/type", "required"},
		{schema.RunEnded, `{"status":"failed","usage":{"input_tokens":-1}}`, "/usage/input_tokens", "at least 0"},
		{schema.TurnStarted, `{}`, "/turn", "at least 1"},
		{schema.TurnStarted, `{"turn":2147483648}`, "/turn", ""},
		{schema.TurnStarted, `{"turn":1,"purpose":"x"}`, "/purpose", "none of"},
		{schema.TurnStarted, `{"turn":1,"messages":[{"role":"user"},{}]}`, "/messages/1/role", "required"},
		{schema.TurnStarted, `{"turn":1,"messages":[{"role":"bot"}]}`, "/messages/0/role", "none of"},
		{schema.TurnStarted, `{"turn":1,"messages":[{"role":"user","parts":[{}]}]}`, "/messages/0/parts/0/type", "required"},
		{schema.TurnAnswered, `{"turn":0,"message":{"role":"assistant"}}`, "/turn", "at least 1"},
		{schema.TurnAnswered, `{"turn":1,"message":{}}`, "/message/role", "required"},
		{schema.TurnAnswered, `{"turn":1,"message":{"role":"user"}}`, "/message/role", "assistant"},
		{schema.TurnAnswered, `{"turn":1,"message":{"role":"assistant"},"calls":[{"tool_call_id":"c1","name":"ls"},{"name":"ls"}]}`, "/calls/1/tool_call_id", "required"},
		{schema.TurnAnswered, `{"turn":1,"message":{"role":"assistant"},"calls":[{"tool_call_id":"c1","name":"ls","replay":"verify"}]}`, "/calls/0/verify_subject", "required"},
		{schema.TurnAnswered, `{"turn":1,"message":{"role":"assistant"},"calls":[{"tool_call_id":"c1","name":"ls","timeout_ms":-1}]}`, "/calls/0/timeout_ms", "at least 0"},
		{schema.TurnAnswered, `{"turn":1,"message":{"role":"assistant"},"calls":[{"tool_call_id":"c1","name":"ls","error":{}}]}`, "/calls/0/error/type", "required"},
		{schema.TurnEnded, `{"turn":0}`, "/turn", "at least 1"},
		{schema.TurnAnswered, `{"turn":1,"message":{"role":"assistant","parts":[]},"duration_ms":-1}`, "/duration_ms", "at least 0"},
		{schema.TurnEnded, `{"turn":1,"refs":[{"path":"messages","dataref":""}]}`, "/refs/0/path", "JSON Pointer"},
		{schema.TurnEnded, `{"turn":1,"refs":[{"path":"/messages","dataref":"http://x"}]}`, "/refs/0/dataref", "waymark-blob"},
		{schema.MessageAdded, `{}`, "/message/role", "required"},
		{schema.MessageAdded, `{"message":{"role":"tool","parts":[{"type":"tool_call_response"}]}}`, "/message/parts/0/id", "required"},
		{schema.MessageAdded, `{"message":{"role":"tool","parts":[{"type":"tool_call","id":"` + long + `"}]}}`, "/message/parts/0/id", "at most 256"},
		{schema.MessageAdded, `{"message":{"role":"tool","parts":[{"type":"text","occurrence":-1}]}}`, "/message/parts/0/occurrence", "at least 0"},
		{schema.MessageAdded, `{"message":{"role":"tool","parts":[{"type":"text","call_turn":-1}]}}`, "/message/parts/0/call_turn", "at least 0"},
		{schema.ToolCalled, `{}`, "/tool_call_id", "required"},
		{schema.ToolCalled, `{"tool_call_id":"c"}`, "/name", "required"},
		{schema.ToolCalled, `{"tool_call_id":"c\u0007","name":"n"}`, "/tool_call_id", "control character"},
		{schema.ToolCalled, `{"tool_call_id":"` + long + `","name":"n"}`, "/tool_call_id", "at most"},
		{schema.ToolCalled, `{"tool_call_id":"c","name":"n","replay":"twice"}`, "/replay", "none of"},
		{schema.ToolCalled, `{"tool_call_id":"c","name":"n","replay":"verify"}`, "/verify_subject", "required"},
		{schema.ToolReturned, `{}`, "/tool_call_id", "required"},
		{schema.ToolReturned, `{"tool_call_id":"c","is_error":"no"}`, "/is_error", "boolean"},
		{schema.ToolReturned, `{"tool_call_id":"c","attempt":-1}`, "/attempt", "at least 0"},
		{schema.ToolFailed, `{}`, "/tool_call_id", "required"},
		{schema.ToolFailed, `{"tool_call_id":"c"}`, "/error/type", "required"},
		{schema.ToolFailed, `{"tool_call_id":"c","error":{"type":"x"},"attempt":-1}`, "/attempt", "at least 0"},
		{schema.ToolDecided, `{}`, "/tool_call_id", "required"},
		{schema.ToolDecided, `{"tool_call_id":"c"}`, "/decision", "required"},
		{schema.ToolDecided, `{"tool_call_id":"c","decision":"perhaps"}`, "/decision", "none of"},
		{schema.ToolDecided, `{"tool_call_id":"c","decision":"ask","occurrence":-1}`, "/occurrence", "at least 0"},
		{schema.ToolSettled, `{}`, "/tool_call_id", "required"},
		{schema.ToolSettled, `{"tool_call_id":"c"}`, "/how", "required"},
		{schema.PhaseStarted, `{}`, "/phase", "required"},
		{schema.PhaseCompleted, `{}`, "/phase", "required"},
		{schema.LimitReached, `{}`, "/limit", "required"},
		{schema.LimitReached, `{"limit":"patience"}`, "/limit", "none of"},
		{schema.RunEnded, `{"status":"completed","completed_by":"` + long + `"}`, "/completed_by", "at most"},
		{schema.ContextCompacted, `{}`, "/summary", "required"},
		{schema.ContextCompacted, `{"summary":"s","tokens_after":-1}`, "/tokens_after", "at least 0"},
		{schema.HandoffOffered, `{}`, "/reason", "required"},
		{schema.HandoffOffered, `{"reason":"error","completed":[{}]}`, "/completed/0/file", "required"},
		{schema.HandoffOffered, `{"reason":"error","completed":[{"file":"f","status":"half"}]}`, "/completed/0/status", "none of"},
		{schema.HandoffOffered, `{"reason":"error","completed":[{"file":"f","status":"done","tests":{"passed":-1}}]}`, "/completed/0/tests/passed", "at least 0"},
		{schema.HandoffOffered, `{"reason":"error","remaining":[{}]}`, "/remaining/0/description", "required"},
		{schema.HandoffOffered, `{"reason":"error","next_agent":"a b"}`, "/next_agent", "not a valid name"},
		{schema.HandoffOffered, `{"reason":"error","kind":"gift"}`, "/kind", "none of"},
		{schema.HandoffOffered, `{"reason":"error","handoff_id":"` + long + `"}`, "/handoff_id", "at most"},
		{schema.HandoffAccepted, `{"handoff_id":"h","offer_hash":"x"}`, "/offer_hash", "64"},
		{schema.HandoffAccepted, `{"handoff_id":"h","child_run":"*"}`, "/child_run", "not a valid name"},
		{schema.HandoffAccepted, `{}`, "/handoff_id", "required"},
		{schema.HandoffDeclined, `{}`, "/handoff_id", "required"},
		{schema.HandoffClosed, `{"handoff_id":"h","child_run":"*"}`, "/child_run", "not a valid name"},
		{schema.ArtifactAdded, `{}`, "/artifact_id", "required"},
		{schema.ArtifactAdded, `{"artifact_id":"a","size":-1}`, "/size", "at least 0"},
		{schema.CheckpointMarked, `{}`, "/name", "required"},
		{schema.ErrorRaised, `{}`, "/error/type", "required"},
		{schema.ErrorRaised, `{"error":{"type":"x"},"scope":"world"}`, "/scope", "none of"},
		{schema.ToolReturned, `{"tool_call_id":"c","result":` + strings.Repeat("[", 600) + strings.Repeat("]", 600) + `}`, "", "deeper"},
		{schema.ToolReturned, ``, "", "missing"},
	} {
		t.Run(tc.event+tc.path+" "+tc.problem, func(t *testing.T) {
			data, err := schema.ParseData(&schema.Event{Type: schema.TypeOf(tc.event), Data: []byte(tc.data)})
			require.Nil(t, data)
			var bad *schema.DataError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, tc.event, bad.Event)
			require.Equal(t, tc.path, bad.Path, bad.Problem)
			require.Contains(t, bad.Problem, tc.problem)
			require.Contains(t, bad.Error(), tc.event)
		})
	}
}

func TestValidate_NotJSON_RefusedForVocabulary(t *testing.T) {
	e := &schema.Event{Type: schema.TypeOf(schema.PhaseStarted), DataContentType: "text/plain", Data: []byte(`{"phase":"p"}`)}
	_, err := schema.ParseData(e)
	require.ErrorContains(t, err, "not JSON")
	e.Type = "com.example.x"
	data, err := schema.ParseData(e)
	require.NoError(t, err)
	require.Nil(t, data)
	require.Error(t, schema.Validate(nil))
}

func TestValidate_UnknownMembers_Kept(t *testing.T) {
	for _, d := range samples() {
		body := mustJSON(t, d)
		body = append(body[:len(body)-1], `,"of_a_later_version":{"a":[1,null]}}`...)
		data, err := schema.ParseData(&schema.Event{Type: schema.TypeOf(d.EventName()), Data: body})
		require.NoError(t, err, d.EventName())
		again := mustJSON(t, data)
		require.JSONEq(t, string(body), string(again))
	}
}

func TestValidate_NullAbsentEmpty_Distinct(t *testing.T) {
	for _, body := range []string{`{"tool_call_id":"c"}`, `{"tool_call_id":"c","result":null}`, `{"tool_call_id":"c","result":""}`, `{"tool_call_id":"c","result":[]}`} {
		data, err := schema.ParseData(&schema.Event{Type: schema.TypeOf(schema.ToolReturned), Data: []byte(body)})
		require.NoError(t, err)
		require.Equal(t, body, string(mustJSON(t, data)))
	}
}

// TestValidate_BoundsInTags_AreTheConstants compares the numbers in the tags, which cannot name a constant, with the
// constants that the fold and the SDK use.
func TestValidate_BoundsInTags_AreTheConstants(t *testing.T) {
	for _, tc := range []struct {
		of    any
		field string
		tag   string
		bound int
	}{
		{schema.RunStartedData{}, "Labels", "check", schema.MaxLabels},
		{schema.RunStartedData{}, "Labels", "key", schema.MaxLabelKey},
		{schema.RunStartedData{}, "Labels", "each", schema.MaxLabelValue},
		{schema.TurnStartedData{}, "Signals", "check", schema.MaxSignals},
		{schema.SignalConsumedData{}, "SignalIDs", "check", schema.MaxSignals},
		{schema.ToolCalledData{}, "ToolCallID", "check", schema.MaxIdentifier},
		{schema.Head{}, "OpenCalls", "check", schema.MaxOpenCalls},
		{schema.Head{}, "TurnCalls", "check", schema.MaxTurnCalls},
		{schema.Head{}, "Interrupts", "check", schema.MaxInterrupts},
		{schema.Head{}, "CompletedPhases", "check", schema.MaxCompletedPhases},
		{schema.Head{}, "Signals", "check", schema.MaxSignals},
		{schema.Head{}, "Superseded", "check", schema.MaxRewinds},
		{schema.Head{}, "KeyIDs", "check", schema.MaxKeyIDs},
		{schema.OpenCall{}, "Name", "check", len(schema.Cut(strings.Repeat("x", 4096), schema.MaxIdentifier))},
	} {
		f, ok := reflect.TypeOf(tc.of).FieldByName(tc.field)
		require.True(t, ok, tc.field)
		require.Contains(t, strings.Split(f.Tag.Get(tc.tag), ","), "max="+strconv.Itoa(tc.bound), "%T.%s", tc.of, tc.field)
	}
}
