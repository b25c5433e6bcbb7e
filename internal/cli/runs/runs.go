package runs

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/schema"
)

// Cmd is waymark runs.
type Cmd struct {
	Ls      lsCmd      `cmd:"" help:"List runs."`
	Get     getCmd     `cmd:"" help:"Show a run, including every event acknowledged so far."`
	Show    showCmd    `cmd:"" help:"Show what a run did: turns, calls, their durations, takeovers, waits."`
	History historyCmd `cmd:"" help:"List the points at which a run can be restored."`
}

// statuses are all statuses of a run.
var statuses = []schema.Status{
	schema.StatusRunning, schema.StatusWaiting, schema.StatusInterrupted, schema.StatusOrphaned, schema.StatusPaused,
	schema.StatusCompleted, schema.StatusFailed, schema.StatusCancelled,
}

// Values of --status that are not statuses of a run.
const (
	quarantined schema.Status = "quarantined"
	held        schema.Status = "held"
)

type lsCmd struct {
	Status []schema.Status `sep:"," placeholder:"STATUS" help:"running, waiting, interrupted, orphaned, paused, completed, failed, cancelled, quarantined, or held: a person must settle a call."`
	Stuck  bool            `help:"Only stuck runs, with each reason and its begin, longest first."`
	base.ScopeFlags
	Completion []schema.Completion `sep:"," placeholder:"HOW" help:"Only runs ended by: tool, a call of their completion tool; limit, the executor after a limit; executor, the executor alone."`
	Parent     string              `placeholder:"RUN" help:"Only children of this run."`
	Since      string              `placeholder:"AGE" help:"Only runs that ended (open ones: started) at most this long ago, such as 36h or 2d, or since a time, such as 2026-01-31T08:00:00Z."`
	Until      string              `placeholder:"AGE" help:"The same, longer ago."`
	Limit      int                 `default:"100" placeholder:"N" help:"Maximum runs (default: 100)."`
	All        bool                `help:"List all runs."`
}

// Help is the text below the flags.
func (lsCmd) Help() string {
	return `Open runs come first, then ended ones, the latest at the top. The list comes from checkpoints and may be a moment old. With a ` +
		`tier or label that few runs have, add --since.

Examples:
  waymark runs ls --stuck
  waymark runs ls --completion limit,executor --since 7d
  waymark runs ls --agent coder --label team=blue --all --json`
}

