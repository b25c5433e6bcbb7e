package runs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/cli/prompt"
	"github.com/waymarkio/waymark/internal/encryption"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// HandoffCmd is waymark handoff.
type HandoffCmd struct {
	Check   handoffCheckCmd   `cmd:"" help:"Check a hand-off in a file before it is offered, and show its length."`
	Ls      handoffLsCmd      `cmd:"" help:"List the hand-offs of a run, including closed ones."`
	Accept  handoffAcceptCmd  `cmd:"" help:"Accept a hand-off for a run that will continue the work. It does not start that run."`
	Decline handoffDeclineCmd `cmd:"" help:"Decline a hand-off, with a reason."`
	Close   handoffCloseCmd   `cmd:"" help:"Close a hand-off: its work is done, or will not be done."`
}

type handoffLsCmd struct {
	Run_ string `arg:"" name:"run" help:"Run id."`
}

// handoffs is the JSON output of handoff ls.
type handoffs struct {
	Run      string                `json:"run"`
	Handoffs []schema.StateHandoff `json:"handoffs"`
	// Open has the hashes that an acceptance must name.
	Open []schema.OpenHandoff `json:"open"`
}

// Run lists the hand-offs of a run, oldest first.
func (c handoffLsCmd) Run(ctx context.Context, a *base.App, cl *base.Client) error {
	var state *schema.State
	var missing error
	err := cl.WithReader(ctx, func(fleet *publisher.Reader) (err error) {
		state, missing, err = base.StateOf(ctx, fleet, c.Run_)
		return err
	})
	if err != nil {
		return err
	}
	if a.JSON {
		reply := handoffs{Run: c.Run_, Handoffs: state.Handoffs, Open: state.Head.Handoffs}
		if reply.Handoffs == nil {
			reply.Handoffs = []schema.StateHandoff{}
		}
		if reply.Open == nil {
			reply.Open = []schema.OpenHandoff{}
		}
		return errors.Join(output.Document(a.Stdout, reply), missing)
	}
	return errors.Join(c.print(a, state), missing)
}

func (c handoffLsCmd) print(a *base.App, s *schema.State) error {
	rows := make([][]string, len(s.Handoffs))
	offered := ""
	for i := range s.Handoffs {
		o := &s.Handoffs[i]
		row := []string{o.HandoffID, o.Status, "", "", "", output.ByText(o.By, o.Claimed), o.ChildRun, "", encryption.ReadableField(o.Reason, o.Refs, "/reason")}
		if d := o.Offered; d != nil {
			row[2], row[3], row[4] = d.Kind, d.Reason, d.NextAgent
			if row[2] == "" {
				row[2] = schema.HandoffContinuation
			}
		}
		if at := slices.IndexFunc(s.Head.Handoffs, func(h schema.OpenHandoff) bool { return h.HandoffID == o.HandoffID }); at >= 0 {
			row[7] = output.Ago(s.Head.Handoffs[at].Since, a.Now())
			if offered == "" && o.Status == schema.HandoffStatusOffered {
				offered = o.HandoffID
			}
		}
		rows[i] = row
	}
	columns, rows := withoutEmpty(append(handoffColumns(), output.Column{Title: "why", Shrinks: true}), rows)
	err := output.Table(a.Stdout, columns, rows)
	if err == nil {
		err = printSaid(a, s.Handoffs)
	}
	if err != nil || a.Quiet {
		return err
	}
	switch {
	case len(rows) == 0:
		_, err = fmt.Fprintln(a.Stderr, "no hand-offs")
	case offered != "":
		_, err = fmt.Fprintf(a.Stderr, "an executor of the next agent accepts the offer; to decline it: %s --reason TEXT\n",
			output.Printable(a.Prompt.Command("handoff decline "+c.Run_+" "+schema.ShellWord(offered))))
	}
	return err
}

// handoffTarget names a hand-off, and the person who decides about it.
type handoffTarget struct {
	Run_    string `arg:"" name:"run" help:"Run id."`
	Handoff string `arg:"" optional:"" help:"Hand-off id (default: the only open one)."`
	By      string `placeholder:"NAME" environ:"WAYMARK_OPERATOR" help:"Your name, recorded as a claim (WAYMARK_OPERATOR; default: waymark-cli)."`
}

// handoffDone is the JSON output of accept, decline and close.
type handoffDone struct {
	Run       string `json:"run"`
	HandoffID string `json:"handoff_id"`
	Action    string `json:"action"`
	ChildRun  string `json:"child_run,omitzero"`
	OfferHash string `json:"offer_hash,omitzero"`
	Reason    string `json:"reason,omitzero"`
	schema.ControlReply
}

