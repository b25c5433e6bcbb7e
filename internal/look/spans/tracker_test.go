package spans_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/waymarkio/waymark/internal/look/spans"
	"github.com/waymarkio/waymark/schema"
)

func started() *schema.RunStartedData {
	return &schema.RunStartedData{
		Agent: "fixer", Executor: "worker-1", Task: "a secret task", ThreadID: "thread-7", Model: "model-x", Provider: "anthropic",
		Labels: map[string]string{"tier": "gold", "name": "a secret label"},
	}
}

func answer(text string) *schema.MessageAddedData {
	return &schema.MessageAddedData{Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text(text)}}}
}

func called(id, name string) *schema.ToolCalledData {
	return &schema.ToolCalledData{ToolCallID: id, Name: name, Arguments: jsontext.Value(`{"q":"a secret argument"}`), Replay: schema.ReplayPure}
}

// recovered is a run whose first executor dies in the middle of a call.
func recovered(t *testing.T) *log {
	t.Helper()
	no := true
	l := newLog(t, "run-1")
	l.add(started())                                                                             // 1
	l.add(&schema.TurnStartedData{Turn: 1, Messages: []schema.Message{{Role: schema.RoleUser}}}) // 2
	l.add(&schema.TurnAnsweredData{                                                              // 3
		Turn: 1, Message: answer("a secret answer").Message, Model: "model-x-2", ResponseID: "r1", FinishReasons: []string{"tool_use"},
		Usage: &schema.Usage{InputTokens: 100, OutputTokens: 20, CacheReadInputTokens: 60, CacheCreationInputTokens: 10, ReasoningOutputTokens: 5},
		Calls: []schema.RequestedCall{{ToolCallID: "c1", Name: "search", Arguments: jsontext.Value(`{"q":"a secret argument"}`), Replay: schema.ReplayPure}},
	})
	l.add(called("c1", "search"))                                                                                                                      // 4
	l.add(&schema.ToolReturnedData{ToolCallID: "c1", Result: jsontext.Value(`"a secret result"`)})                                                     // 5
	l.add(&schema.TurnEndedData{Turn: 1})                                                                                                              // 6
	l.add(&schema.TurnStartedData{Turn: 2})                                                                                                            // 7
	l.add(called("c2", "write"))                                                                                                                       // 8
	l.control(&schema.RunOrphanedData{Executor: "worker-1", Missed: 4})                                                                                // 9
	l.takeover("worker-2", schema.TakeoverClaim)                                                                                                       // 10
	l.add(&schema.ToolSettledData{ToolCallID: "c2", How: schema.SettledRerun})                                                                         // 11
	l.add(&schema.ToolReturnedData{ToolCallID: "c2", IsError: &no})                                                                                    // 12
	l.add(&schema.TurnEndedData{Turn: 2, Usage: &schema.Usage{InputTokens: 30, OutputTokens: 7}})                                                      // 13
	l.add(&schema.ErrorRaisedData{Error: schema.Error{Type: "quota", Message: "a secret message"}})                                                    // 14
	l.add(&schema.RunEndedData{Status: "failed", Summary: "a secret summary", Error: &schema.Error{Type: "out_of_budget", Message: "a secret error"}}) // 15
	return l
}

