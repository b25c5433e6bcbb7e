package schema

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// newData makes empty data for an event name.
var newData = map[string]func() Data{
	RunStarted:         func() Data { return new(RunStartedData) },
	RunResumed:         func() Data { return new(RunResumedData) },
	RunWaiting:         func() Data { return new(RunWaitingData) },
	RunInput:           func() Data { return new(RunInputData) },
	RunCancelRequested: func() Data { return new(RunCancelRequestedData) },
	RunOrphaned:        func() Data { return new(RunOrphanedData) },
	RunInterrupted:     func() Data { return new(RunInterruptedData) },
	RunEnded:           func() Data { return new(RunEndedData) },
	TurnStarted:        func() Data { return new(TurnStartedData) },
	TurnAnswered:       func() Data { return new(TurnAnsweredData) },
	TurnEnded:          func() Data { return new(TurnEndedData) },
	MessageAdded:       func() Data { return new(MessageAddedData) },
	ToolCalled:         func() Data { return new(ToolCalledData) },
	StateSet:           func() Data { return new(StateSetData) },
	StateDeleted:       func() Data { return new(StateDeletedData) },
	SignalSent:         func() Data { return new(SignalSentData) },
	SignalConsumed:     func() Data { return new(SignalConsumedData) },
	ToolReturned:       func() Data { return new(ToolReturnedData) },
	ToolFailed:         func() Data { return new(ToolFailedData) },
	ToolDecided:        func() Data { return new(ToolDecidedData) },
	ToolSettled:        func() Data { return new(ToolSettledData) },
	PhaseStarted:       func() Data { return new(PhaseStartedData) },
	PhaseCompleted:     func() Data { return new(PhaseCompletedData) },
	LimitReached:       func() Data { return new(LimitReachedData) },
	ContextCompacted:   func() Data { return new(ContextCompactedData) },
	HandoffOffered:     func() Data { return new(HandoffOfferedData) },
	HandoffAccepted:    func() Data { return new(HandoffAcceptedData) },
	HandoffDeclined:    func() Data { return new(HandoffDeclinedData) },
	HandoffClosed:      func() Data { return new(HandoffClosedData) },
	ArtifactAdded:      func() Data { return new(ArtifactAddedData) },
	CheckpointMarked:   func() Data { return new(CheckpointMarkedData) },
	ErrorRaised:        func() Data { return new(ErrorRaisedData) },
}

// EventNames are the names of the events of the vocabulary that a run's log may have, sorted.
func EventNames() []string { return slices.Sorted(maps.Keys(newData)) }

// NewData returns empty data for an event name of the vocabulary, or nil.
func NewData(name string) Data {
	if f := newData[name]; f != nil {
		return f()
	}
	return nil
}

// ParseData reads and validates the data of an event. Types that this version does not know give nil
// and no error. Errors are of type [*DataError].
func ParseData(e *Event) (Data, error) {
	name := e.Name()
	data := NewData(name)
	if data == nil {
		return nil, nil
	}
	if !e.isJSON() {
		return nil, &DataError{Event: name, Problem: fmt.Sprintf("content type %.60q is not JSON", e.DataContentType)}
	}
	if len(e.Data) == 0 {
		return nil, &DataError{Event: name, Problem: "is missing"}
	}
	if kind := jsontext.Value(e.Data).Kind(); kind != '{' && kind != 0 {
		if !jsontext.Value(e.Data).IsValid() {
			return nil, &DataError{Event: name, Problem: "is no JSON"}
		}
		return nil, &DataError{Event: name, Problem: fmt.Sprintf("is a JSON %s where an object is wanted", kind)}
	}
	if tooDeep(e.Data) {
		return nil, &DataError{Event: name, Problem: fmt.Sprintf("is nested deeper than %d", MaxJSONDepth)}
	}
	if err := json.Unmarshal(e.Data, data); err != nil {
		return nil, dataError(name, err)
	}
	if offered, ok := data.(*HandoffOfferedData); ok {
		if err := offered.takeCamelCase(); err != nil {
			return nil, err
		}
	}
	if err := Validate(data); err != nil {
		return nil, err
	}
	return data, nil
}