// decide sends a decision about a hand-off.
func (t handoffTarget) decide(ctx context.Context, a *base.App, request schema.HandoffRequest) (*handoffDone, *schema.OpenHandoff, error) {
	by, err := base.Sender(t.By)
	if err != nil {
		return nil, nil, err
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	reply, err := cl.Get(ctx, t.Run_)
	if err != nil {
		return nil, nil, err
	}
	h := &reply.Head
	open, err := t.choose(a.Prompt, h, request.Action)
	if err != nil {
		return nil, nil, err
	}
	request.HandoffID, request.By = open.HandoffID, by
	if request.Action == schema.HandoffAccept {
		request.OfferHash = open.OfferHash
	}
	done := &handoffDone{
		Run: h.Run, HandoffID: request.HandoffID, Action: request.Action, ChildRun: request.ChildRun,
		OfferHash: request.OfferHash, Reason: request.Reason,
	}
	if err := cl.Ask(ctx, schema.VerbHandoff, h.Run, &request, &done.ControlReply); err != nil {
		return nil, nil, explainHandoff(a.Prompt, h, err)
	}
	return done, open, nil
}

// choose finds the named hand-off, or the only open one.
func (t handoffTarget) choose(p prompt.Prompt, h *schema.Head, action string) (*schema.OpenHandoff, error) {
	i := slices.IndexFunc(h.Handoffs, func(o schema.OpenHandoff) bool { return o.HandoffID == t.Handoff })
	if t.Handoff == "" && len(h.Handoffs) == 1 {
		i = 0
	}
	names := make([]string, len(h.Handoffs))
	for j := range h.Handoffs {
		names[j] = schema.ShellWord(h.Handoffs[j].HandoffID)
	}
	switch {
	case i < 0 && t.Handoff != "" && action != schema.HandoffAccept:
		// It may be a repeated request: the daemon knows whether the first try ended the hand-off.
		return &schema.OpenHandoff{HandoffID: t.Handoff}, nil
	case len(names) == 0:
		return nil, failure.New(failure.NotFound, "see closed hand-offs: "+p.Command("handoff ls "+h.Run), "run %s has no open hand-off", h.Run)
	case i < 0 && t.Handoff == "":
		return nil, failure.New(failure.Usage, "name one of: "+strings.Join(names, ", "), "run %s has %d open hand-offs", h.Run, len(names))
	case i < 0:
		return nil, failure.New(failure.NotFound, "open hand-offs: "+strings.Join(names, ", "), "run %s has no open hand-off %s", h.Run, t.Handoff)
	}
	return &h.Handoffs[i], nil
}

func explainHandoff(p prompt.Prompt, h *schema.Head, err error) error {
	service, ok := errors.AsType[*schema.ServiceError](err)
	if !ok || service.Code != schema.CodeHandoffTaken && service.Code != schema.CodeUnknownHandoff {
		return err
	}
	f := &failure.Error{Code: failure.Conflict, What: service.Message, Hint: "see which executor has it: " + p.Command("handoff ls "+h.Run), Err: err}
	if service.Code == schema.CodeUnknownHandoff {
		f.Code = failure.NotFound
	}
	return f
}

func (d *handoffDone) print(a *base.App, past string) error {
	if a.JSON {
		return output.Document(a.Stdout, d)
	}
	return output.Fields(a.Stdout, output.PastLabel(past, d.Already), fmt.Sprintf("hand-off %s of run %s", d.HandoffID, d.Run), output.ByLabel(d.By), d.By, "child run", d.ChildRun,
		"offer hash", d.OfferHash, "reason", d.Reason, "event", d.EventID, "position", output.Number(d.Stream))
}

type handoffAcceptCmd struct {
	handoffTarget
	Child string `required:"" placeholder:"RUN" help:"Id of the run that will continue the work."`
}

// Help is the text below the flags.
func (handoffAcceptCmd) Help() string {
	return `For an executor without the SDK (with it: AcceptHandoff, which also starts the run). The run that continues starts when an ` +
		`executor publishes run.started with the printed values.

Example:
  waymark handoff accept fix-login half --child fix-login-2`
}

// Run accepts a hand-off for a child run.
func (c handoffAcceptCmd) Run(ctx context.Context, a *base.App) error {
	if err := schema.CheckName("--child", c.Child); err != nil {
		return err
	}
	done, open, err := c.decide(ctx, a, schema.HandoffRequest{Action: schema.HandoffAccept, ChildRun: c.Child})
	if err != nil {
		return err
	}
	if err := done.print(a, "accepted"); err != nil || a.JSON || a.Quiet {
		return err
	}
	agent := open.NextAgent
	if agent == "" {
		agent = "the same agent"
	}
	_, err = fmt.Fprintf(a.Stderr, "run %s starts when an executor of %s publishes its run.started with resumed_from %s and handoff "+
		"{\"run\":%q,\"handoff_id\":%q,\"offer_hash\":%q}\n", c.Child, output.Printable(agent), done.Run, done.Run, done.HandoffID, done.OfferHash)
	return err
}

type handoffDeclineCmd struct {
	handoffTarget
	Reason string `required:"" placeholder:"TEXT" help:"Why, for the run that offered."`
}

// Help is the text below the flags.
func (handoffDeclineCmd) Help() string {
	return `Example:
  waymark handoff decline fix-login half --reason "there is no such agent"`
}

// Run declines a hand-off.
func (c handoffDeclineCmd) Run(ctx context.Context, a *base.App) error {
	if strings.TrimSpace(c.Reason) == "" {
		return failure.New(failure.Usage, "give a reason: the offering run can react to it", "--reason is empty")
	}
	done, _, err := c.decide(ctx, a, schema.HandoffRequest{Action: schema.HandoffDecline, Reason: c.Reason})
	if err != nil {
		return err
	}
	return done.print(a, "declined")
}

type handoffCloseCmd struct {
	handoffTarget
	Reason string `placeholder:"TEXT" help:"Why, for the record."`
}

// Run closes a hand-off.
func (c handoffCloseCmd) Run(ctx context.Context, a *base.App) error {
	done, _, err := c.decide(ctx, a, schema.HandoffRequest{Action: schema.HandoffClose, Reason: c.Reason})
	if err != nil {
		return err
	}
	return done.print(a, "closed")
}