// Run lists runs. The list comes from checkpoints and may be a moment old.
func (c lsCmd) Run(ctx context.Context, a *base.App) error {
	for _, s := range c.Status {
		if !slices.Contains(statuses, s) && s != quarantined && s != held {
			known := make([]string, len(statuses))
			for i := range statuses {
				known[i] = string(statuses[i])
			}
			return failure.New(failure.Usage, "use some of "+strings.Join(known, ", ")+", "+string(quarantined)+", "+string(held), "status %q is not known", s)
		}
	}
	for _, how := range c.Completion {
		if !slices.Contains(schema.Completions, how) {
			return failure.New(failure.Usage, "use some of tool, limit, executor", "completion %q is not known", how)
		}
	}
	if c.Limit < 1 {
		return failure.New(failure.Usage, "for all runs use --all", "--limit %d is below 1", c.Limit)
	}
	if c.Agent != "" {
		if err := schema.CheckName("--agent", c.Agent); err != nil {
			return err
		}
	}
	if c.Stuck && (len(c.Status) > 0 || len(c.Completion) > 0) {
		return failure.New(failure.Usage, "omit one of them", "--stuck does not go with --status and --completion")
	}
	if c.Parent != "" && (c.Since != "" || c.Until != "") {
		return failure.New(failure.Usage, "omit one of them", "--parent does not go with --since and --until")
	}
	since, err := moment("--since", c.Since, a.Now())
	if err != nil {
		return err
	}
	until, err := moment("--until", c.Until, a.Now())
	if err != nil {
		return err
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	scope := c.Scope()
	request := schema.ListRequest{Status: c.asked(), Agent: scope.Agent, ModelTier: scope.ModelTier, Completion: c.Completion, Parent: c.Parent, Labels: scope.Labels, Since: since, Until: until}
	if c.Stuck {
		return c.stuck(ctx, a, cl, request)
	}
	var all schema.ListReply
	all.Runs = []schema.RunSummary{}
	request.Quarantined = len(c.Status) == 1 && c.Status[0] == quarantined
	request.Held = len(c.Status) == 1 && c.Status[0] == held
	for {
		request.Limit = schema.MaxList
		if !c.All {
			request.Limit = min(schema.MaxList, c.Limit-len(all.Runs))
		}
		var page schema.ListReply
		if err := cl.Ask(ctx, schema.VerbList, "", request, &page); err != nil {
			return err
		}
		all.Runs, all.Next = append(all.Runs, slices.DeleteFunc(page.Runs, c.unwanted)...), page.Next
		all.Incomplete = all.Incomplete || page.Incomplete
		if page.Next == "" || !c.All && len(all.Runs) >= c.Limit {
			break
		}
		request.After = page.Next
	}
	if a.JSON {
		return output.Document(a.Stdout, all)
	}
	if err := sayIncomplete(a, all.Incomplete); err != nil {
		return err
	}
	if err := printRuns(a.Stdout, all.Runs, a.Now()); err != nil {
		return err
	}
	if all.Next != "" && !a.Quiet {
		_, err = fmt.Fprintf(a.Stderr, "there are more: list them with --all, or with a --limit above %d\n", c.Limit)
	} else if len(all.Runs) == 0 && !all.Incomplete && !a.Quiet {
		_, err = fmt.Fprintln(a.Stderr, "no runs")
	}
	return err
}

// sayIncomplete says of an incomplete list that it may lack runs, and what to do if that lasts.
func sayIncomplete(a *base.App, incomplete bool) error {
	if !incomplete {
		return nil
	}
	return a.Say(a.Stderr, "some runs may be missing: the daemon is still indexing them, or cannot read its store; if this lasts: %s", a.Prompt.Command("doctor"))
}

// moment reads a time or an age as RFC 3339; "" for none.
func moment(flag, text string, now time.Time) (string, error) {
	if text == "" {
		return "", nil
	}
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return schema.FormatTime(at), nil
	}
	days, isDays := strings.CutSuffix(text, "d")
	ago, err := time.ParseDuration(text)
	if isDays {
		ago, err = time.ParseDuration(days + "h")
		ago *= 24
	}
	if err != nil || ago < 0 {
		return "", failure.New(failure.Usage, "use an age such as 90m, 36h or 2d, or a time such as 2026-01-31T08:00:00Z", "%s %q is not a time", flag, text)
	}
	return schema.FormatTime(now.Add(-ago)), nil
}