// tooDeep bounds nesting before a recursive reader sees the text. Brackets inside strings do not count.
func tooDeep(b []byte) bool {
	if bytes.Count(b, []byte{'{'})+bytes.Count(b, []byte{'['}) <= MaxJSONDepth {
		return false // the usual case, decided without a look at each byte
	}
	depth, inString := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case inString:
			switch c {
			case '\\':
				i++
			case '"':
				inString = false
			}
		case c == '"':
			inString = true
		case c == '{', c == '[':
			if depth++; depth > MaxJSONDepth {
				return true
			}
		case c == '}', c == ']':
			depth--
		}
	}
	return false
}

// dataError turns an error of the JSON reader into one that names the path.
func dataError(name string, err error) *DataError {
	if known, ok := errors.AsType[*DataError](err); ok {
		return known
	}
	out := &DataError{Event: name, Problem: err.Error()}
	var semantic *json.SemanticError
	var syntactic *jsontext.SyntacticError
	switch {
	case errors.As(err, &semantic):
		out.Path = string(semantic.JSONPointer)
		out.Problem = "has the wrong type"
		if semantic.JSONKind != 0 && semantic.GoType != nil {
			out.Problem = fmt.Sprintf("is a JSON %s where %s is wanted", semantic.JSONKind, jsonNameOf(semantic.GoType.Kind().String()))
		}
		if semantic.Err != nil {
			out.Problem += ": " + semantic.Err.Error()
		}
	case errors.As(err, &syntactic):
		out.Path = string(syntactic.JSONPointer)
		out.Problem = "is not valid JSON"
		if syntactic.Err != nil {
			out.Problem += ": " + syntactic.Err.Error()
		}
	}
	return out
}

func jsonNameOf(kind string) string {
	switch kind {
	case "struct", "map":
		return "an object"
	case "slice", "array":
		return "an array"
	case "bool":
		return "a boolean"
	case "string":
		return "a string"
	case "int", "int32", "int64", "uint32", "uint64":
		return "an integer"
	default:
		return "a " + kind
	}
}