func TestTracer_Run_EpochsTurnsCallsAreSpans(t *testing.T) {
	t.Parallel()
	all := recovered(t).all(spans.Options{})
	ids := byID(t, all)
	require.Len(t, all, 2+3+2+3, "epochs, turns (one is gone on with), model calls and tool calls")
	for _, s := range all {
		require.Equal(t, spans.TraceID("default", "run-1"), s.GetTraceId())
		require.Equal(t, "run-1", get(s.GetAttributes(), "waymark.run.id"))
		require.Equal(t, "fixer", get(s.GetAttributes(), "gen_ai.agent.name"))
		require.Equal(t, "thread-7", get(s.GetAttributes(), "gen_ai.conversation.id"))
	}
	var epochs, turns, chats, writes []*tracepb.Span
	for _, s := range all {
		switch s.GetName() {
		case "invoke_agent fixer":
			epochs = append(epochs, s)
		case "turn":
			turns = append(turns, s)
		case "chat model-x":
			chats = append(chats, s)
		case "execute_tool write":
			writes = append(writes, s)
		}
	}
	require.Len(t, epochs, 2)
	require.Len(t, turns, 3)
	require.Equal(t, turns[1].GetSpanId(), turns[2].GetLinks()[0].GetSpanId(), "the turn is gone on with")
	require.Equal(t, "30", get(turns[2].GetAttributes(), "gen_ai.usage.input_tokens"))
	root, second := epochs[0], epochs[1]
	require.Empty(t, root.GetParentSpanId(), "the first epoch is the trace's root")
	require.Equal(t, at(1), root.GetStartTimeUnixNano())
	require.Equal(t, at(9), root.GetEndTimeUnixNano(), "it ended when the executor was found to be gone")
	require.Equal(t, "taken_over", get(root.GetAttributes(), "waymark.run.status"))
	require.Equal(t, "invoke_agent", get(root.GetAttributes(), "gen_ai.operation.name"))
	require.Equal(t, "anthropic", get(root.GetAttributes(), "gen_ai.provider.name"))
	require.Equal(t, "100", get(root.GetAttributes(), "gen_ai.usage.input_tokens"), "of its own turns")
	require.Equal(t, tracepb.Span_SPAN_KIND_INTERNAL, root.GetKind())

	require.Equal(t, root.GetSpanId(), second.GetParentSpanId())
	require.Equal(t, at(10), second.GetStartTimeUnixNano())
	require.Equal(t, at(15), second.GetEndTimeUnixNano())
	require.Len(t, second.GetLinks(), 1, "to the epoch that it goes on from")
	require.Equal(t, root.GetSpanId(), second.GetLinks()[0].GetSpanId())
	require.Equal(t, "takeover", get(second.GetLinks()[0].GetAttributes(), "waymark.link"))
	require.Equal(t, "claim", get(second.GetAttributes(), "waymark.takeover.reason"))
	require.Equal(t, "worker-2", get(second.GetAttributes(), "waymark.executor"))
	require.Equal(t, "30", get(second.GetAttributes(), "gen_ai.usage.input_tokens"))
	require.Equal(t, "out_of_budget", get(second.GetAttributes(), "error.type"))
	require.Equal(t, tracepb.Status_STATUS_CODE_ERROR, second.GetStatus().GetCode())
	names := func(s *tracepb.Span) (names []string) {
		for _, e := range s.GetEvents() {
			names = append(names, e.GetName())
		}
		return names
	}
	require.Equal(t, []string{"run.orphaned"}, names(root))
	require.Equal(t, []string{"exception"}, names(second))
	require.Equal(t, []string{"tool.settled"}, names(turns[2]))
	require.Equal(t, "quota", get(second.GetEvents()[0].GetAttributes(), "exception.type"))

	search := named(t, all, "execute_tool search")
	require.Equal(t, turns[0].GetSpanId(), search.GetParentSpanId())
	require.Equal(t, []uint64{at(4), at(5)}, []uint64{search.GetStartTimeUnixNano(), search.GetEndTimeUnixNano()})
	require.Equal(t, "search", get(search.GetAttributes(), "gen_ai.tool.name"))
	require.Equal(t, "c1", get(search.GetAttributes(), "gen_ai.tool.call.id"))
	require.Equal(t, "execute_tool", get(search.GetAttributes(), "gen_ai.operation.name"))
	require.Equal(t, "returned", get(search.GetAttributes(), "waymark.outcome"))
	require.Nil(t, search.GetStatus())

	require.Len(t, chats, 2)
	chat := chats[0]
	require.Equal(t, turns[0].GetSpanId(), chat.GetParentSpanId())
	require.Equal(t, tracepb.Span_SPAN_KIND_CLIENT, chat.GetKind())
	require.Equal(t, []uint64{at(2), at(3)}, []uint64{chat.GetStartTimeUnixNano(), chat.GetEndTimeUnixNano()}, "until the model answered")
	for key, want := range map[string]string{
		"gen_ai.operation.name": "chat", "gen_ai.request.model": "model-x", "gen_ai.response.model": "model-x-2", "gen_ai.response.id": "r1",
		"gen_ai.usage.input_tokens": "100", "gen_ai.usage.output_tokens": "20", "gen_ai.usage.cache_read.input_tokens": "60",
		"gen_ai.usage.cache_write.input_tokens": "10", "gen_ai.usage.reasoning.output_tokens": "5", "waymark.turn": "1",
	} {
		require.Equal(t, want, get(chat.GetAttributes(), key), key)
	}
	require.Contains(t, get(chat.GetAttributes(), "gen_ai.response.finish_reasons"), "tool_use")

	require.Len(t, writes, 2, "the call in doubt, and the one that was run again")
	doubt, rerun := writes[0], writes[1]
	require.Equal(t, "in_doubt", get(doubt.GetAttributes(), "error.type"))
	require.Equal(t, at(9), doubt.GetEndTimeUnixNano())
	require.Equal(t, "2", get(rerun.GetAttributes(), "waymark.epoch"))
	require.Equal(t, turns[2].GetSpanId(), rerun.GetParentSpanId())
	require.Equal(t, []uint64{at(11), at(12)}, []uint64{rerun.GetStartTimeUnixNano(), rerun.GetEndTimeUnixNano()})
	require.Equal(t, doubt.GetSpanId(), rerun.GetLinks()[0].GetSpanId())
	require.Equal(t, "tool_error", get(rerun.GetAttributes(), "error.type"))
	for _, s := range all {
		if parent := s.GetParentSpanId(); len(parent) > 0 {
			require.Contains(t, ids, key(s.GetTraceId(), parent), "the parent of %s", s.GetName())
		}
	}
}