// asked are the statuses in the request to the daemon: only claimable runs can be quarantined, and a run of any status
// can have a held call.
func (c lsCmd) asked() []schema.Status {
	if slices.Contains(c.Status, held) {
		return nil
	}
	var list []schema.Status
	for _, s := range c.Status {
		if s != quarantined {
			list = append(list, s)
		}
	}
	if !slices.Contains(c.Status, quarantined) {
		return list
	}
	for _, s := range statuses {
		if s.Claimable() && !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// unwanted reports whether a run was returned only because it could have been quarantined, or could have had a held
// call.
func (c lsCmd) unwanted(r schema.RunSummary) bool {
	return len(c.Status) > 0 && !slices.Contains(c.Status, r.Status) &&
		(!r.Quarantined || !slices.Contains(c.Status, quarantined)) && (r.Held == 0 || !slices.Contains(c.Status, held))
}

func printRuns(w io.Writer, runs []schema.RunSummary, now time.Time) error {
	columns := []output.Column{
		{Title: "run"},
		{Title: "agent", Drop: 5},
		{Title: "executor", Drop: 1},
		{Title: "status"},
		{Title: "epoch", Right: true, Drop: 3},
		{Title: "turn", Right: true},
		{Title: "calls", Right: true, Drop: 4},
		{Title: "open", Right: true},
		{Title: "events", Right: true, Drop: 2},
		{Title: "ended by", Drop: 6},
		{Title: "updated"},
	}
	rows := make([][]string, len(runs))
	ended := false
	for i, r := range runs {
		ended = ended || contractText(&r) != ""
		rows[i] = []string{
			r.Run, r.Agent, r.Executor, story.SummaryStatus(&r), output.Number(r.Epoch), output.Number(r.Turn), output.Number(r.ToolCalls),
			output.Number(r.OpenCalls), output.Number(r.Events), contractText(&r), output.Ago(r.UpdatedAt, now),
		}
	}
	if at := len(columns) - 2; !ended {
		columns = slices.Delete(columns, at, at+1)
		for i := range rows {
			rows[i] = slices.Delete(rows[i], at, at+1)
		}
	}
	return output.Table(w, columns, rows)
}

// contractText names the call of the completion tool that ended a run, its limit and the begin of its error.
func contractText(r *schema.RunSummary) string {
	var by []string
	if r.CompletedBy != "" {
		by = append(by, "call "+r.CompletedBy)
	}
	if r.Limit != "" {
		by = append(by, "limit "+r.Limit)
	}
	if short := fmt.Sprintf("%.40s", r.Error); short == r.Error && short != "" {
		by = append(by, short)
	} else if short != "" {
		by = append(by, short+"…") // the other columns stay
	}
	return strings.Join(by, ", ")
}

type getCmd struct {
	Run_ string `arg:"" name:"run" help:"Run id."`
	View string `default:"head" enum:"head,state" help:"head: compact state; state: all that its events add up to, as JSON."`
	At   string `placeholder:"POINT" help:"Show it exactly as it was at a point of its history, such as turn:7."`
	Full bool   `help:"With the content in the object store; implies --view state."`
}

// Help is the text below the flags.
func (getCmd) Help() string {
	return `What it did, in lines: waymark runs show.

Examples:
  waymark runs get fix-login --full | jq .messages
  waymark runs get fix-login --at turn:7`
}

// Run shows a run.
func (c getCmd) Run(ctx context.Context, a *base.App) error {
	if c.Full {
		c.View = schema.ViewState
	}
	var at schema.Point
	if c.At != "" {
		var err error
		if at, err = parsePoint("--at", c.At); err != nil {
			return err
		}
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	switch {
	case c.View == schema.ViewState:
		return printState(ctx, a, cl, c.Run_, at, c.Full)
	case c.At != "":
		return showAt(ctx, a, cl, c.Run_, at)
	}
	reply, err := cl.Get(ctx, c.Run_)
	if err != nil {
		return err
	}
	if err := story.OpenHead(ctx, cl, &reply.Head); err != nil {
		return err
	}
	if a.JSON {
		return output.Document(a.Stdout, reply)
	}
	if err := cmp.Or(
		printHead(a, &reply.Head, reply.Quarantined, reply.Pauses, "waits", limitText(a, reply.Full), "segments", segmentsText(reply.Segments), "shard", strconv.Itoa(reply.Shard)),
		printOverdue(a, reply.Overdue), printDamage(a, c.Run_, reply.Damage),
	); err != nil {
		return err
	}
	if len(reply.Overdue) > 0 && !a.Quiet {
		if _, err := fmt.Fprintln(a.Stderr, output.Hanging(a.Stdout, "", "overdue work ignores the end of its context: check the executor, "+
			"and stop its process if the work does not return; another executor continues the run")); err != nil {
			return err
		}
	}
	return printSteps(a, &reply.Head, reply.Quarantined)
}

func segmentsText(s schema.SegmentIndex) string {
	if s.Count == 0 {
		return ""
	}
	return fmt.Sprintf("%d, %s in %s", s.Count, output.Plural(s.Events, "event"), output.Bytes(s.Bytes))
}