// Validate returns a [*DataError] with the JSON path of the first error in data, or nil.
func Validate(data Data) error {
	if data == nil {
		return &DataError{Problem: "is missing"}
	}
	v := &checker{event: data.EventName()}
	switch d := data.(type) {
	case *RunStartedData:
		v.name("/agent", d.Agent)
		v.name("/executor", d.Executor)
		v.labels(d.Labels, d.Refs)
		v.notNegative("/max_turns", int64(d.MaxTurns))
		v.notNegative("/max_tokens", d.MaxTokens)
		v.optional("/completion_tool", d.CompletionTool)
		if d.Parent != nil {
			v.name("/parent/run", d.Parent.Run)
			v.notNegative("/parent/turn", int64(d.Parent.Turn))
			v.optional("/parent/tool_call_id", d.Parent.ToolCallID)
		}
		v.optionalName("/instance", d.Instance)
		if d.Handoff != nil {
			v.name("/handoff/run", d.Handoff.Run)
			v.required("/handoff/handoff_id", d.Handoff.HandoffID)
			v.required("/handoff/offer_hash", d.Handoff.OfferHash)
			v.hash("/handoff/offer_hash", d.Handoff.OfferHash)
		}
		v.optional("/thread_id", d.ThreadID)
		v.initial(d)
		if d.Base != nil {
			if path, problem := d.Base.check(); problem != "" {
				v.fail(path, "%s", problem)
			}
		}
		v.refs(d.Refs)
	case *RunResumedData:
		v.name("/executor", d.Executor)
		v.optionalName("/instance", d.Instance)
		v.oneOf("/reason", d.Reason, TakeoverClaim, TakeoverRequest, TakeoverRestart, TakeoverInput, TakeoverReopen, TakeoverRewind)
		v.required("/request_id", d.RequestID)
		if d.From.Epoch == 0 {
			v.fail("/from/epoch", "is required")
		}
		v.required("/from/digest", d.From.Digest)
		v.hash("/from/digest", d.From.Digest)
		switch {
		case d.To == nil && d.Reason == TakeoverRewind:
			v.fail("/to", "is required with reason rewind")
		case d.To != nil && d.Reason != TakeoverRewind:
			v.fail("/to", "belongs to reason rewind only")
		case d.To != nil:
			if path, problem := d.To.check(); problem != "" {
				v.fail("/to"+strings.TrimPrefix(path, "/base"), "%s", problem)
			}
		}
	case *RunWaitingData:
		v.required("/interrupt_id", d.InterruptID)
		v.oneOf("/reason", d.Reason, WaitHumanInput, WaitToolApproval, WaitExternalSystem, WaitAuth, WaitToolInDoubt)
		v.optional("/tool_call_id", d.ToolCallID)
		if d.Reason == WaitToolInDoubt {
			v.required("/tool_call_id", d.ToolCallID)
		}
		v.notNegative("/occurrence", int64(d.Occurrence))
		v.time("/expires_at", d.ExpiresAt)
		v.refs(d.Refs)
	case *RunInputData:
		v.required("/interrupt_id", d.InterruptID)
		v.oneOf("/status", d.Status, "", InputResolved, InputCancelled, InputExpired)
		v.refs(d.Refs)
	case *RunCancelRequestedData:
		v.refs(d.Refs)
	case *RunOrphanedData:
		v.optionalName("/executor", d.Executor)
		v.optionalName("/instance", d.Instance)
		v.time("/last_seen", d.LastSeen)
		v.notNegative("/missed", d.Missed)
	case *RunInterruptedData:
		v.oneOf("/reason", d.Reason, "", InterruptedShutdown, InterruptedPreempted, InterruptedUnreadable, InterruptedBudget, InterruptedWaiting)
	case *RunEndedData:
		v.oneOf("/status", d.Status, string(StatusCompleted), string(StatusFailed), string(StatusCancelled))
		v.optional("/completed_by", d.CompletedBy)
		v.error(d.Error)
		v.usage(d.Usage)
		v.refs(d.Refs)
	case *TurnStartedData:
		v.turn("/turn", d.Turn)
		v.oneOf("/purpose", d.Purpose, "", PurposeWork, PurposeRecovery)
		v.messages("/messages", d.Messages)
		v.ids("/signals", d.Signals)
		v.refs(d.Refs)
	case *TurnAnsweredData:
		v.answer(d)
	case *TurnEndedData:
		v.turn("/turn", d.Turn)
		v.messages("/messages", d.Messages)
		v.usage(d.Usage)
		v.error(d.Error)
		v.refs(d.Refs)
	case *MessageAddedData:
		v.message("/message", &d.Message)
		v.refs(d.Refs)
	case *ToolCalledData:
		v.call("", d, d.Refs)
		v.refs(d.Refs)
	case *ToolReturnedData:
		v.required("/tool_call_id", d.ToolCallID)
		v.notNegative("/occurrence", int64(d.Occurrence))
		v.notNegative("/attempt", d.Attempt)
		v.notNegative("/duration_ms", d.DurationMS)
		v.refs(d.Refs)
	case *ToolFailedData:
		v.required("/tool_call_id", d.ToolCallID)
		v.notNegative("/occurrence", int64(d.Occurrence))
		v.error(&d.Error)
		v.notNegative("/attempt", d.Attempt)
		v.notNegative("/duration_ms", d.DurationMS)
		v.refs(d.Refs)
	case *ToolDecidedData:
		v.required("/tool_call_id", d.ToolCallID)
		v.notNegative("/occurrence", int64(d.Occurrence))
		v.oneOf("/decision", d.Decision, DecisionAllow, DecisionDeny, DecisionAsk)
		v.oneOf("/mode", d.Mode, "", ModeEnforce, ModeObserve)
		v.refs(d.Refs)
	case *ToolSettledData:
		v.required("/tool_call_id", d.ToolCallID)
		v.notNegative("/occurrence", int64(d.Occurrence))
		v.oneOf("/how", string(d.How), string(SettledRerun), string(SettledVerified), string(SettledAdopted),
			string(SettledAbandoned), string(SettledDecided))
		v.refs(d.Refs)
	case *PhaseStartedData:
		v.required("/phase", d.Phase)
	case *PhaseCompletedData:
		v.required("/phase", d.Phase)
		v.refs(d.Refs)
	case *LimitReachedData:
		v.oneOf("/limit", d.Limit, LimitTurns, LimitTokens, LimitTime, LimitContext, LimitBudget)
	case *StateSetData:
		v.required("/key", d.Key)
		if len(d.Value) == 0 && !slices.ContainsFunc(d.Refs, func(r Ref) bool { return r.Path == "/value" }) {
			v.fail("/value", "is required")
		}
		v.refs(d.Refs)
	case *StateDeletedData:
		v.required("/key", d.Key)
	case *SignalSentData:
		v.required("/signal_id", d.SignalID)
		v.required("/name", d.Name)
		v.refs(d.Refs)
	case *SignalConsumedData:
		if len(d.SignalIDs) == 0 {
			v.fail("/signal_ids", "is required")
		}
		v.ids("/signal_ids", d.SignalIDs)
	case *ContextCompactedData:
		if d.Summary == "" && !slices.ContainsFunc(d.Refs, func(r Ref) bool { return r.Path == "/summary" }) {
			v.fail("/summary", "is required")
		}
		v.notNegative("/through_turn", int64(d.ThroughTurn))
		v.notNegative("/tokens_before", d.TokensBefore)
		v.notNegative("/tokens_after", d.TokensAfter)
		v.refs(d.Refs)
	case *HandoffOfferedData:
		v.handoff(d)
	case *HandoffAcceptedData:
		v.required("/handoff_id", d.HandoffID)
		v.hash("/offer_hash", d.OfferHash)
		v.optionalName("/child_run", d.ChildRun)
		v.refs(d.Refs)
	case *HandoffDeclinedData:
		v.required("/handoff_id", d.HandoffID)
		v.optionalName("/child_run", d.ChildRun)
		v.refs(d.Refs)
	case *HandoffClosedData:
		v.required("/handoff_id", d.HandoffID)
		v.optionalName("/child_run", d.ChildRun)
		v.refs(d.Refs)
	case *ArtifactAddedData:
		v.required("/artifact_id", d.ArtifactID)
		v.notNegative("/size", d.Size)
		v.refs(d.Refs)
	case *CheckpointMarkedData:
		v.required("/name", d.Name)
	case *ErrorRaisedData:
		v.error(&d.Error)
		v.oneOf("/scope", d.Scope, "", "run", "turn", "tool")
		v.notNegative("/turn", int64(d.Turn))
		v.refs(d.Refs)
	}
	if v.err != nil {
		return v.err
	}
	return nil
}