// A call that needs no begin has a span of the time that its outcome says; one that is begun, from its begin on.
func TestTracer_AnswerCalls_SpansOnceRun(t *testing.T) {
	t.Parallel()
	l := newLog(t, "run-1")
	l.add(started())                // 1
	l.add(&schema.TurnAnsweredData{ // 2
		Turn: 1, Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("a secret answer")}}, Model: "model-x-2",
		Calls: []schema.RequestedCall{
			{ToolCallID: "c1", Name: "search", Replay: schema.ReplayPure}, {ToolCallID: "c2", Name: "pay"}, {ToolCallID: "c3", Name: "mail"},
		},
		Usage: &schema.Usage{InputTokens: 100}, DurationMS: 500,
	})
	l.add(&schema.ToolCalledData{ToolCallID: "c2", Name: "pay"})                                  // 3
	l.add(&schema.ToolReturnedData{ToolCallID: "c1", DurationMS: 1500})                           // 4
	l.takeover("worker-2", schema.TakeoverClaim)                                                  // 5
	l.add(&schema.ToolSettledData{ToolCallID: "c2", How: schema.SettledVerified})                 // 6
	l.add(&schema.ToolCalledData{ToolCallID: "c3", Name: "mail"})                                 // 7
	l.add(&schema.ToolFailedData{ToolCallID: "c3", Error: schema.Error{Type: "full"}})            // 8
	l.add(&schema.TurnAnsweredData{Turn: 2, Message: schema.Message{Role: schema.RoleAssistant}}) // 9
	l.add(&schema.RunEndedData{Status: "completed"})                                              // 10
	spent := map[string][][2]uint64{}
	for _, s := range l.all(spans.Options{}) {
		spent[s.GetName()] = append(spent[s.GetName()], [2]uint64{s.GetStartTimeUnixNano(), s.GetEndTimeUnixNano()})
		if s.GetName() == "chat model-x" && s.GetEndTimeUnixNano() == at(2) {
			require.Equal(t, "model-x-2", get(s.GetAttributes(), "gen_ai.response.model"))
			require.Equal(t, "100", get(s.GetAttributes(), "gen_ai.usage.input_tokens"))
		}
	}
	const half = 500_000_000
	require.Equal(t, map[string][][2]uint64{
		"chat model-x":        {{at(1) + half, at(2)}, {at(9), at(9)}},
		"execute_tool search": {{at(2) + half, at(4)}},
		"execute_tool pay":    {{at(3), at(5)}},
		"execute_tool mail":   {{at(7), at(8)}},
		"turn":                {{at(1) + half, at(5)}, {at(6), at(8)}, {at(9), at(9)}},
		"invoke_agent fixer":  {{at(1), at(5)}, {at(5), at(10)}},
	}, spent)
}

