package publisher

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Decision is a policy's decision about a call.
type Decision struct {
	// Decision is allow, deny or ask: [schema.DecisionAllow] and the others; or [NoDecision]. Required.
	Decision string
	// Policy names the rule that decided.
	Policy string
	// Reason in words. For a denial, the model sees it.
	Reason string
	// Message is the question for the person; empty means a question that names the tool and the reason. This field and
	// those below are for ask only.
	Message string
	// ResponseSchema is a JSON Schema for the answer; empty means the members decision and reason. An answer always
	// needs a member decision with allow or deny. A member reason is recorded, too.
	ResponseSchema json.RawMessage
	// Expires is how long to wait for the answer; 0 means no limit. An expired question counts as a denial.
	Expires time.Duration
}

// NoDecision is the decision of a policy that has no rule for a call: the call may run, and nothing is recorded about it.
const NoDecision = "none"

// Policy decides about a call before its tool runs. Each decision is recorded before it takes effect. A recorded
// decision is final: no policy and no person decides about the same call again, in this process or after a takeover. If
// Policy returns an error, Tool returns that error, records nothing, and does not run the tool. A Policy must not
// publish to the run.
type Policy func(ctx context.Context, run *Run, call ToolCall) (Decision, error)

// PolicyMode says whether a policy's decisions are enforced.
type PolicyMode string

// Modes of a policy.
const (
	// PolicyEnforce runs a call only if it was allowed.
	PolicyEnforce PolicyMode = schema.ModeEnforce
	// PolicyObserve records each decision with this mode and runs the call in any case. No person is asked. An error of
	// the policy is recorded as the reason of a permission. Once the policy is enforced, it decides again about calls
	// that have not run. Calls that an enforced policy denied stay denied.
	PolicyObserve PolicyMode = schema.ModeObserve
)

// approvalSchema is the default schema of an answer to an approval question.
const approvalSchema = `{"type":"object","properties":{"decision":{"enum":["allow","deny"]},"reason":{"type":"string"}},"required":["decision"]}`

// DeniedType is the error type of a denied call, in tool.failed and [ToolError].
const DeniedType = schema.DeniedType

// decide moves an open call that is not in doubt one step closer to its run. done means that no decision is missing and
// the tool may run. Tool returns err to its caller.
func (c *callRunner) decide(ctx context.Context) (done bool, err error) {
	unknown := func() error {
		return fmt.Errorf("approval of call %s in turn %d of run %s: %w: the event of the call is missing",
			c.key.ToolCallID, c.key.Turn, c.run.id, ErrIncomplete)
	}
	switch policy := c.run.fleet.cfg.Policy; {
	case c.call == nil && (c.approving || c.open.Decision != ""):
		return false, unknown()
	case c.decision == nil && policy == nil:
	case c.decision == nil && c.stage.begun():
		// The tool has already run, at a time when no policy was set.
	case c.decision == nil:
		if c.call == nil {
			return false, unknown()
		}
		d, err := policy(ctx, c.run, c.occurrence())
		if err == nil && d.Decision == NoDecision {
			c.run.ledger.do(func(l *ledger) { l.calls.known(c.key).unruled = true })
			break
		}
		if c.run.fleet.observes() {
			return false, c.recordDecision(ctx, observed(d, err))
		}
		if err != nil {
			return false, fmt.Errorf("policy for call %s in turn %d of run %s: %w", c.key.ToolCallID, c.key.Turn, c.run.id, err)
		}
		return false, c.recordDecision(ctx, d)
	case c.decision.Mode == schema.ModeObserve: // the policy is still observed: an enforced one would have decided again
	case c.decision.Decision == schema.DecisionAsk:
		return false, c.askPerson(ctx)
	case c.decision.Decision == schema.DecisionDeny:
		return false, c.deny(ctx)
	}
	if !c.mine && !c.open.Replay.Rerunnable() {
		// Open in this epoch but not begun by this handle: a takeover was repeated with the same request id.
		return false, c.run.held(c.open, "")
	}
	return true, nil
}

// observes reports whether the policy's decisions are recorded without effect.
func (f *Fleet) observes() bool { return f.cfg.PolicyMode == PolicyObserve }

// observed turns a policy's result into a decision that observe mode can record.
func observed(d Decision, err error) Decision {
	switch {
	case err != nil:
		return Decision{Decision: schema.DecisionAllow, Reason: "the policy returned an error: " + recordedError(err).Message}
	case d.Decision != schema.DecisionAllow && d.Decision != schema.DecisionDeny && d.Decision != schema.DecisionAsk:
		return Decision{Decision: schema.DecisionAllow, Policy: d.Policy, Reason: fmt.Sprintf("the policy returned the unknown decision %.40q", d.Decision)}
	}
	return d
}

// occurrence returns the call as its caller asked for it, with the resolved occurrence.
func (c *callRunner) occurrence() ToolCall {
	call := c.asked
	call.Occurrence = c.key.Occurrence
	return call
}