// checker keeps the first error.
type checker struct {
	event string
	err   *DataError
}

func (v *checker) fail(path, format string, args ...any) {
	if v.err == nil {
		v.err = &DataError{Event: v.event, Path: path, Problem: fmt.Sprintf(format, args...)}
	}
}

// initial checks the initial state of a run.
func (v *checker) initial(d *RunStartedData) {
	seen := make(map[string]bool, len(d.State))
	for i := range d.State {
		path := fmt.Sprintf("/state/%d", i)
		v.required(path+"/key", d.State[i].Key)
		if seen[d.State[i].Key] {
			v.fail(path+"/key", "is given twice")
		}
		seen[d.State[i].Key] = true
		if len(d.State[i].Value) == 0 && !slices.ContainsFunc(d.Refs, func(r Ref) bool { return r.Path == path+"/value" }) {
			v.fail(path+"/value", "is required")
		}
	}
}

func (v *checker) name(path, s string) {
	switch {
	case s == "":
		v.fail(path, "is required")
	case !ValidName(s):
		v.fail(path, "%.80q is not a valid name: 1 to %d of A-Z a-z 0-9 _ -, beginning with a letter or digit", s, MaxName)
	}
}

func (v *checker) optionalName(path, s string) {
	if s != "" {
		v.name(path, s)
	}
}

// required checks an identifier: present, not longer than MaxIdentifier, valid UTF-8, without control characters
// (they would break logs and terminals).
func (v *checker) required(path, s string) {
	if s == "" {
		v.fail(path, "is required")
		return
	}
	v.optional(path, s)
}

func (v *checker) optional(path, s string) {
	if len(s) > MaxIdentifier {
		v.fail(path, "is %d bytes long, at most %d", len(s), MaxIdentifier)
		return
	}
	for _, r := range s {
		if isForbidden(r) || r == utf8.RuneError {
			v.fail(path, "has a control character or invalid UTF-8")
			return
		}
	}
}

func (v *checker) oneOf(path, s string, allowed ...string) {
	if slices.Contains(allowed, s) {
		return
	}
	if s == "" {
		v.fail(path, "is required")
		return
	}
	v.fail(path, "%.80q is none of %q", s, allowed)
}

func (v *checker) notNegative(path string, n int64) {
	if n < 0 {
		v.fail(path, "is negative")
	}
}

func (v *checker) turn(path string, n int32) {
	if n < 1 {
		v.fail(path, "must be 1 or more")
	}
}

