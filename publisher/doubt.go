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
// again afterwards, by what is recorded then.
func (c *callRunner) settleDoubt(ctx context.Context) error {
	settled := schema.ToolSettledData{
		ToolCallID: c.key.ToolCallID, Occurrence: c.key.Occurrence, How: schema.SettledRerun, By: c.run.fleet.cfg.Executor,
	}
	switch {
	case c.open.Late:
		settled.How = schema.SettledAdopted
	case c.decision != nil && c.decision.Decision == schema.DecisionDeny && c.decision.Binds():
		return c.deny(ctx)
	case c.open.Replay.Rerunnable():
	case c.open.Replay == schema.ReplayVerify:
		reply, err := c.askTool(ctx)
		if unknown, ok := errors.AsType[*unverified](err); ok {
			return c.hold(ctx, unknown.why)
		}
		if err != nil {
			return fmt.Errorf("verifying call %s in turn %d of run %s: %w", c.key.ToolCallID, c.key.Turn, c.run.id, err)
		}
		if reply.Outcome == schema.VerifyDone {
			settled.How, settled.Result, settled.IsError = schema.SettledVerified, reply.Result, reply.IsError
		}
	default:
		return c.hold(ctx, "")
	}
	err := c.settle(ctx, &settled)
	rejected, ok := errors.AsType[*RejectedError](err)
	if ok && rejected.Reason == schema.ReasonInvalidData && settled.How == schema.SettledVerified {
		return c.run.held(c.open, "the tool's answer cannot be recorded: "+rejected.Detail)
	}
	return err
}

// askTool asks the verify subject that was recorded with the call. A handle that keeps only the head knows what its
// caller says.
func (c *callRunner) askTool(ctx context.Context) (*schema.VerifyReply, error) {
	fleet := c.run.fleet
	request := &schema.VerifyRequest{
		Fleet: fleet.cfg.Fleet, Run: c.run.id, CallKey: c.key, Name: c.asked.Name, Arguments: []byte(c.asked.Arguments),
		IdempotencyKey: c.idempotencyKey(), Epoch: c.run.Epoch(),
	}
	subject := c.asked.VerifySubject
	if c.call != nil {
		subject = cmp.Or(c.call.VerifySubject, subject) // its policy may be stricter now than it was recorded
		var err error
		if request.Arguments, err = fleet.field(ctx, c.call.Refs, "/arguments", c.call.Arguments); err != nil {
			return nil, err
		}
	}
	return verify(ctx, fleet.nc, fleet.cfg.VerifyTimeout, subject, request)
}

// idempotencyKey is the recorded key, else the call's own, else the one that its place gives.
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

// errOutdated: the call changed between a decision about it and its publication.
var errOutdated = errors.New("the call changed meanwhile")

// settle publishes a settlement. When the call changed meanwhile nothing is settled, and that is no error: it is to be
// decided again.
func (c *callRunner) settle(ctx context.Context, settled *schema.ToolSettledData) error {
	err := c.run.publishNow(ctx, draft{data: settled, turn: c.key.Turn, own: true})
	if rejected, ok := errors.AsType[*RejectedError](err); ok && (rejected.Reason == schema.ReasonNotInDoubt || rejected.Reason == schema.ReasonUnknownCall) {
		return nil
	}
	if errors.Is(err, errOutdated) {
		return nil
	}
	return err
}

// leftInDoubt returns a [*HeldError] for a call of which nobody knows what became of it and that must not be run again,
// if there is one: the run must not be completed over it. It is in doubt, or this handle began it and did not learn its
// outcome; then it is in doubt for the next executor. Work that leaves out a call that a person wants run again is wrong.
func (r *Run) leftInDoubt() error {
	head := r.ledger.planned()
	for i := range head.OpenCalls {
		c := &head.OpenCalls[i]
		switch {
		case (c.InDoubt && !c.Late || r.ledger.calls.begun(c.CallKey)) && (!c.Replay.Rerunnable() || c.Held):
			return r.held(c, "")
		case c.Again:
			return fmt.Errorf("run %s: %w: a person settled call %s of turn %d as rerun, and the work ended without it: run each open call with Turn.Tool", r.id, ErrConflict, c.ToolCallID, c.Turn)
		}
	}
	return nil
}

// hold returns a [*HeldError] once the executor before can no longer begin the call: a person who looks at that word looks at what stays.
// It returns nil when it waited: a late result may have come.
func (c *callRunner) hold(ctx context.Context, why string) error {
	if waited, err := c.outwait(ctx); waited || err != nil {
		return err
	}
	return c.run.held(c.open, why)
}

// held says how an open call that must not be run again is settled. why is what its tool answered, if it was asked.
func (r *Run) held(c *schema.OpenCall, why string) error {
	e := &HeldError{Run: r.id, Key: c.CallKey, Name: c.Name, Replay: c.Replay}
	settle := strings.Join(schema.SettleCommands(r.fleet.cfg.Fleet, r.id, c.CallKey), "; or ")
	switch {
	case r.fleet.unrecorded():
		e.Detail = fmt.Sprintf("its outcome is not known and its replay policy is %q", c.Replay)
		e.Command = "publish its outcome with Turn.Return or Turn.Fail: the run is recorded nowhere, so no command can settle it"
		return e
	case !c.InDoubt:
		e.Detail = fmt.Sprintf("it was begun in this epoch, its outcome is not known and its replay policy is %q", c.Replay)
		e.Command = "publish its outcome with Return or Fail; or leave the run, and once another executor has it settle the call with one of: " + settle
		return e
	case why == "" && (c.Replay.Rerunnable() || c.Replay == schema.ReplayVerify):
		e.Detail = fmt.Sprintf("it is in doubt and its replay policy is %q: Turn.Tool settles it", c.Replay)
	case why != "":
		e.Detail = "it is in doubt and could not be verified: " + why
	default:
		e.Detail = "it is in doubt and its replay policy leaves it to a person"
	}
	e.Command = "find out what happened, then settle it with one of: " + settle
	return e
}