// recordDecision records a policy's decision.
func (c *callRunner) recordDecision(ctx context.Context, d Decision) error {
	mode := ""
	if c.run.fleet.observes() {
		mode = schema.ModeObserve
	}
	switch d.Decision {
	case schema.DecisionAsk:
		if err := checkResponseSchema(d.ResponseSchema); err != nil && mode == "" {
			return fmt.Errorf("policy %.80q for call %s in turn %d of run %s: %w", d.Policy, c.key.ToolCallID, c.key.Turn, c.run.id, err)
		}
		if mode == "" {
			c.question(d)
		}
	case schema.DecisionAllow, schema.DecisionDeny:
	default:
		return fmt.Errorf("policy %.80q for call %s in turn %d of run %s: %w", d.Policy, c.key.ToolCallID, c.key.Turn, c.run.id,
			configError("Decision", fmt.Sprintf("%.40q", d.Decision), "use allow, deny or ask"))
	}
	return c.publishDecision(ctx, &schema.ToolDecidedData{
		ToolCallID: c.key.ToolCallID, Occurrence: c.key.Occurrence, Decision: d.Decision, Mode: mode, Policy: d.Policy, Reason: d.Reason, By: c.run.fleet.cfg.Executor,
	})
}

// publishDecision records a decision. After an allow, this handle may run the call.
func (c *callRunner) publishDecision(ctx context.Context, data *schema.ToolDecidedData) error {
	_, err := c.run.publish(ctx, draft{data: data, turn: c.key.Turn, own: true})
	if err == nil && (data.Decision == schema.DecisionAllow || !data.Binds()) {
		c.run.ledger.do(func(l *ledger) { l.calls.on(c.key, callAllowed) })
	}
	return err
}

// approvalID is the id of the approval question.
func (c *callRunner) approvalID() string {
	head := c.run.Head()
	return head.DerivedID(approvalPrefix, fmt.Sprintf("%d.%s.%d", c.key.Turn, c.key.ToolCallID, c.key.Occurrence))
}

// question is the approval question about the call.
func (c *callRunner) question(d Decision) *schema.RunWaitingData {
	w := &schema.RunWaitingData{
		InterruptID: c.approvalID(), Reason: schema.WaitToolApproval, ToolCallID: c.key.ToolCallID, Occurrence: c.key.Occurrence,
		Message: d.Message, ResponseSchema: []byte(d.ResponseSchema),
	}
	if w.Message == "" {
		w.Message = fmt.Sprintf("May the tool %s be called?", c.asked.Name)
		if d.Reason != "" {
			w.Message += " " + d.Reason
		}
	}
	if len(w.ResponseSchema) == 0 {
		w.ResponseSchema = []byte(approvalSchema)
	}
	if d.Expires > 0 {
		w.ExpiresAt = schema.FormatTime(c.run.fleet.cfg.Now().Add(d.Expires))
	}
	return with(c.run.ledger, func(l *ledger) *schema.RunWaitingData { return l.calls.ask(c.key, w) })
}

// askPerson waits for a person's answer about a call and records it. It asks first if the question is missing.
func (c *callRunner) askPerson(ctx context.Context) error {
	r, key := c.run, c.key
	id, asked := c.approvalID(), false
	r.View(func(s *schema.State) {
		for i := range s.Waits {
			// An earlier executor may have given the question another id.
			w := &s.Waits[i]
			if w.Reason == schema.WaitToolApproval && w.CallKey() == key {
				id, asked = w.InterruptID, true
			}
		}
	})
	if !asked {
		// The question follows its decision. If the executor died between the two, the policy only supplies the text of
		// the question again: its recorded decision stands.
		d := Decision{Decision: schema.DecisionAsk, Policy: c.decision.Policy, Reason: c.decision.Reason}
		if policy := r.fleet.cfg.Policy; policy != nil && r.ledger.call(key).question == nil {
			if again, err := policy(ctx, r, c.occurrence()); err == nil && again.Decision == schema.DecisionAsk {
				d = again
			}
		}
		if _, err := r.publish(ctx, draft{data: c.question(d), turn: key.Turn, own: true}); err != nil {
			return err
		}
	}
	input, err := r.AwaitInput(ctx, id)
	if err != nil && !errors.Is(err, ErrInputCancelled) && !errors.Is(err, ErrInputExpired) {
		return fmt.Errorf("approval of call %s in turn %d of run %s: %w", key.ToolCallID, key.Turn, r.id, err)
	}
	data := &schema.ToolDecidedData{
		ToolCallID: key.ToolCallID, Occurrence: key.Occurrence, Policy: c.decision.Policy, By: input.By,
	}
	if schema.IsProven(input.By) {
		data.By = r.fleet.cfg.Executor // the executor does not prove who approved: run.input names the approver
	}
	data.Decision, data.Reason = approvalOf(&input)
	return c.publishDecision(ctx, data)
}

// approvalOf reads a person's answer. Any answer but a clear allow is a denial.
func approvalOf(input *schema.RunInputData) (decision, reason string) {
	switch input.Status {
	case "", schema.InputResolved:
	case schema.InputCancelled:
		return schema.DecisionDeny, "the question was cancelled"
	case schema.InputExpired:
		return schema.DecisionDeny, "no answer came in time"
	default:
		return schema.DecisionDeny, fmt.Sprintf("the question was closed as %.40q", input.Status)
	}
	var answer struct {
		Decision string         `json:"decision"`
		Reason   string         `json:"reason"`
		Extra    jsontext.Value `json:",embed"`
	}
	if err := jsonv2.Unmarshal(input.Payload, &answer); err != nil {
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

// deny closes a denied call. The model sees the reason as the tool's failure.
func (c *callRunner) deny(ctx context.Context) error {
	reason := cmp.Or(c.decision.Reason, "the call was not allowed")
	return c.fail(ctx, schema.Error{Type: DeniedType, Message: reason, Code: c.decision.Policy})
}
