package runs

import (
	"context"
	"errors"
	"time"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/schema"
)

// PauseCmd is waymark pause.
type PauseCmd struct {
	Set pauseCmd   `cmd:"" default:"withargs" help:"Pause runs: nothing of them begins until the pause ends. This is the default."`
	Ls  pauseLsCmd `cmd:"" help:"List the pauses, who asked for each and why."`
}

// pauseScope are the arguments that select the runs of a pause.
type pauseScope struct {
	Run_ string `arg:"" name:"run" optional:"" help:"Run id; or --agent, --tier, --tenant, --label, --all."`
	base.ScopeFlags
	All bool   `help:"All runs of the fleet."`
	By  string `placeholder:"NAME" environ:"WAYMARK_OPERATOR" help:"Your name, recorded as a claim (WAYMARK_OPERATOR; default: waymark-cli)."`
}

// Validate is called by kong.
func (p pauseScope) Validate() error {
	ways := 0
	for _, way := range []bool{p.Run_ != "", p.Any(), p.All} {
		if way {
			ways++
		}
	}
	if ways > 1 {
		return errors.New("use only one: a run, a selection with --agent, --tier, --tenant or --label, or --all; not both")
	}
	if ways == 0 {
		return errors.New("name a run, or select runs with --agent, --tier, --tenant or --label, or all of them with --all")
	}
	return nil
}

// ask sends the request of a command.
func (p pauseScope) ask(ctx context.Context, cl *base.Client, by string, req schema.PauseRequest) (*schema.PauseReply, error) {
	req.Scope, req.By = p.Scope(), by
	req.Run = p.Run_
	reply := new(schema.PauseReply)
	return reply, cl.Ask(ctx, schema.VerbPause, "", &req, reply)
}

type pauseCmd struct {
	pauseScope

	Reason string `required:"" placeholder:"TEXT" help:"Why, shown with each paused run. It is not encrypted."`
	Until  string `placeholder:"TIME" help:"The pause ends by itself then, by the NATS server's clock: a time of day such as 18:00, a duration such as 2h, or a time such as 2026-01-31T18:00:00Z."`
}

// Help is the text below the flags.
func (pauseCmd) Help() string {
	return `Executors finish the calls that are under way, record them, and begin nothing more. Paused runs keep their place. Answers and messages to them are ` +
		`recorded. The answer proves that no hold or verify tool and no turn begins any more, or says what is not proven yet.

Examples:
  waymark pause --all --reason "the provider bills twice"
  waymark pause --tenant acme --reason "asked by the customer"
  waymark pause --agent coder --until 18:00 --reason "the quota is for others until then"
  waymark pause ls
  waymark unpause --tenant acme`
}

// Run pauses runs.
func (c pauseCmd) Run(ctx context.Context, a *base.App) error {
	until, err := comingTime("--until", c.Until, a.Now())
	if err != nil {
		return err
	}
	cl, by, err := a.ConnectAs(ctx, c.By)
	if err != nil {
		return err
	}
	reply, err := c.ask(ctx, cl, by, schema.PauseRequest{Reason: c.Reason, Until: until})
	if err != nil {
		return err
	}
	if a.JSON {
		return output.Document(a.Stdout, reply)
	}
	p := &reply.Pause
	if err := output.Fields(a.Stdout, output.PastLabel("paused", reply.Already), output.Plural(reply.Runs, "run"), "scope", p.Flags(), "reason", p.Reason,
		output.ByLabel(p.By), output.ByText(p.By, p.Claimed), "since", p.Since, "until", p.Until); err != nil {
		return err
	}
	doubt := reply.Doubt()
	switch {
	case doubt != "":
		return a.Say(a.Stderr, "%s", doubt)
	case reply.Runs == 0 && c.Run_ == "":
		return a.Say(a.Stderr, "no run is selected now; runs that begin later are")
	}
	return nil
}

// UnpauseCmd is waymark unpause.
type UnpauseCmd struct{ pauseScope }

// Help is the text below the flags.
func (UnpauseCmd) Help() string {
	return `Ends the pause of exactly this scope. Its runs are claimed again, one after the other, and continue where they were. A run that another pause ` +
		`selects stays paused: waymark pause ls`
}

// Run ends a pause.
func (c UnpauseCmd) Run(ctx context.Context, a *base.App) error {
	cl, by, err := a.ConnectAs(ctx, c.By)
	if err != nil {
		return err
	}
	reply, err := c.ask(ctx, cl, by, schema.PauseRequest{End: true})
	if err != nil {
		return err
	}
	if a.JSON {
		return output.Document(a.Stdout, reply)
	}
	p := &reply.Pause
	if reply.Already {
		return a.Say(a.Stderr, "%s is not paused: its pause has ended, or there was none; see: %s", p.Flags(), a.Prompt.Command("pause ls"))
	}
	if err := output.Fields(a.Stdout, "ended the pause of", output.Plural(reply.Runs, "run"), "scope", p.Flags(), "reason", p.Reason, output.ByLabel(p.By), output.ByText(p.By, p.Claimed), "since", p.Since); err != nil {
		return err
	}
	var fleet schema.FleetReply
	if err := cl.Ask(ctx, schema.VerbFleet, "", schema.FleetRequest{}, &fleet); err != nil || len(fleet.Pauses) == 0 {
		return err
	}
	return a.Say(a.Stderr, "runs that another pause selects stay paused: %s", a.Prompt.Command("pause ls"))
}

// comingTime reads a duration, a time of day or a time as RFC 3339; "" for none.
func comingTime(flag, text string, now time.Time) (string, error) {
	if text == "" {
		return "", nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if d, derr := time.ParseDuration(text); derr == nil {
		at, err = now.Add(d), nil
	} else if clock, cerr := time.Parse("15:04", text); cerr == nil {
		local := now.Local()
		at, err = time.Date(local.Year(), local.Month(), local.Day(), clock.Hour(), clock.Minute(), 0, 0, local.Location()), nil
		if !at.After(now) {
			at = at.AddDate(0, 0, 1)
		}
	}
	if err != nil || !at.After(now) {
		return "", failure.New(failure.Usage, "use a time to come: a time of day such as 18:00, a duration such as 2h, or a time such as 2026-01-31T18:00:00Z", "%s %q is no time to come", flag, text)
	}
	return schema.FormatTime(at.Truncate(time.Second)), nil
}

type pauseLsCmd struct{}

// Run lists the pauses.
func (pauseLsCmd) Run(ctx context.Context, a *base.App, cl *base.Client) error {
	var reply schema.FleetReply
	if err := cl.Ask(ctx, schema.VerbFleet, "", schema.FleetRequest{}, &reply); err != nil {
		return err
	}
	if a.JSON {
		return output.Document(a.Stdout, append([]schema.Pause{}, reply.Pauses...))
	}
	rows := make([][]string, len(reply.Pauses))
	for i := range reply.Pauses {
		p := &reply.Pauses[i]
		rows[i] = []string{p.Flags(), p.Reason, output.ByText(p.By, p.Claimed), output.Ago(p.Since, a.Now()), p.Until}
	}
	if len(rows) == 0 {
		return a.Say(a.Stderr, "no pauses")
	}
	return output.Table(a.Stdout, []output.Column{{Title: "scope"}, {Title: "reason", Shrinks: true}, {Title: "by"}, {Title: "since"}, {Title: "until"}}, rows)
}
