package runs

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/schema"
)

// HandoffCmd is waymark handoff.
type HandoffCmd struct {
	Check  handoffCheckCmd  `cmd:"" help:"Check a hand-off in a file before it is offered, and show its length."`
	Answer handoffAnswerCmd `cmd:"" help:"Accept, decline or close a hand-off."`
}

type handoffAnswerCmd struct {
	Run_    string `arg:"" name:"run" help:"Run id."`
	Handoff string `arg:"" optional:"" help:"Hand-off id (default: the only open one)."`
	Accept  string `xor:"how" required:"" placeholder:"RUN" help:"Accept it for this run, which an executor starts with the printed values."`
	Decline string `xor:"how" required:"" placeholder:"WHY" help:"Decline it."`
	Close   string `xor:"how" required:"" placeholder:"WHY" help:"Close it: the work is done, or will not be done."`
	By      string `placeholder:"NAME" environ:"WAYMARK_OPERATOR" help:"Your name, recorded as a claim (WAYMARK_OPERATOR; default: waymark-cli)."`
}

// Help is the text below the flags.
func (handoffAnswerCmd) Help() string {
	return `SDK: AcceptHandoff, which also starts the run.

Examples:
  waymark handoff answer fix-login half --accept fix-login-2
  waymark handoff answer fix-login half --decline "there is no such agent"`
}

// handoffAnswered is the JSON output of handoff answer.
type handoffAnswered struct {
	Run       string `json:"run"`
	HandoffID string `json:"handoff_id"`
	Action    string `json:"action"`
	ChildRun  string `json:"child_run,omitzero"`
	OfferHash string `json:"offer_hash,omitzero"`
	Reason    string `json:"reason,omitzero"`
	schema.ControlReply
}

// request is the asked decision, and its name afterwards.
func (c handoffAnswerCmd) request() (request schema.HandoffRequest, past string) {
	switch {
	case c.Accept != "":
		return schema.HandoffRequest{Action: schema.HandoffAccept, ChildRun: c.Accept}, "accepted"
	case c.Decline != "":
		return schema.HandoffRequest{Action: schema.HandoffDecline, Reason: c.Decline}, "declined"
	}
	return schema.HandoffRequest{Action: schema.HandoffClose, Reason: c.Close}, "closed"
}

// Run sends a decision about a hand-off.
func (c handoffAnswerCmd) Run(ctx context.Context, a *base.App) error {
	request, past := c.request()
	if request.ChildRun == "" && strings.TrimSpace(request.Reason) == "" {
		return failure.New(failure.Usage, "give a reason: the offering run can react to it", "the reason is empty")
	}
	cl, by, err := a.ConnectAs(ctx, c.By)
	if err != nil {
		return err
	}
	request.By = by
	reply, err := cl.Get(ctx, c.Run_)
	if err != nil {
		return err
	}
	open, err := c.choose(a.Prompt, &reply.Head)
	if err != nil {
		return err
	}
	request.HandoffID = open.HandoffID
	if request.ChildRun != "" {
		request.OfferHash = open.OfferHash
	}
	done := handoffAnswered{
		Run: c.Run_, HandoffID: request.HandoffID, Action: request.Action, ChildRun: request.ChildRun,
		OfferHash: request.OfferHash, Reason: request.Reason,
	}
	if err := cl.Ask(ctx, schema.VerbHandoff, c.Run_, &request, &done.ControlReply); err != nil {
		return err
	}
	if a.JSON {
		return output.Document(a.Stdout, &done)
	}
	if err := output.Fields(a.Stdout, output.PastLabel(past, done.Already), fmt.Sprintf("hand-off %s of run %s", done.HandoffID, done.Run), output.ByLabel(done.By), done.By, "child run", done.ChildRun,
		"offer hash", done.OfferHash, "reason", done.Reason, "event", done.EventID, "position", output.Number(done.Stream)); err != nil || a.Quiet || done.ChildRun == "" {
		return err
	}
	_, err = fmt.Fprintf(a.Stderr, "run %s starts when an executor of %s publishes its run.started with resumed_from %s and handoff "+
		"{\"run\":%q,\"handoff_id\":%q,\"offer_hash\":%q}\n", done.ChildRun, output.Printable(cmp.Or(open.NextAgent, "the same agent")), done.Run, done.Run, done.HandoffID, done.OfferHash)
	return err
}

// choose finds the named hand-off, or the only open one.
func (c handoffAnswerCmd) choose(p prompt.Prompt, h *schema.Head) (*schema.OpenHandoff, error) {
	i := slices.IndexFunc(h.Handoffs, func(o schema.OpenHandoff) bool { return o.HandoffID == c.Handoff })
	if c.Handoff == "" && len(h.Handoffs) == 1 {
		i = 0
	}
	names := make([]string, len(h.Handoffs))
	for j := range h.Handoffs {
		names[j] = strings.TrimSpace(schema.Command("", "", h.Handoffs[j].HandoffID))
	}
	switch {
	case i < 0 && c.Handoff != "" && c.Accept == "":
		// It may be a repeated request: the daemon knows whether the first try ended the hand-off.
		return &schema.OpenHandoff{HandoffID: c.Handoff}, nil
	case len(names) == 0:
		return nil, failure.New(failure.NotFound, "see closed hand-offs: "+p.Command("runs get "+h.Run+" --view state"), "run %s has no open hand-off", h.Run)
	case i < 0 && c.Handoff == "":
		return nil, failure.New(failure.Usage, "name one of: "+strings.Join(names, ", "), "run %s has %d open hand-offs", h.Run, len(names))
	case i < 0:
		return nil, failure.New(failure.NotFound, "open hand-offs: "+strings.Join(names, ", "), "run %s has no open hand-off %s", h.Run, c.Handoff)
	}
	return &h.Handoffs[i], nil
}
