package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// HandoffCmd is waymark handoff.
type HandoffCmd struct {
	Check  handoffCheckCmd  `cmd:"" help:"Check a hand-off in a file before it is offered, and show its length."`
	Ls     handoffLsCmd     `cmd:"" help:"List the hand-offs of a run, including closed ones."`
	Answer handoffAnswerCmd `cmd:"" help:"Accept, decline or close a hand-off."`
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
		_, err = fmt.Fprintf(a.Stderr, "an executor of the next agent accepts the offer; to decline it: %s --decline WHY\n",
			output.Printable(a.Prompt.Command("handoff answer "+c.Run_+" "+schema.ShellWord(offered))))
	}
	return err
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
		names[j] = schema.ShellWord(h.Handoffs[j].HandoffID)
	}
	switch {
	case i < 0 && c.Handoff != "" && c.Accept == "":
		// It may be a repeated request: the daemon knows whether the first try ended the hand-off.
		return &schema.OpenHandoff{HandoffID: c.Handoff}, nil
	case len(names) == 0:
		return nil, failure.New(failure.NotFound, "see closed hand-offs: "+p.Command("handoff ls "+h.Run), "run %s has no open hand-off", h.Run)
	case i < 0 && c.Handoff == "":
		return nil, failure.New(failure.Usage, "name one of: "+strings.Join(names, ", "), "run %s has %d open hand-offs", h.Run, len(names))
	case i < 0:
		return nil, failure.New(failure.NotFound, "open hand-offs: "+strings.Join(names, ", "), "run %s has no open hand-off %s", h.Run, c.Handoff)
	}
	return &h.Handoffs[i], nil
}
