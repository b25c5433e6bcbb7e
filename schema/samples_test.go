package schema_test

import (
	"slices"
	"strings"

	"github.com/waymarkio/waymark/internal/harness/randomlog"
	"github.com/waymarkio/waymark/schema"
)

// samples has one full example of the data of every event type: a plausible one, or one that is made of its rules.
func samples() []schema.Data {
	all := plausible()
	for _, name := range schema.EventNames() {
		if !slices.ContainsFunc(all, func(d schema.Data) bool { return d.EventName() == name }) {
			all = append(all, randomlog.Example(name))
		}
	}
	return all
}

func plausible() []schema.Data {
	zero := strings.Repeat("0", 64)
	yes := true
	usage := &schema.Usage{InputTokens: 10, OutputTokens: 5, CacheReadInputTokens: 3, Extra: []byte(`{"audio_tokens":1}`)}
	failure := &schema.Error{Type: "timeout", Message: "no answer", Code: "504", Retryable: true}
	return []schema.Data{
		&schema.RunStartedData{
			Agent: "coder", Executor: "ex-1", Task: "mend the \"bug\" in naïve.go 🐛", ThreadID: "th-1", Model: "m", ModelTier: "large",
			Provider: "p", Labels: map[string]string{"team": "blue"}, Parent: &schema.Parent{Run: "r0", Turn: 2, ToolCallID: "c9"},
			MaxTurns: 20, ResumedFrom: "r-1", Instance: "a1", Handoff: &schema.HandoffSource{Run: "r-1", HandoffID: "h-1", OfferHash: zero}, Source: []byte(`{"cwd":"/src"}`),
		},
		&schema.RunResumedData{
			Executor: "ex-2", Instance: "b2", Reason: "claim", RequestID: "q-1",
			From: schema.From{Epoch: 1, Sequence: 7, Digest: zero},
		},
		&schema.RunWaitingData{
			InterruptID: "i-1", Reason: "tool_approval", Message: "may I?", ToolCallID: "c1", Occurrence: 1,
			ResponseSchema: []byte(`{"type":"boolean"}`), ExpiresAt: "2026-03-01T13:00:00Z",
		},
		&schema.RunInputData{InterruptID: "i-1", Status: "resolved", Payload: []byte("true"), By: "ann"},
		&schema.RunCancelRequestedData{By: "ann", Reason: "too dear"},
		&schema.RunPausedData{By: "ann", Reason: "the provider bills twice"},
		&schema.RunOrphanedData{Executor: "ex-1", Instance: "a1", LastSeen: "2026-03-01T12:00:00Z", Missed: 3},
		&schema.RunInterruptedData{Reason: "shutdown"},
		&schema.RunEndedData{Status: "failed", Output: []byte(`{"n":1}`), Summary: "it failed", CompletedBy: "c1", Error: failure, Usage: usage},
		&schema.TurnStartedData{Turn: 1, Messages: []schema.Message{userMessage("hi")}, Signals: []string{"s-1"}, Purpose: "work"},
		&schema.TurnAnsweredData{
			Turn: 1, Message: assistantMessage(schema.Text("I look."), schema.CallPart("c1", "ls"), schema.CallPart("c2", "rm")),
			Calls: []schema.RequestedCall{
				{
					ToolCallID: "c1", Occurrence: 1, Name: "ls", Arguments: []byte(`{"path":"/"}`), Replay: schema.ReplayVerify,
					IdempotencyKey: "r1.1.c1.1", VerifySubject: "tools.verify.ls", SideEffect: "none", TimeoutMS: 30000, Source: []byte(`{"index":0}`),
				},
				{ToolCallID: "c2", Name: "rm", Error: &schema.Error{Type: "unknown_tool", Message: "there is no tool rm"}},
			},
			FinishReasons: []string{"tool_calls"}, ResponseID: "resp-1", Model: "m-2026", Usage: usage, DurationMS: 1200, Source: []byte(`{"raw":null}`),
		},
		&schema.TurnEndedData{
			Turn: 1, Messages: []schema.Message{{Role: "tool", Parts: []schema.Part{responsePart("c1")}}},
			Usage: usage, Error: failure,
		},
		&schema.MessageAddedData{Message: assistantMessage(
			schema.Reasoning("let me look"), schema.Text("I look."), schema.CallPart("c1", "ls"),
			schema.Part{Type: schema.PartURI, Modality: "image", MimeType: "image/png", URI: "https://example.org/a.png"},
		)},
		&schema.ToolCalledData{
			ToolCallID: "c1", Name: "ls", Arguments: []byte(`{"path":"/"}`), Replay: schema.ReplayVerify,
			IdempotencyKey: "r1.1.c1.1", VerifySubject: "tools.verify.ls", SideEffect: "none", Occurrence: 1, TimeoutMS: 30000,
		},
		&schema.ToolReturnedData{ToolCallID: "c1", Occurrence: 1, Result: []byte(`["a","b"]`), IsError: &yes, DurationMS: 12},
		&schema.ToolFailedData{ToolCallID: "c1", Occurrence: 1, Error: *failure, Attempt: 2, DurationMS: 3},
		&schema.ToolDecidedData{ToolCallID: "c1", Occurrence: 1, Decision: "deny", Policy: "no-network", Reason: "it is", By: "policy"},
		&schema.ToolSettledData{ToolCallID: "c1", Occurrence: 1, How: schema.SettledVerified, Result: []byte(`1`), By: "ex-2"},
		&schema.PhaseStartedData{Phase: "plan", Index: 1},
		&schema.PhaseCompletedData{
			Phase: "plan", Index: 1,
			Refs: []schema.Ref{{Path: "/output", DataRef: schema.DataRef("r1", zero), Size: 300000}},
		},
		&schema.LimitReachedData{Limit: "tokens", Value: []byte("100001"), Maximum: []byte("100000")},
		&schema.StateSetData{
			Key: "plan", Value: []byte(`"c2VhbGVk"`),
			Refs: []schema.Ref{{Path: "/value", KeyID: "k-2026", Codec: "aes-256-gcm"}},
		},
		&schema.StateDeletedData{Key: "plan"},
		&schema.SignalSentData{SignalID: "s-1", Name: "priority", Payload: []byte(`{"level":1}`), By: "ann"},
		&schema.SignalConsumedData{SignalIDs: []string{"s-1"}, Extra: []byte(`{"by_rule":"first"}`)},
		&schema.ContextCompactedData{Summary: "so far", ThroughTurn: 3, TokensBefore: 9000, TokensAfter: 500},
		&schema.HandoffOfferedData{
			HandoffID: "h-1", Kind: "transfer", Reason: "threshold_critical",
			Completed: []schema.HandoffCompleted{{File: "a.go", Status: "done", Tests: &schema.HandoffTests{Passed: 3}, Notes: "n"}},
			Remaining: []schema.HandoffRemaining{{File: "b.go", Description: "write it", ReferencePattern: "a.go", Priority: "high"}},
			Context:   &schema.HandoffContext{Decisions: []string{"x"}, FilesModified: []string{"a.go"}},
			NextAgent: "tester", CreatedAt: "2026-01-02T03:04:05Z", AgentID: "coder", SizeChars: 1200,
		},
		&schema.HandoffAcceptedData{HandoffID: "h-1", By: "tester", ChildRun: "r2", OfferHash: zero},
		&schema.HandoffDeclinedData{HandoffID: "h-1", By: "tester", Reason: "busy"},
		&schema.HandoffClosedData{HandoffID: "h-1", Reason: "done"},
		&schema.ArtifactAddedData{
			ArtifactID: "a-1", Name: "report", URI: "file:///r.md", MediaType: "text/markdown", Size: 3,
			Digest: "sha256-" + zero, Content: []byte(`"abc"`),
		},
		&schema.CheckpointMarkedData{Name: "before the release"},
		&schema.ErrorRaisedData{Error: *failure, Scope: "tool", Turn: 1},
	}
}
