package publisher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// settleDoubt settles a call in doubt according to its record and its policy. The next step is decided afterwards, from
// the new record.
func (c *callRunner) settleDoubt(ctx context.Context) error {
	settled := schema.ToolSettledData{
		ToolCallID: c.key.ToolCallID, Occurrence: c.key.Occurrence, How: schema.SettledRerun, By: c.run.fleet.cfg.Executor,
	}
	switch {
	case c.open.State == schema.CallLate:
		settled.How = schema.SettledAdopted
	case c.decision != nil && c.decision.Decision == schema.DecisionDeny && c.decision.Binds():
		return c.deny(ctx)
	case c.open.Replay.Rerunnable():
	case c.open.Replay == schema.ReplayVerify:
		reply, err := c.askTool(ctx)
		if unknown, ok := errors.AsType[*unverified](err); ok {
			return c.hold(ctx, "could not be verified: "+unknown.why)
		}
		if err != nil {
			return fmt.Errorf("verifying call %s in turn %d of run %s: %w", c.key.ToolCallID, c.key.Turn, c.run.id, err)
		}
		if reply.Outcome == schema.VerifyDone {
			settled.How, settled.Result, settled.IsError = schema.SettledVerified, reply.Result, reply.IsError
		}
	default:
		why := ""
		if refused := c.refused(); refused != nil {
			why = "cannot run again here, where a rerun fails: " + refused.Message
		}
		return c.hold(ctx, why)
	}
	err := c.settle(ctx, &settled)
	rejected, ok := errors.AsType[*RejectedError](err)
	if ok && rejected.Reason == schema.ReasonInvalidData && settled.How == schema.SettledVerified {
		return c.run.held(c.open, "could not be verified: the tool's answer cannot be recorded: "+rejected.Detail)
	}
	return err
}

// askTool asks the verify subject that was recorded with the call.
func (c *callRunner) askTool(ctx context.Context) (*schema.VerifyReply, error) {
	fleet := c.run.fleet
	request := &schema.VerifyRequest{
		Fleet: fleet.cfg.Fleet, Run: c.run.id, CallKey: c.key, Name: c.asked.Name, Arguments: []byte(c.asked.Arguments),
		IdempotencyKey: c.idempotencyKey(), Epoch: c.run.Epoch(),
	}
	subject := c.asked.VerifySubject
	if c.call != nil {
		subject = cmp.Or(c.call.VerifySubject, subject) // the policy may be stricter now than the recorded one
		var err error
		if request.Arguments, err = fleet.Field(ctx, c.call.Refs, "/arguments", c.call.Arguments); err != nil {
			return nil, err
		}
	}
	return verify(ctx, fleet.nc, fleet.cfg.VerifyTimeout, subject, request)
}

// idempotencyKey is the recorded key, else the call's own, else the one derived from the call's key.
func (c *callRunner) idempotencyKey() string {
	switch {
	case c.call != nil && c.call.IdempotencyKey != "":
		return c.call.IdempotencyKey
	case c.call == nil && c.asked.IdempotencyKey != "":
		return c.asked.IdempotencyKey
	default:
		return c.open.IdempotencyKey(c.run.id)
	}
}

// errOutdated: the call changed between a decision about it and the publication of that decision.
var errOutdated = errors.New("the call changed meanwhile")

// settle publishes a settlement. If the call changed meanwhile, it settles nothing and returns nil: the call is decided
// again.
func (c *callRunner) settle(ctx context.Context, settled *schema.ToolSettledData) error {
	_, err := c.run.publish(ctx, draft{data: settled, turn: c.key.Turn, own: true})
	if rejected, ok := errors.AsType[*RejectedError](err); ok && (rejected.Reason == schema.ReasonNotInDoubt || rejected.Reason == schema.ReasonUnknownCall) {
		return nil
	}
	if errors.Is(err, errOutdated) {
		return nil
	}
	return err
}

// leftInDoubt returns a [*HeldError] for a call whose outcome is unknown and that must not run again, if there is one:
// the run must not be completed while it is open. Such a call is in doubt, or was begun by this handle without a known
// outcome and will be in doubt for the next executor. Work that skips a call that a person settled as rerun is wrong,
// too.
func (r *Run) leftInDoubt() error {
	head := r.Head()
	for i := range head.OpenCalls {
		c := &head.OpenCalls[i]
		switch {
		case (c.State == schema.CallInDoubt || c.State == schema.CallHeld || r.ledger.call(c.CallKey).stage == callRunning) && (!c.Replay.Rerunnable() || c.State == schema.CallHeld):
			return r.held(c, "")
		case c.State == schema.CallAgain:
			return fmt.Errorf("run %s: %w: a person settled call %s of turn %d as rerun, but the work ended without running it: run each open call with Turn.Tool", r.id, ErrConflict, c.ToolCallID, c.Turn)
		}
	}
	return nil
}

// hold returns a [*HeldError] once the previous executor can no longer begin the call, so that the person
// sees a final state. It returns nil after a wait: a late result may have arrived.
func (c *callRunner) hold(ctx context.Context, why string) error {
	if waited, err := c.outwait(ctx); waited || err != nil {
		return err
	}
	return c.run.held(c.open, why)
}

// held explains how to settle an open call that must not run again. why continues the sentence "it is in doubt and".
func (r *Run) held(c *schema.OpenCall, why string) error {
	e := &HeldError{Run: r.id, Key: c.CallKey, Epoch: c.Epoch, Name: c.Name, Replay: c.Replay}
	head := r.Head()
	if !c.State.InDoubt() {
		head.Status = schema.StatusInterrupted // as it is once it was released
	}
	settle := strings.Join(head.SettleCommands(r.fleet.cfg.Fleet, c.CallKey), "; or ")
	switch {
	case r.fleet.unrecorded():
		e.Detail = fmt.Sprintf("its outcome is not known and its replay policy is %q", c.Replay)
		e.Command = "publish its outcome with Turn.Return or Turn.Fail: no command can settle a call of an unrecorded run"
		return e
	case !c.State.InDoubt():
		e.Detail = fmt.Sprintf("it was begun in this epoch, its outcome is not known and its replay policy is %q", c.Replay)
		e.Command = "publish its outcome with Return or Fail; or release the run, find out what happened, and settle the call with one of: " + settle
		return e
	case why == "" && (c.Replay.Rerunnable() || c.Replay == schema.ReplayVerify):
		e.Detail = fmt.Sprintf("it is in doubt and its replay policy is %q: Turn.Tool settles it", c.Replay)
	case why != "":
		e.Detail = "it is in doubt and " + why
	default:
		e.Detail = "it is in doubt and its replay policy requires a person to settle it"
	}
	e.Command = "find out what happened, then settle it with one of: " + settle
	return e
}
