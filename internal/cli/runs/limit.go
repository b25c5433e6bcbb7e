package runs

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/schema"
)

// LimitCmd is waymark limit.
type LimitCmd struct {
	Set limitCmd   `cmd:"" default:"withargs" help:"Set or change the limit of a selection. This is the default."`
	Ls  limitLsCmd `cmd:"" help:"List the limits, and what their runs use."`
	Rm  limitRmCmd `cmd:"" help:"End a limit."`
}

// limitScope are the arguments that select the runs of a limit.
type limitScope struct {
	base.ScopeFlags
	All  bool   `help:"All runs of the fleet."`
	Each string `placeholder:"KEY" help:"Each value of this label has the limit for itself; tenant is one."`
	By   string `placeholder:"NAME" environ:"WAYMARK_OPERATOR" help:"Your name, recorded as a claim (WAYMARK_OPERATOR; default: waymark-cli)."`
}

// Validate is called by kong.
func (l limitScope) Validate() error {
	switch {
	case l.All && (l.Any() || l.Each != ""):
		return errors.New("use only one: --all, or a selection with --agent, --tier, --tenant, --label or --each; not both")
	case !l.All && !l.Any() && l.Each == "":
		return errors.New("select runs with --agent, --tier, --tenant, --label or --each, or all of them with --all")
	}
	return nil
}

// ask sends the request of a command.
func (l limitScope) ask(ctx context.Context, a *base.App, req schema.LimitRequest) (*schema.LimitReply, error) {
	cl, by, err := a.ConnectAs(ctx, l.By)
	if err != nil {
		return nil, err
	}
	req.Scope, req.Each, req.By = l.Scope(), l.Each, by
	reply := new(schema.LimitReply)
	return reply, cl.Ask(ctx, schema.VerbLimit, "", &req, reply)
}

type limitCmd struct {
	limitScope

	AtWork    int   `placeholder:"N" help:"The most runs that executors have at a time."`
	DayTokens int64 `placeholder:"N" help:"The most tokens that the runs use in a day, which begins at 00:00 UTC."`
}

// Help is the text below the flags.
func (limitCmd) Help() string {
	return `At the limit, runs wait; none fails. A bound that is not named stays as it is: to end it, use limit rm.

Examples:
  waymark limit --agent coder --at-work 20
  waymark limit --each tenant --at-work 5 --day-tokens 2000000
  waymark limit ls
  waymark limit rm --agent coder`
}

// Validate is called by kong.
func (c limitCmd) Validate() error {
	if c.AtWork < 0 || c.DayTokens < 0 || c.AtWork == 0 && c.DayTokens == 0 {
		return errors.New("say what is limited: --at-work N, --day-tokens N, or both, each at least 1")
	}
	return nil
}

// Run sets a limit.
func (c limitCmd) Run(ctx context.Context, a *base.App) error {
	reply, err := c.ask(ctx, a, schema.LimitRequest{AtWork: c.AtWork, DayTokens: c.DayTokens})
	if err != nil {
		return err
	}
	return printLimit(a, output.PastLabel("set", reply.Already), reply)
}

type limitRmCmd struct{ limitScope }

// Run ends a limit.
func (c limitRmCmd) Run(ctx context.Context, a *base.App) error {
	reply, err := c.ask(ctx, a, schema.LimitRequest{End: true})
	if err != nil {
		return err
	}
	if reply.Already && !a.JSON {
		return a.Say(a.Stderr, "%s has no limit; see: %s", reply.Limit.Flags(), a.Prompt.Command("limit ls"))
	}
	return printLimit(a, "ended", reply)
}

func printLimit(a *base.App, label string, reply *schema.LimitReply) error {
	if a.JSON {
		return output.Document(a.Stdout, reply)
	}
	l := &reply.Limit
	return output.Fields(a.Stdout, label, "the limit of "+l.Flags(), "at work", output.Number(l.AtWork), "tokens a day", output.Number(l.DayTokens),
		output.ByLabel(l.By), output.ByText(l.By, l.Claimed), "since", l.Since)
}

// limitText says for which limits' places a run waits; empty for none.
func limitText(a *base.App, full []schema.Limit) string {
	if len(full) == 0 {
		return ""
	}
	return strings.TrimPrefix(schema.FullText(full), "waits ") + "; see: " + a.Prompt.Command("limit ls")
}

type limitLsCmd struct{}

// Run lists the limits.
func (limitLsCmd) Run(ctx context.Context, a *base.App, cl *base.Client) error {
	var reply schema.FleetReply
	if err := cl.Ask(ctx, schema.VerbFleet, "", schema.FleetRequest{}, &reply); err != nil {
		return err
	}
	if a.JSON {
		return output.Document(a.Stdout, append([]schema.LimitState{}, reply.Limits...))
	}
	var rows [][]string
	for i := range reply.Limits {
		l := &reply.Limits[i]
		row := []string{l.Flags(), "", output.Number(l.AtWork), "", "", output.Number(l.DayTokens), "", output.ByText(l.By, l.Claimed), output.Ago(l.Since, a.Now())}
		for _, s := range l.Shares {
			row[1], row[6] = s.Value, output.Number(s.DayTokens)
			if l.AtWork > 0 {
				row[3], row[4] = strconv.Itoa(s.AtWork), strconv.Itoa(s.Waiting)
			}
			rows = append(rows, slices.Clone(row))
		}
		if len(l.Shares) == 0 {
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		return a.Say(a.Stderr, "no limits")
	}
	return output.Table(a.Stdout, []output.Column{{Title: "scope", Shrinks: true}, {Title: "value", Shrinks: true}, {Title: "at most"}, {Title: "at work"}, {Title: "waiting"}, {Title: "tokens a day"}, {Title: "used today"}, {Title: "by"}, {Title: "since"}}, rows)
}