func TestTracer_Content_OnlyWhenAsked(t *testing.T) {
	t.Parallel()
	text := func(opts spans.Options) string {
		var b bytes.Buffer
		for _, s := range recovered(t).all(opts) {
			out, err := protojson.Marshal(s)
			require.NoError(t, err)
			b.Write(out)
		}
		return b.String()
	}
	require.NotContains(t, text(spans.Options{}), "secret")
	labelled := text(spans.Options{Labels: []string{"tier"}})
	require.NotContains(t, labelled, "secret")
	require.Contains(t, labelled, "gold")
	whole := text(spans.Options{Content: true})
	for _, secret := range []string{"task", "argument", "answer", "result", "message", "summary", "error"} {
		require.Contains(t, whole, "a secret "+secret)
	}
	require.NotContains(t, whole, "a secret label", "labels are asked for by name")
}

func TestTracer_SameEvents_SameSpans(t *testing.T) {
	t.Parallel()
	l := recovered(t)
	first, again := l.all(spans.Options{Content: true}), l.all(spans.Options{Content: true})
	require.Len(t, again, len(first))
	for i := range first {
		require.True(t, proto.Equal(first[i], again[i]), first[i].GetName())
	}
	// Events that are in the log twice, and those of a fenced executor, change nothing.
	tracker := spans.NewTracker("default", l.run, spans.Options{Content: true})
	var twice []*tracepb.Span
	for i := range l.records {
		for range 2 {
			ended, missing := tracker.Apply(schema.NoKeys, &l.records[i])
			require.False(t, missing)
			twice = append(twice, ended...)
		}
		if i == 11 {
			fenced := l.records[1]
			fenced.Stream = l.records[i].Stream
			ended, _ := tracker.Apply(schema.NoKeys, &fenced)
			require.Empty(t, ended)
		}
	}
	require.Len(t, twice, len(first))
	require.True(t, tracker.Ended())
}

func TestTracer_MissingEvents_Reported(t *testing.T) {
	t.Parallel()
	l := recovered(t)
	tracker := spans.NewTracker("default", l.run, spans.Options{})
	for i := range 3 {
		_, missing := tracker.Apply(schema.NoKeys, &l.records[i])
		require.False(t, missing)
	}
	_, missing := tracker.Apply(schema.NoKeys, &l.records[4])
	require.True(t, missing)
}

func TestTracer_ChildRun_LinkedToCall(t *testing.T) {
	t.Parallel()
	parent := recovered(t).all(spans.Options{})
	child := newLog(t, "child-1")
	d := started()
	d.Parent = &schema.Parent{Run: "run-1", Turn: 1, ToolCallID: "c1"}
	child.add(d).add(&schema.RunEndedData{Status: "completed"})
	root := named(t, child.all(spans.Options{}), "invoke_agent fixer")
	require.Len(t, root.GetLinks(), 1)
	call := named(t, parent, "execute_tool search")
	require.Equal(t, call.GetTraceId(), root.GetLinks()[0].GetTraceId())
	require.Equal(t, call.GetSpanId(), root.GetLinks()[0].GetSpanId())
	require.NotEqual(t, call.GetTraceId(), root.GetTraceId())
	require.Nil(t, root.GetStatus())
}

