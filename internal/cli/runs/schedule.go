package runs

import (
	"cmp"
	"context"
	"slices"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/firing"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// ScheduleCmd is waymark schedule.
type ScheduleCmd struct {
	Set scheduleSetCmd `cmd:"" help:"Set a schedule, in place of an earlier one of its name."`
	Ls  scheduleLsCmd  `cmd:"" help:"List the schedules: what is due next, what fired last, and what fails."`
	Rm  scheduleRmCmd  `cmd:"" help:"Remove a schedule. Its runs stay."`
	Run scheduleRunCmd `cmd:"" help:"Submit a run of a schedule now."`
}

// scheduleName are the arguments that change a schedule.
type scheduleName struct {
	Name string `arg:"" help:"Name of the schedule; its runs begin with it."`
	By   string `placeholder:"NAME" environ:"WAYMARK_OPERATOR" help:"Your name, recorded as a claim (WAYMARK_OPERATOR; default: waymark-cli)."`
}

// ask sends the request of a command, and prints the answer.
func (c scheduleName) ask(ctx context.Context, a *base.App, cl *base.Client, label string, req schema.ScheduleRequest) (err error) {
	if req.By, err = base.Sender(c.By); err != nil {
		return err
	}
	reply := new(schema.ScheduleReply)
	req.Name = c.Name
	if err := cl.Ask(ctx, schema.VerbSchedule, "", &req, reply); err != nil {
		return err
	}
	if a.JSON {
		return output.Document(a.Stdout, reply)
	}
	s := &reply.Schedule
	if req.End && reply.Already {
		return a.Say(a.Stderr, "there is no schedule %s; see: %s", c.Name, a.Prompt.Command("schedule ls"))
	}
	return output.Fields(a.Stdout, output.PastLabel(label, reply.Already), "schedule "+s.Name, "cron", s.Cron, "time zone", cmp.Or(s.TimeZone, "UTC"),
		"agent", s.Agent, "next", reply.Next, output.ByLabel(s.By), output.ByText(s.By, s.Claimed), "since", s.Since)
}

type scheduleSetCmd struct {
	scheduleName
	newRun

	Cron     string `required:"" placeholder:"FIELDS" help:"Minute, hour, day of month, month and day of week, as in crontab."`
	TimeZone string `placeholder:"ZONE" help:"Time zone of the fields, such as Europe/Berlin (default: UTC)."`
	Missed   string `default:"one" enum:"one,all,none" placeholder:"WHICH" help:"Firings that no daemon submitted in time: the latest one, all, or none (default: one)."`
}

// Help is the text below the flags.
func (scheduleSetCmd) Help() string {
	return `Any daemon of the fleet submits the runs, each once, as waymark start does: NAME-20261201T0700Z is due at that time, in UTC. Task and labels are stored in ` +
		`plain text. A change counts from now on.

Examples:
  waymark schedule set report --cron "0 7 * * 1-5" --time-zone Europe/Berlin writer --task "Write the daily report."
  waymark schedule ls
  waymark schedule run report
  waymark schedule rm report`
}

// Run sets a schedule.
func (c scheduleSetCmd) Run(ctx context.Context, a *base.App) error {
	if err := c.prepare(ctx, a); err != nil {
		return err
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	if cl.HasKeys() && (c.Task != "" || len(c.Label) > 0) {
		return failure.New(failure.Usage, "omit --key-file, or omit the task and the labels and let the agent read them", "a schedule is stored in plain text, because the daemon has no keys")
	}
	if err := c.warnReadable(ctx, a, cl); err != nil {
		return err
	}
	return c.ask(ctx, a, cl, "set", schema.ScheduleRequest{ScheduleSpec: schema.ScheduleSpec{
		Cron: c.Cron, TimeZone: c.TimeZone, Missed: c.Missed, Agent: c.Agent, Task: c.Task, ThreadID: c.Thread, Labels: c.Label, ModelTier: c.Tier,
		Priority: c.Priority, MaxTurns: c.MaxTurns, MaxTokens: c.MaxTokens, CompletionTool: c.Complete,
	}})
}

type scheduleRmCmd struct{ scheduleName }

// Run removes a schedule.
func (c scheduleRmCmd) Run(ctx context.Context, a *base.App, cl *base.Client) error {
	return c.ask(ctx, a, cl, "removed", schema.ScheduleRequest{End: true})
}

type scheduleLsCmd struct{}

// Run lists the schedules.
func (scheduleLsCmd) Run(ctx context.Context, a *base.App, cl *base.Client) error {
	var reply schema.FleetReply
	if err := cl.Ask(ctx, schema.VerbFleet, "", schema.FleetRequest{}, &reply); err != nil {
		return err
	}
	if a.JSON {
		return output.Document(a.Stdout, append([]schema.ScheduleState{}, reply.Schedules...))
	}
	if len(reply.Schedules) == 0 {
		return a.Say(a.Stderr, "no schedules")
	}
	rows, notes := make([][]string, len(reply.Schedules)), []string(nil)
	for i := range reply.Schedules {
		s := &reply.Schedules[i]
		status := ""
		if s.LastRun != "" {
			if run, err := cl.Get(ctx, s.LastRun); err != nil {
				notes = append(notes, err.Error()) // it may have been removed
			} else {
				status = string(run.Head.Status)
			}
		}
		rows[i] = []string{s.Name, s.Cron, cmp.Or(s.TimeZone, "UTC"), s.Agent, s.Next, s.LastRun, status}
		if s.Why != "" {
			notes = append(notes, "schedule "+s.Name+" fails since "+s.FailingSince+": "+s.Why)
		}
		if s.LeftOut != "" {
			notes = append(notes, "schedule "+s.Name+" left out missed firings up to "+s.LeftOut+", by --missed "+s.Missed)
		}
		for _, p := range schema.PausesOf(reply.Pauses, &schema.Live{Agent: s.Agent, ModelTier: s.ModelTier, Labels: s.Labels}) {
			notes = append(notes, "runs of schedule "+s.Name+" are submitted and wait; to let them go on: "+a.Prompt.Command("unpause "+p.Flags()))
		}
	}
	if err := output.Table(a.Stdout, []output.Column{
		{Title: "name"}, {Title: "cron"}, {Title: "time zone"}, {Title: "agent", Shrinks: true}, {Title: "next"}, {Title: "last run"}, {Title: "status"},
	}, rows); err != nil {
		return err
	}
	for _, note := range notes {
		if err := a.Say(a.Stderr, "%s", note); err != nil {
			return err
		}
	}
	return nil
}

type scheduleRunCmd struct {
	Name string `arg:"" help:"Name of the schedule."`
}

// Run submits a run of a schedule.
func (c scheduleRunCmd) Run(ctx context.Context, a *base.App, cl *base.Client) error {
	var reply schema.FleetReply
	if err := cl.Ask(ctx, schema.VerbFleet, "", schema.FleetRequest{}, &reply); err != nil {
		return err
	}
	i := slices.IndexFunc(reply.Schedules, func(s schema.ScheduleState) bool { return s.Name == c.Name })
	if i < 0 {
		return failure.New(failure.NotFound, "see: "+a.Prompt.Command("schedule ls"), "fleet %s has no schedule %s", cl.Fleet, c.Name)
	}
	s := &reply.Schedules[i]
	start := StartCmd{ID: s.RunIDNow(a.Now()), newRun: newRun{Agent: s.Agent}}
	said := started{Run: start.ID, Agent: s.Agent}
	if err := cl.WithExecutor(ctx, base.Operator, func(fleet *publisher.Fleet) error {
		fresh, err := fleet.Submit(ctx, firing.Spec(&s.Schedule, start.ID))
		said.Already = !fresh
		return err
	}); err != nil {
		return err
	}
	return start.show(ctx, a, cl, &said)
}
