package spans

import (
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
)

// Attributes of the GenAI semantic conventions, as of November 2026 (open-telemetry/semantic-conventions-genai).
const (
	attrOperation     = "gen_ai.operation.name"
	attrProvider      = "gen_ai.provider.name"
	attrAgent         = "gen_ai.agent.name"
	attrConversation  = "gen_ai.conversation.id"
	attrModel         = "gen_ai.request.model"
	attrResponseModel = "gen_ai.response.model"
	attrResponseID    = "gen_ai.response.id"
	attrFinishReasons = "gen_ai.response.finish_reasons"
	attrInputTokens   = "gen_ai.usage.input_tokens"
	attrOutputTokens  = "gen_ai.usage.output_tokens"
	attrCacheRead     = "gen_ai.usage.cache_read.input_tokens"
	attrCacheWrite    = "gen_ai.usage.cache_write.input_tokens"
	attrReasoning     = "gen_ai.usage.reasoning.output_tokens"
	attrToolName      = "gen_ai.tool.name"
	attrToolCallID    = "gen_ai.tool.call.id"
	attrError         = "error.type"
	// Content attributes, set on request only.
	attrInput     = "gen_ai.input.messages"
	attrOutput    = "gen_ai.output.messages"
	attrArguments = "gen_ai.tool.call.arguments"
	attrResult    = "gen_ai.tool.call.result"
)

// Waymark's own attributes.
const (
	attrRun        = "waymark.run.id"
	attrEpoch      = "waymark.epoch"
	attrTurn       = "waymark.turn"
	attrPurpose    = "waymark.turn.purpose"
	attrPhase      = "waymark.phase"
	attrExecutor   = "waymark.executor"
	attrStatus     = "waymark.run.status"
	attrTakeover   = "waymark.takeover.reason"
	attrOutcome    = "waymark.outcome"
	attrReplay     = "waymark.tool.replay"
	attrOccurrence = "waymark.tool.occurrence"
	attrLink       = "waymark.link"
	attrLabel      = "waymark.label."
	// attrCut names the attributes that were omitted because they were too long.
	attrCut = "waymark.content.left_out"
)

// Outcomes that no event names.
const (
	// outcomeInDoubt: the epoch changed before the call had an outcome, or before the turn ended.
	outcomeInDoubt = "in_doubt"
	// outcomeOpen: the run ended before the call did.
	outcomeOpen = "open"
	// outcomeRepeated: the call was begun again.
	outcomeRepeated = "repeated"
)

func text(key, value string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: valid(value)}}}
}

func integer(key string, value int64) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: value}}}
}

func texts(key string, values []string) *commonpb.KeyValue {
	list := make([]*commonpb.AnyValue, len(values))
	for i, v := range values {
		list[i] = &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: valid(v)}}
	}
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{ArrayValue: &commonpb.ArrayValue{Values: list}}}}
}

// attrs collects attributes and omits empty ones.
type attrs []*commonpb.KeyValue

func (a *attrs) text(key, value string) {
	if value != "" {
		*a = append(*a, text(key, value))
	}
}

func (a *attrs) number(key string, value int64) {
	if value != 0 {
		*a = append(*a, integer(key, value))
	}
}

// content adds text of people or models. Text too long for an attribute is omitted and counted.
func (a *attrs) content(key, value string) {
	if len(value) > maxContent {
		*a = append(*a, text(attrCut, key))
		return
	}
	a.text(key, value)
}