// Models use ids of calls more than once.
func TestTracer_CallsShareAnID_EventsAndChildrenNameTheirOwn(t *testing.T) {
	t.Parallel()
	l := newLog(t, "run-1")
	l.add(started())
	l.add(&schema.TurnStartedData{Turn: 1})
	l.add(&schema.TurnAnsweredData{Turn: 1, Message: answer("two").Message, Calls: []schema.RequestedCall{
		{ToolCallID: "call_0", Occurrence: 1, Name: "note", Replay: schema.ReplayPure}, {ToolCallID: "call_0", Occurrence: 2, Name: "mail", Replay: schema.ReplayHold},
	}})
	l.add(&schema.ToolDecidedData{ToolCallID: "call_0", Occurrence: 2, Decision: schema.DecisionAsk})
	l.add(&schema.RunWaitingData{InterruptID: "q1", Reason: schema.WaitToolApproval, ToolCallID: "call_0", Occurrence: 2})
	l.control(&schema.RunInputData{InterruptID: "q1", Payload: []byte(`{"decision":"allow"}`), By: "ann"})
	l.add(&schema.ToolDecidedData{ToolCallID: "call_0", Occurrence: 2, Decision: schema.DecisionAllow})
	l.add(&schema.ToolCalledData{ToolCallID: "call_0", Occurrence: 2, Name: "mail", Replay: schema.ReplayHold})
	l.add(&schema.ToolReturnedData{ToolCallID: "call_0", Occurrence: 2})
	l.add(&schema.RunEndedData{Status: "completed"})
	all := l.all(spans.Options{})
	about := 0
	for _, s := range all {
		for _, e := range s.GetEvents() {
			if id := get(e.GetAttributes(), "gen_ai.tool.call.id"); id != "" {
				about++
				require.Equal(t, []string{"call_0", "1", "2"}, []string{id, get(e.GetAttributes(), "waymark.turn"), get(e.GetAttributes(), "waymark.tool.occurrence")}, e.GetName())
			}
		}
	}
	require.Equal(t, 3, about, "two decisions and a question")
	child := newLog(t, "child-1")
	d := started()
	d.Parent = &schema.Parent{Run: "run-1", Turn: 1, ToolCallID: "call_0", Occurrence: 2}
	child.add(d).add(&schema.RunEndedData{Status: "completed"})
	link := named(t, child.all(spans.Options{}), "invoke_agent fixer").GetLinks()[0]
	require.Equal(t, named(t, all, "execute_tool mail").GetSpanId(), link.GetSpanId())
}

func TestTracer_PhasesAndReopenedRuns_Spans(t *testing.T) {
	t.Parallel()
	l := newLog(t, "run-2")
	l.add(started())                                   // 1
	l.add(&schema.PhaseStartedData{Phase: "plan"})     // 2
	l.add(&schema.PhaseCompletedData{Phase: "plan"})   // 3
	l.add(&schema.RunEndedData{Status: "cancelled"})   // 4
	l.add(&schema.CheckpointMarkedData{Name: "after"}) // 5
	l.takeover("worker-2", schema.TakeoverReopen)      // 6
	l.add(&schema.RunEndedData{Status: "completed"})   // 7
	all := l.all(spans.Options{})
	byID(t, all)
	require.Len(t, all, 3)
	phase := named(t, all, "phase plan")
	require.Equal(t, []uint64{at(2), at(3)}, []uint64{phase.GetStartTimeUnixNano(), phase.GetEndTimeUnixNano()})
	require.Equal(t, "cancelled", get(all[1].GetAttributes(), "waymark.run.status"))
	require.Equal(t, []uint64{at(6), at(7)}, []uint64{all[2].GetStartTimeUnixNano(), all[2].GetEndTimeUnixNano()})
}

