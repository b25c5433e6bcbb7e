package runs

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/standstill"
	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/schema"
)

// RecoverCmd is waymark recover.
type RecoverCmd struct {
	Run_      string       `arg:"" name:"run" help:"Run id."`
	Executor  string       `required:"" placeholder:"NAME" help:"Executor that takes the run over; the current one is fenced."`
	Agent     string       `placeholder:"NAME" help:"Fail unless the run belongs to this agent."`
	Reason    string       `default:"request" enum:"claim,request,restart,input" placeholder:"WHY" help:"claim, request, restart or input (default: request)."`
	Epoch     schema.Epoch `placeholder:"N" help:"Take the run over only in epoch N."`
	RequestID string       `placeholder:"ID" help:"Id of the takeover; a repeat opens no other epoch (default: a new id)."`
}

// Help is the text below the flags.
func (RecoverCmd) Help() string {
	return `For an executor of your own that writes events itself. Use waymark plan first; to give the run to the fleet's executors, use waymark ` +
		`release, or waymark reopen if it has ended.

Example:
  waymark recover fix-login --executor laptop --epoch 2`
}

// recovery is the JSON output of recover: the daemon's answer and the id with which it can be repeated.
type recovery struct {
	RequestID string `json:"request_id"`
	schema.RecoverReply
}

// Run takes a run over and shows where to continue: the state after the takeover, so that no event of the previous
// executor can follow.
func (c RecoverCmd) Run(ctx context.Context, a *base.App) error {
	if err := schema.CheckName("--executor", c.Executor); err != nil {
		return err
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	if c.RequestID == "" {
		c.RequestID = rand.Text()
	}
	answer := recovery{RequestID: c.RequestID}
	err = cl.Ask(ctx, schema.VerbRecover, c.Run_, schema.RecoverRequest{
		Executor: c.Executor, Agent: c.Agent, Reason: c.Reason, RequestID: c.RequestID, ExpectedEpoch: c.Epoch, View: schema.ViewHead,
	}, &answer.RecoverReply)
	if err != nil {
		return err
	}
	if err := c.show(ctx, a, cl, &answer); err != nil {
		return err
	}
	if err := printDamage(a, c.Run_, answer.Damage); err != nil {
		return err
	}
	if !answer.Complete {
		return failure.New(failure.Damaged, "see the existing events: "+a.Prompt.Command("events "+c.Run_+" --all --no-follow"),
			"run %s was taken over, but events of it are missing: %s", c.Run_, output.Plural(len(answer.Gaps), "gap"))
	}
	return nil
}

func (c RecoverCmd) show(ctx context.Context, a *base.App, cl *base.Client, answer *recovery) error {
	if err := story.OpenHead(ctx, cl, &answer.Head); err != nil {
		return err
	}
	if a.JSON {
		return output.Document(a.Stdout, answer)
	}
	if err := output.Fields(a.Stdout,
		"taken over by", c.Executor, "epoch", output.Number(answer.Epoch), "next sequence", output.Number(answer.NextSequence),
		"request id", answer.RequestID, "in doubt", output.Plural(len(answer.InDoubt), "call"),
	); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(a.Stdout); err != nil {
		return err
	}
	return cmp.Or(printHead(a, &answer.Head, false, nil), printSteps(a, &answer.Head, false))
}

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
