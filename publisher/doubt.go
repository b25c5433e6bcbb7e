package publisher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// settleDoubt settles a call in doubt as its record and its policy say. What is to be done with the call is decided
// anew afterwards, by what is recorded then.
func (t *Turn) settleDoubt(ctx context.Context, key schema.CallKey, v callView, call ToolCall) error {
	r := t.run
	settled := schema.ToolSettledData{ToolCallID: key.ToolCallID, Occurrence: key.Occurrence, How: schema.SettledRerun, By: r.fleet.cfg.Executor}
	switch {
	case v.open.Late:
		settled.How = schema.SettledAdopted
	case v.decision != nil && v.decision.Decision == schema.DecisionDeny:
		return r.deny(ctx, key, v.decision)
	case v.open.Replay.Rerunnable():
	case v.open.Replay == schema.ReplayVerify:
		reply, err := r.askTool(ctx, key, v, call)
		if unknown, ok := errors.AsType[*unverified](err); ok {
			return r.hold(ctx, key, v.open, unknown.why)
		}
		if err != nil {
			return fmt.Errorf("verifying call %s in turn %d of run %s: %w", key.ToolCallID, key.Turn, r.id, err)
		}
		if reply.Outcome == schema.VerifyDone {
			settled.How, settled.Result, settled.IsError = schema.SettledVerified, reply.Result, reply.IsError
		}
	default:
		return r.hold(ctx, key, v.open, "")
	}
	err := r.settle(ctx, key, &settled)
	rejected, ok := errors.AsType[*RejectedError](err)
	if ok && rejected.Reason == schema.ReasonInvalidData && settled.How == schema.SettledVerified {
		return r.held(v.open, "the tool's answer cannot be recorded: "+rejected.Detail)
	}
	return err
}

// askTool asks the verify subject that was recorded with the call. A handle that keeps only the head knows what its
// caller says.
func (r *Run) askTool(ctx context.Context, key schema.CallKey, v callView, call ToolCall) (*schema.VerifyReply, error) {
	request := &schema.VerifyRequest{
		Fleet: r.fleet.cfg.Fleet, Run: r.id, CallKey: key, Name: call.Name, Arguments: call.Arguments,
		IdempotencyKey: r.idempotencyKey(v, call), Epoch: r.Epoch(),
	}
	subject := call.VerifySubject
	if v.call != nil {
		subject = cmp.Or(v.call.VerifySubject, subject) // its policy may be stricter now than it was recorded
		var err error
		if request.Arguments, err = r.field(ctx, v.call, "/arguments", v.call.Arguments); err != nil {
			return nil, err
		}
	}
	return r.verify(ctx, subject, request)
}

// idempotencyKey is the recorded key, else the call's own, else the one that its place gives.
func (r *Run) idempotencyKey(v callView, call ToolCall) string {
	switch {
	case v.call != nil && v.call.IdempotencyKey != "":
		return v.call.IdempotencyKey
	case v.call == nil && call.IdempotencyKey != "":
		return call.IdempotencyKey
	default:
		return v.open.IdempotencyKey(r.id)
	}
}

// errOutdated: the call changed between a decision about it and its publication.
var errOutdated = errors.New("the call changed meanwhile")

// settle publishes a settlement. When the call changed meanwhile nothing is settled, and that is no error: it is to be
// decided anew.
func (r *Run) settle(ctx context.Context, key schema.CallKey, settled *schema.ToolSettledData) error {
	err := r.publishNow(ctx, draft{data: settled, turn: key.Turn})
	if rejected, ok := errors.AsType[*RejectedError](err); ok && (rejected.Reason == schema.ReasonNotInDoubt || rejected.Reason == schema.ReasonUnknownCall) {
		return nil
	}
	if errors.Is(err, errOutdated) {
		return nil
	}
	return err
}

// outdates reports whether evidence that arrived before items are published takes the ground from one of them: a call
// whose result is known now must not be run again.
func outdates(v schema.Verdict, items []*item) bool {
	if v.Kind != schema.Evidence || v.Call.ToolCallID == "" {
		return false
	}
	for _, it := range items {
		d, ok := it.data.(*schema.ToolSettledData)
		if ok && it.stream == 0 && d.How == schema.SettledRerun && it.verdict.Call == v.Call {
			return true
		}
	}
	return false
}

// leftInDoubt returns a [*HeldError] for a call of which nobody knows what became of it and that must not be run again,
// if there is one: the run must not be completed over it. It is in doubt, or this handle began it and did not learn its
// outcome; then it is in doubt for the next executor. Work that leaves out a call that a person wants run again is wrong.
func (r *Run) leftInDoubt() error {
	head := r.planned()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range head.OpenCalls {
		c := &head.OpenCalls[i]
		begun := r.calls.stage[c.CallKey] == running && r.calls.outcomes[c.CallKey] == nil
		switch {
		case (c.InDoubt && !c.Late || begun) && (!c.Replay.Rerunnable() || c.Held):
			return r.held(c, "")
		case c.Again:
			return fmt.Errorf("run %s: %w: a person settled call %s of turn %d as rerun, and the work ended without it: run each open call with Turn.Tool", r.id, ErrConflict, c.ToolCallID, c.Turn)
		}
	}
	return nil
}

// hold returns a [*HeldError] once the executor before can no longer begin the call: a person who looks at that word looks at what stays.
// It returns nil when it waited: a late result may have come.
func (r *Run) hold(ctx context.Context, key schema.CallKey, c *schema.OpenCall, why string) error {
	if waited, err := r.outwait(ctx, key); waited || err != nil {
		return err
	}
	return r.held(c, why)
}

// held says how an open call that must not be run again is settled. why is what its tool answered, if it was asked.
func (r *Run) held(c *schema.OpenCall, why string) error {
	e := &HeldError{Run: r.id, Key: c.CallKey, Name: c.Name, Replay: c.Replay}
	settle := schema.SettleCommand(r.fleet.cfg.Fleet, r.id, c.CallKey, "")
	switch {
	case !c.InDoubt:
		e.Detail = fmt.Sprintf("it was begun in this epoch, its outcome is not known and its replay policy is %q", c.Replay)
		e.Command = "publish its outcome with Return or Fail, or resume the run and settle it with: " + settle
		return e
	case why == "" && (c.Replay.Rerunnable() || c.Replay == schema.ReplayVerify):
		e.Detail = fmt.Sprintf("it is in doubt and its replay policy is %q: Turn.Tool settles it", c.Replay)
	case why != "":
		e.Detail = "it is in doubt and could not be verified: " + why
	default:
		e.Detail = "it is in doubt and its replay policy leaves it to a person"
	}
	e.Command = "find out what happened, then settle it with one of: " + strings.Join(schema.SettleCommands(r.fleet.cfg.Fleet, r.id, c.CallKey), "; or ")
	return e
}