func TestTracer_EventsWithoutASpan_HaveTheirMembersAsAttributes(t *testing.T) {
	t.Parallel()
	l := newLog(t, "run-3")
	l.add(started())
	l.add(&schema.RunWaitingData{
		InterruptID: "w1", Reason: schema.WaitHumanInput, Message: "Which?", ResponseSchema: jsontext.Value(`{"type":"string"}`),
		Extra: jsontext.Value(`{"unknown":"text"}`),
	})
	l.control(&schema.RunInputData{InterruptID: "w1", By: "ann", Payload: jsontext.Value(`"blue"`)})
	l.add(&schema.ContextCompactedData{ThroughTurn: 3, Summary: "Blue."})
	l.add(&schema.RunEndedData{Status: "completed"})
	const closed = "waymark.event.id waymark.interrupt_id waymark.reason, waymark.event.id waymark.interrupt_id, waymark.event.id waymark.through_turn"
	const opened = "waymark.event.id waymark.interrupt_id waymark.message waymark.reason waymark.response_schema, " +
		"waymark.by waymark.event.id waymark.interrupt_id waymark.payload, waymark.event.id waymark.summary waymark.through_turn"
	for content, want := range map[bool]string{false: closed, true: opened} {
		var list []string
		events := named(t, l.all(spans.Options{Content: content}), "invoke_agent fixer").GetEvents()
		for _, e := range events {
			var keys []string
			for _, a := range e.GetAttributes() {
				keys = append(keys, a.GetKey())
			}
			slices.Sort(keys)
			list = append(list, strings.Join(keys, " "))
		}
		require.Equal(t, want, strings.Join(list, ", "))
		require.Equal(t, "3", get(events[2].GetAttributes(), "waymark.through_turn"))
		if content {
			require.Equal(t, `"blue"`, get(events[1].GetAttributes(), "waymark.payload"))
		}
	}
}

func TestTracer_ManyEvents_Counted(t *testing.T) {
	t.Parallel()
	l := newLog(t, "run-3")
	l.add(started())
	for range 200 {
		l.add(&schema.LimitReachedData{Limit: "tokens"})
	}
	l.add(&schema.RunEndedData{Status: "completed"})
	root := named(t, l.all(spans.Options{}), "invoke_agent fixer")
	require.Len(t, root.GetEvents(), 128)
	require.EqualValues(t, 72, root.GetDroppedEventsCount())
}

// TestTracer_ManyTurns_WholeTraces runs 12 turns with 0 to 3 calls each, which return or fail: each turn and each call
// has one span, whose parent has one, too, and none stays open.
func TestTracer_ManyTurns_WholeTraces(t *testing.T) {
	t.Parallel()
	l := newLog(t, "run-1")
	l.add(started())
	calls := 0
	const turns = 12
	for turn := int32(1); turn <= turns; turn++ {
		d := &schema.TurnAnsweredData{Turn: turn, Message: answer("text").Message}
		for i := range turn % 4 {
			d.Calls = append(d.Calls, schema.RequestedCall{ToolCallID: string('a' + i), Name: "search", Replay: schema.ReplayPure})
		}
		l.add(d)
		for i, c := range d.Calls {
			if i == 0 {
				l.add(&schema.ToolFailedData{ToolCallID: c.ToolCallID, Error: schema.Error{Type: "io"}})
			} else {
				l.add(&schema.ToolReturnedData{ToolCallID: c.ToolCallID, Result: jsontext.Value(`1`)})
			}
			calls++
		}
	}
	l.add(&schema.RunEndedData{Status: "completed"})
	all := l.all(spans.Options{})
	ids := byID(t, all)
	kinds := make(map[string]int)
	for _, s := range all {
		kinds[s.GetName()]++
		if parent := s.GetParentSpanId(); len(parent) > 0 {
			require.Contains(t, ids, key(s.GetTraceId(), parent), "the parent of %s", s.GetName())
		}
	}
	require.Equal(t, map[string]int{"invoke_agent fixer": 1, "turn": turns, "chat model-x": turns, "execute_tool search": calls}, kinds)
}
