package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Decision is a policy's word about a call.
type Decision struct {
	// Decision is allow, deny or ask: [schema.DecisionAllow] and the others. Required.
	Decision string
	// Policy names the rule that decided.
	Policy string
	// Reason in words. Of a denial it is what the model sees.
	Reason string
	// Message is what a person is asked; empty means a question that names tool and reason. For ask only, as the rest.
	Message string
	// ResponseSchema is a JSON Schema of the answer; empty means [ApprovalSchema]. The answer needs a member decision
	// with allow or deny in any case; a member reason is kept, too.
	ResponseSchema jsontext.Value
	// Expires is how long the answer is waited for; 0 means for ever. What has expired is denied.
	Expires time.Duration
}

// Policy decides about a call before its tool runs. Every decision is recorded before it is acted on, and a recorded
// one is kept: neither a policy nor a person decides about the same call again, in this process or any that takes
// the run over. An error is returned by Tool; nothing is recorded then, and the tool does not run. The run must not be
// published to from within.
type Policy func(ctx context.Context, run *Run, call ToolCall) (Decision, error)

// ApprovalSchema is what the answer to a question about a call must satisfy, unless the policy says otherwise.
const ApprovalSchema = `{"type":"object","properties":{"decision":{"enum":["allow","deny"]},"reason":{"type":"string"}},"required":["decision"]}`

// DeniedType is the error type of a call that was denied, in tool.failed and [ToolError].
const DeniedType = schema.DeniedType

// decide brings an open call that is not in doubt one step nearer to its run. done: there is nothing left to decide,
// and the tool may run. An error is the caller's.
func (t *Turn) decide(ctx context.Context, key schema.CallKey, v callView, call ToolCall) (done bool, err error) {
	r := t.run
	policy := r.fleet.cfg.Policy
	noContent := func() error {
		return fmt.Errorf("approval of call %s in turn %d of run %s: %w: start or resume the run with its content", key.ToolCallID, key.Turn, r.id, ErrNoContent)
	}
	switch {
	case v.call == nil && (v.approving || v.open.Decision != ""):
		return false, noContent()
	case v.decision == nil && policy == nil:
	case v.decision == nil && v.stage == running:
		// It has run already, when no policy was there to ask.
	case v.decision == nil:
		if v.call == nil {
			return false, noContent()
		}
		call.Occurrence = key.Occurrence
		d, err := policy(ctx, r, call)
		if err != nil {
			return false, fmt.Errorf("policy for call %s in turn %d of run %s: %w", key.ToolCallID, key.Turn, r.id, err)
		}
		return false, r.recordDecision(ctx, key, call, d)
	case v.decision.Decision == schema.DecisionAsk:
		return false, r.askPerson(ctx, key, v, call)
	case v.decision.Decision == schema.DecisionDeny:
		return false, r.deny(ctx, key, v.decision)
	}
	if v.stage == 0 && !v.open.Replay.Rerunnable() {
		// Open in this epoch, and yet not by this handle: a repeated takeover with the same request id.
		return false, r.held(v.open, "")
	}
	return true, nil
}

// recordDecision records what a policy decided.
func (r *Run) recordDecision(ctx context.Context, key schema.CallKey, call ToolCall, d Decision) error {
	data := &schema.ToolDecidedData{
		ToolCallID: key.ToolCallID, Occurrence: key.Occurrence, Decision: d.Decision, Policy: d.Policy, Reason: d.Reason, By: r.fleet.cfg.Executor,
	}
	switch d.Decision {
	case schema.DecisionAllow:
		return r.allow(ctx, key, data)
	case schema.DecisionAsk:
		r.question(key, call, d)
		return r.publishNow(ctx, draft{data: data, turn: key.Turn})
	case schema.DecisionDeny:
		return r.publishNow(ctx, draft{data: data, turn: key.Turn})
	default:
		return fmt.Errorf("policy %.80q for call %s in turn %d of run %s: %w", d.Policy, key.ToolCallID, key.Turn, r.id,
			configError("Decision", fmt.Sprintf("%.40q", d.Decision), "use allow, deny or ask"))
	}
}

// allow records a permission. This handle may then run the call.
func (r *Run) allow(ctx context.Context, key schema.CallKey, data *schema.ToolDecidedData) error {
	data.ToolCallID, data.Occurrence = key.ToolCallID, key.Occurrence
	if err := r.publishNow(ctx, draft{data: data, turn: key.Turn}); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls.stage[key] != running {
		r.calls.stage[key] = ready
	}
	return nil
}

// approvalID is the id of the question about a call: the same whoever asks it.
func approvalID(key schema.CallKey) string {
	id := fmt.Sprintf("approval.%d.%s.%d", key.Turn, key.ToolCallID, key.Occurrence)
	if len(id) > schema.MaxIdentifier {
		id = "approval." + digestOf(id)
	}
	return id
}

