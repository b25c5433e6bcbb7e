package runs

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/standstill"
	"github.com/waymarkio/waymark/schema"
)

// SettleCmd is waymark settle.
type SettleCmd struct {
	Run_       string        `arg:"" name:"run" help:"Run id."`
	Turn       int32         `arg:"" help:"Turn of the call."`
	Call       string        `arg:"" help:"Tool call id."`
	Occurrence base.Positive `default:"1" placeholder:"N" help:"Which of the turn's calls with that id (default: 1)."`
	How        string        `required:"" enum:"rerun,verified,adopted,abandoned,decided" placeholder:"HOW" help:"rerun: run it again; adopted: take the late result; verified, decided: take --result; abandoned: continue without a result."`
	Result     *string       `placeholder:"JSON" help:"Result, for verified and decided."`
	Error      bool          `help:"The result is an error."`
	Epoch      uint32        `placeholder:"N" help:"Settle only the call's attempt of this epoch, as printed by waymark inbox; a repeat counts once (default: the attempt that is open now)."`
	By         string        `placeholder:"NAME" environ:"WAYMARK_OPERATOR" help:"Your name, recorded as a claim (WAYMARK_OPERATOR; default: waymark-cli)."`
}

// Help is the text below the flags.
func (SettleCmd) Help() string {
	return `waymark plan lists the calls in doubt, and what happens to each without you.

Examples:
  waymark settle fix-login 3 call-1 --how abandoned
  waymark settle fix-login 3 call-1 --how decided --result '{"invoice":17}' --by ann`
}

// Run settles a call in doubt.
func (c SettleCmd) Run(ctx context.Context, a *base.App) error {
	request := schema.SettleRequest{
		CallKey: schema.CallKey{Turn: c.Turn, ToolCallID: c.Call, Occurrence: int(c.Occurrence)},
		How:     schema.Settlement(c.How), CallEpoch: schema.Epoch(c.Epoch), By: c.By,
	}
	if request.By == "" {
		request.By = base.Operator
	}
	takesResult := request.How == schema.SettledVerified || request.How == schema.SettledDecided
	switch {
	case c.Result != nil && !takesResult:
		return failure.New(failure.Usage, "omit --result, or use --how decided", "--how %s takes no result", c.How)
	case c.Result != nil:
		request.Result = jsontext.Value(*c.Result)
		if !request.Result.IsValid() {
			return failure.New(failure.Usage, `quote text to make it JSON: --result '"done"'`, "--result is not JSON")
		}
	case takesResult:
		return failure.New(failure.Usage, `give a result, such as --result '{"ok":true}' or --result null`, "--how %s needs --result", c.How)
	}
	if c.Error {
		if !takesResult {
			return failure.New(failure.Usage, "omit --error", "--error describes a result, but --how %s takes none", c.How)
		}
		request.IsError = &c.Error
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	if request.CallEpoch == 0 {
		run, err := cl.Get(ctx, c.Run_)
		if err != nil {
			return err
		}
		request.CallEpoch = standstill.CallEpoch(&run.Head, request.CallKey)
	}
	var reply schema.ControlReply
	err = cl.Ask(ctx, schema.VerbSettle, c.Run_, &request, &reply)
	if service, ok := errors.AsType[*schema.ServiceError](err); ok && service.Code == schema.CodeNotInDoubt {
		err = c.openAndSettle(ctx, cl, &request, &reply, err)
	}
	if err != nil {
		return err
	}
	if a.JSON {
		return output.Document(a.Stdout, reply)
	}
	return printSettled(a, request, &reply)
}

// openAndSettle settles a begun call of a run that has no executor. The call is in doubt in the next epoch, so a release
// of the run opens that first. If this process dies between the two, the call is in doubt and in the inbox. Any other
// refusal stays.
func (c SettleCmd) openAndSettle(ctx context.Context, cl *base.Client, request *schema.SettleRequest, reply *schema.ControlReply, refusal error) error {
	now, err := cl.Get(ctx, c.Run_)
	if err != nil {
		return errors.Join(refusal, err)
	}
	h := &now.Head
	at := slices.IndexFunc(h.OpenCalls, func(o schema.OpenCall) bool { return o.CallKey == request.CallKey })
	if at < 0 || h.OpenCalls[at].State.InDoubt() || h.Status.Terminal() || !h.Settleable(&h.OpenCalls[at]) ||
		request.CallEpoch != 0 && request.CallEpoch != h.OpenCalls[at].Epoch {
		return refusal
	}
	if err := new(released).release(ctx, cl, h, schema.TakeoverRequest); err != nil {
		return err
	}
	return cl.Ask(ctx, schema.VerbSettle, c.Run_, request, reply)
}

// printSettled says how a call was settled.
func printSettled(a *base.App, r schema.SettleRequest, reply *schema.ControlReply) error {
	if a.Quiet {
		return nil
	}
	return output.Fields(a.Stdout, output.PastLabel("settled", reply.Already), fmt.Sprintf("%s as %s", r.Text(), r.How), output.ByLabel(reply.By), reply.By,
		"event", reply.EventID, "position", output.Number(reply.Stream))
}