func (v *checker) time(path, s string) {
	if s == "" {
		return
	}
	if !validTime(s) {
		v.fail(path, "%.60q is not an RFC 3339 time", s)
	}
}

func (v *checker) hash(path, s string) {
	if s != "" && !isHash(s) {
		v.fail(path, "is not 64 lower-case hex digits")
	}
}

func (v *checker) labels(labels map[string]string, refs []Ref) {
	if len(labels) > MaxLabels {
		v.fail("/labels", "has %d entries, at most %d", len(labels), MaxLabels)
	}
	for k, val := range labels {
		if k == "" || len(k) > MaxLabelKey || len(val) > MaxLabelValue && !isEncrypted(refs, "/labels/"+pointerToken(k)) {
			// Naming the smallest offending key would be nicer, but the verdict must not depend on which one is
			// named.
			v.fail("/labels", "keys have 1 to %d bytes, values at most %d", MaxLabelKey, MaxLabelValue)
		}
	}
}

func (v *checker) error(e *Error) { v.errorAt("", e) }

func (v *checker) errorAt(path string, e *Error) {
	if e != nil && e.Type == "" {
		v.fail(path+"/error/type", "is required")
	}
}

func (v *checker) usage(u *Usage) {
	if u == nil {
		return
	}
	v.notNegative("/usage/input_tokens", u.InputTokens)
	v.notNegative("/usage/output_tokens", u.OutputTokens)
	v.notNegative("/usage/cache_read_input_tokens", u.CacheReadInputTokens)
	v.notNegative("/usage/cache_creation_input_tokens", u.CacheCreationInputTokens)
	v.notNegative("/usage/reasoning_output_tokens", u.ReasoningOutputTokens)
}

// answer checks an answer. The fold checks how many calls a turn may have.
func (v *checker) answer(d *TurnAnsweredData) {
	v.turn("/turn", d.Turn)
	v.oneOf("/message/role", d.Message.Role, RoleAssistant)
	v.message("/message", &d.Message)
	for i := range d.Calls {
		if v.err != nil {
			return
		}
		path := fmt.Sprintf("/calls/%d", i)
		v.call(path, d.Calls[i].Called(), d.Refs)
		v.errorAt(path, d.Calls[i].Error)
	}
	v.usage(d.Usage)
	v.notNegative("/duration_ms", d.DurationMS)
	v.refs(d.Refs)
}

// call checks the fields of a call in an answer or in tool.called.
func (v *checker) call(path string, c *ToolCalledData, refs []Ref) {
	v.required(path+"/tool_call_id", c.ToolCallID)
	v.notNegative(path+"/occurrence", int64(c.Occurrence))
	if c.Name == "" || !isEncrypted(refs, path+"/name") { // the cipher text of a name may be longer than a name
		v.required(path+"/name", c.Name)
	}
	v.oneOf(path+"/replay", string(c.Replay), "", string(ReplayPure), string(ReplayIdempotent), string(ReplayVerify), string(ReplayHold))
	v.optional(path+"/verify_subject", c.VerifySubject)
	if c.Replay == ReplayVerify {
		v.required(path+"/verify_subject", c.VerifySubject)
	}
	v.notNegative(path+"/timeout_ms", c.TimeoutMS)
}

func (v *checker) refs(refs []Ref) {
	for i, r := range refs {
		path := fmt.Sprintf("/refs/%d", i)
		if r.Path == "" || r.Path[0] != '/' || len(r.Path) > MaxIdentifier {
			v.fail(path+"/path", "is not a JSON Pointer of at most %d bytes", MaxIdentifier)
		}
		v.optional(path+"/key_id", r.KeyID)
		switch {
		case r.KeyID != "":
			v.required(path+"/codec", r.Codec)
		case r.Codec != "":
			v.fail(path+"/key_id", "is required with a codec")
		}
		if r.DataRef != "" || r.KeyID == "" {
			if _, _, err := ParseDataRef(r.DataRef); err != nil {
				v.fail(path+"/dataref", "%s", err)
			}
		}
		v.notNegative(path+"/size", r.Size)
	}
}

// ids checks a list of identifiers.
func (v *checker) ids(path string, ids []string) {
	if len(ids) > MaxSignals {
		v.fail(path, "has %d entries, at most %d are allowed", len(ids), MaxSignals)
	}
	for i, id := range ids {
		v.required(fmt.Sprintf("%s/%d", path, i), id)
	}
}