// question is what a person is asked about a call. Within a handle it stays the same, so that repeating the call repeats
// the event.
func (r *Run) question(key schema.CallKey, call ToolCall, d Decision) *schema.RunWaitingData {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.calls.questions[key]; w != nil {
		return w
	}
	w := &schema.RunWaitingData{
		InterruptID: approvalID(key), Reason: schema.WaitToolApproval, ToolCallID: key.ToolCallID, Occurrence: key.Occurrence,
		Message: d.Message, ResponseSchema: d.ResponseSchema,
	}
	if w.Message == "" {
		w.Message = fmt.Sprintf("May the tool %s be called?", call.Name)
		if d.Reason != "" {
			w.Message += " " + d.Reason
		}
	}
	if len(w.ResponseSchema) == 0 {
		w.ResponseSchema = jsontext.Value(ApprovalSchema)
	}
	if d.Expires > 0 {
		w.ExpiresAt = schema.FormatTime(r.fleet.cfg.Now().Add(d.Expires))
	}
	r.calls.questions[key] = w
	return w
}

func (r *Run) hasQuestion(key schema.CallKey) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls.questions[key] != nil
}

// askPerson waits for a person's answer about a call, asking first if the question was lost, and records it.
func (r *Run) askPerson(ctx context.Context, key schema.CallKey, v callView, call ToolCall) error {
	id, asked := approvalID(key), false
	r.View(func(s *schema.State) {
		for i := range s.Waits {
			// Whoever asked may have given the question another id.
			w := &s.Waits[i]
			if w.Reason == schema.WaitToolApproval && w.CallKey() == key {
				id, asked = w.InterruptID, true
			}
		}
	})
	if !asked {
		// The question follows its decision. Where the executor died between the two, the policy only finds the words
		// again: what it decided stands.
		d := Decision{Decision: schema.DecisionAsk, Policy: v.decision.Policy, Reason: v.decision.Reason}
		call.Occurrence = key.Occurrence
		if policy := r.fleet.cfg.Policy; policy != nil && !r.hasQuestion(key) {
			if again, err := policy(ctx, r, call); err == nil && again.Decision == schema.DecisionAsk {
				d = again
			}
		}
		if err := r.publishNow(ctx, draft{data: r.question(key, call, d), turn: key.Turn}); err != nil {
			return err
		}
	}
	input, err := r.AwaitInput(ctx, id)
	if err != nil && !errors.Is(err, ErrInputCancelled) && !errors.Is(err, ErrInputExpired) {
		return fmt.Errorf("approval of call %s in turn %d of run %s: %w", key.ToolCallID, key.Turn, r.id, err)
	}
	data := &schema.ToolDecidedData{
		ToolCallID: key.ToolCallID, Occurrence: key.Occurrence, Policy: v.decision.Policy, By: input.By,
	}
	if schema.IsProven(input.By) {
		data.By = r.fleet.cfg.Executor // an executor proves nobody: the approver is in run.input
	}
	if data.Decision, data.Reason = approvalOf(&input); data.Decision == schema.DecisionAllow {
		return r.allow(ctx, key, data)
	}
	return r.publishNow(ctx, draft{data: data, turn: key.Turn})
}

// approvalOf reads a person's answer. Whatever is no plain permission is a denial.
func approvalOf(input *schema.RunInputData) (decision, reason string) {
	switch input.Status {
	case "", schema.InputResolved:
	case schema.InputCancelled:
		return schema.DecisionDeny, "the question was cancelled"
	case schema.InputExpired:
		return schema.DecisionDeny, "nobody answered in time"
	default:
		return schema.DecisionDeny, fmt.Sprintf("the question was closed as %.40q", input.Status)
	}
	var answer struct {
		Decision string         `json:"decision"`
		Reason   string         `json:"reason"`
		Extra    jsontext.Value `json:",embed"`
	}
	if err := json.Unmarshal(input.Payload, &answer); err != nil {
		return schema.DecisionDeny, fmt.Sprintf("the answer cannot be read: %s", err)
	}
	switch answer.Decision {
	case schema.DecisionAllow:
		return schema.DecisionAllow, answer.Reason
	case schema.DecisionDeny:
		return schema.DecisionDeny, answer.Reason
	default:
		return schema.DecisionDeny, fmt.Sprintf("the answer's decision %.40q is neither allow nor deny", answer.Decision)
	}
}

// deny closes a call that was denied. The model sees the reason as the tool's failure.
func (r *Run) deny(ctx context.Context, key schema.CallKey, d *schema.StateDecision) error {
	reason := d.Reason
	if reason == "" {
		reason = "the call was not allowed"
	}
	return r.fail(ctx, key, schema.Error{Type: DeniedType, Message: reason, Code: d.Policy})
}
