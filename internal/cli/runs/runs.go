package runs

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/story"
	"github.com/waymarkio/waymark/schema"
)

// Cmd is waymark runs.
type Cmd struct {
	Ls      lsCmd      `cmd:"" aliases:"list" help:"List runs."`
	Get     getCmd     `cmd:"" help:"Show a run, with every event acknowledged so far."`
	Show    showCmd    `cmd:"" help:"Tell what a run did: turns, calls, how long each took, takeovers, waits."`
	Watch   watchCmd   `cmd:"" help:"Show each checkpoint of a run or of all runs as it is made."`
	History historyCmd `cmd:"" help:"List the points at which a run can be restored."`
}

// statuses are all that a run can have.
var statuses = []schema.Status{
	schema.StatusRunning, schema.StatusWaiting, schema.StatusInterrupted, schema.StatusOrphaned,
	schema.StatusCompleted, schema.StatusFailed, schema.StatusCancelled,
}

// What --status takes beside the statuses: a run has no status of its own for it.
const (
	quarantined schema.Status = "quarantined"
	held        schema.Status = "held"
)

type lsCmd struct {
	Status     []schema.Status     `sep:"," placeholder:"STATUS" help:"Only runs of these: running, waiting, interrupted, orphaned, completed, failed, cancelled; quarantined: claimed again and again without progress; or held: a person must settle a call of it, ended runs included."`
	Stuck      bool                `help:"Only runs that stand still, and why: the longest first."`
	Agent      string              `placeholder:"NAME" help:"Only runs of this agent."`
	Tier       string              `placeholder:"NAME" help:"Only runs that began with this class of models."`
	Tenant     string              `placeholder:"NAME" help:"Only runs of this tenant: those with the label tenant=NAME."`
	Completion []schema.Completion `sep:"," placeholder:"HOW" help:"Only completed runs that ended so: tool, by the call that their completion contract asks for; limit, by their executor behind a limit (failed runs, too); executor, by its word alone."`
	Parent     string              `placeholder:"RUN" help:"Only children of this run."`
	Label      map[string]string   `placeholder:"KEY=VALUE" help:"Only runs with this label; may be repeated."`
	Since      string              `placeholder:"AGE" help:"Only runs that ended, or if they have not were started, so long ago or later: 90m, 36h, 2d, or a time such as 2026-01-31T08:00:00Z."`
	Until      string              `placeholder:"AGE" help:"Only runs that ended, or if they have not were started, longer ago than that."`
	Limit      int                 `default:"100" placeholder:"N" help:"At most so many (default: 100)."`
	All        bool                `help:"List all of them, however many there are; --limit counts for nothing then."`
	After      string              `placeholder:"PLACE" help:"Go on behind the list before: its next, which --json shows."`
}

// Help is the text below the flags.
func (lsCmd) Help() string {
	return `What needs a person is in waymark inbox. Runs that have not ended come first, the one that was started last at the top; below them those that have, the one that ended ` +
		`last at the top. With --parent the list is in the order of run ids. A list is of checkpoints: it may be a moment old. ` +
		`When a run ended is when the server stored its last event; when one was started is what its executor said.

Runs are found by status, agent and completion without reading the others. A tier, a tenant and a label are compared with the entry of each ` +
		`run: where few runs have them, --since keeps the list from reading the whole history.

With --stuck each line is a reason why a run stands still: it waits, a person must settle a call of it, its work takes longer than it may, no ` +
		`executor has it, its claims make no progress, or it is parked. SINCE is since when that is so; what stands still for longest comes first.

Examples:
  waymark runs ls --stuck
  waymark runs ls --status failed --since 2d
  waymark runs ls --completion limit,executor --since 7d
  waymark runs ls --tier large --tenant acme --json
  waymark runs ls --agent coder --label team=blue --all --json`
}

// Run lists runs. A list is of checkpoints: it may be a moment old.
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
	var err error
	if c.Label, err = withTenant(c.Label, c.Tenant); err != nil {
		return err
	}
	if c.Limit < 1 {
		return failure.New(failure.Usage, "use --all for all", "--limit %d is below 1", c.Limit)
	}
	if c.Agent != "" {
		if err := schema.CheckName("--agent", c.Agent); err != nil {
			return err
		}
	}
	if c.Stuck && (len(c.Status) > 0 || len(c.Completion) > 0 || c.After != "") {
		return failure.New(failure.Usage, "leave one of them out", "--stuck does not go with --status, --completion and --after")
	}
	if c.Parent != "" && (c.Since != "" || c.Until != "") {
		return failure.New(failure.Usage, "leave one of them out", "--parent does not go with --since and --until")
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
	defer cl.Close()
	request := schema.ListRequest{Status: c.asked(), Agent: c.Agent, ModelTier: c.Tier, Completion: c.Completion, Parent: c.Parent, Labels: c.Label, Since: since, Until: until, After: c.After}
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
		all.Parked = append(all.Parked, page.Parked...)
		if page.Next == "" || !c.All && len(all.Runs) >= c.Limit {
			break
		}
		request.After = page.Next
	}
	if all.Incomplete && !a.Quiet && !a.JSON {
		if _, err := fmt.Fprintln(a.Stderr, "the daemon is still indexing the runs of this fleet: some may be missing"); err != nil {
			return err
		}
	}
	if a.JSON {
		return output.Document(a.Stdout, all)
	}
	for _, p := range all.Parked {
		if _, err := fmt.Fprintf(a.Stderr, "run %s is parked since %s, the listed state may be outdated: %s\n", output.Printable(p.Run), output.Printable(p.Since), output.Printable(p.Why)); err != nil {
			return err
		}
	}
	if err := printRuns(a.Stdout, all.Runs, a.Now()); err != nil {
		return err
	}
	if all.Next != "" && !a.Quiet {
		_, err = fmt.Fprintf(a.Stderr, "there are more: list them with --all, or with a --limit above %d\n", c.Limit)
	} else if len(all.Runs) == 0 && !a.Quiet {
		_, err = fmt.Fprintln(a.Stderr, "no runs")
	}
	return err
}

// moment reads a time, or how long ago it was, as RFC 3339; "" is none.
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
		return "", failure.New(failure.Usage, "use an age such as 90m, 36h or 2d, or a time such as 2026-01-31T08:00:00Z", "%s %q is no time", flag, text)
	}
	return schema.FormatTime(now.Add(-ago)), nil
}

// asked are the statuses that the daemon is asked for: only what can be claimed can be quarantined, and a run of any status can have a
// held call.
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

// unwanted reports whether a run came only because it could have been quarantined, or could have a held call.
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

// contractText says by which call of the completion tool a run ended, and at which limit.
func contractText(r *schema.RunSummary) string {
	var by []string
	if r.CompletedBy != "" {
		by = append(by, "call "+r.CompletedBy)
	}
	if r.Limit != "" {
		by = append(by, "limit "+r.Limit)
	}
	return strings.Join(by, ", ")
}

type getCmd struct {
	Run_ string `arg:"" name:"run" help:"Run id."`
	View string `default:"head" enum:"head,state,events" help:"head: where the run stands; state: its messages and calls; events: all of its events."`
	At   string `placeholder:"POINT" help:"The run as it was at a point: seq:N, seq:EPOCH.N, turn:N, step:N, result:N, checkpoint:REVISION, mark:NAME, event:ID, record:N or end."`
	Full bool   `help:"Messages, arguments and results whole; it is --view state."`
}

// Help is the text below the flags.
func (getCmd) Help() string {
	return `With --at nothing is written, and the run goes on as it is: it is shown exactly as it was there. waymark runs history lists the points. ` +
		`What a run did, with how long it took, is waymark runs show.

Examples:
  waymark runs get fix-login
  waymark runs get fix-login --full | less
  waymark runs get fix-login --at turn:7 --view state --json`
}

// Run shows a run.
func (c getCmd) Run(ctx context.Context, a *base.App) error {
	if c.Full && c.View == schema.ViewEvents {
		return failure.New(failure.Usage, "see events whole with: waymark events RUN --all --no-follow --json", "--full is of --view state")
	}
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
	defer cl.Close()
	if c.At != "" {
		return showAt(ctx, a, cl, c.Run_, at, c.View, c.Full)
	}
	switch c.View {
	case schema.ViewState:
		return showState(ctx, a, cl, c.Run_, c.Full)
	case schema.ViewEvents:
		return showEvents(ctx, a, cl, c.Run_)
	}
	reply, err := cl.Get(ctx, c.Run_)
	if err != nil {
		return err
	}
	if a.JSON {
		return output.Document(a.Stdout, reply)
	}
	if err := printHead(a, &reply.Head, reply.Quarantined, "segments", segmentsText(reply.Segments), "shard", strconv.Itoa(reply.Shard)); err != nil {
		return err
	}
	if err := printOverdue(a, reply.Overdue); err != nil {
		return err
	}
	if err := printDamage(a, c.Run_, reply.Damage); err != nil {
		return err
	}
	if len(reply.Overdue) > 0 && !a.Quiet {
		if _, err := fmt.Fprintln(a.Stderr, output.Hanging(a.Stdout, "", "what is overdue does not heed the end of its context: look at the executor, "+
			"and stop its process if the work does not return; another one goes on with the run")); err != nil {
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

// withTenant are labels with that of a tenant; the same without one.
func withTenant(labels map[string]string, tenant string) (map[string]string, error) {
	if tenant == "" {
		return labels, nil
	}
	if other, ok := labels[schema.TenantLabel]; ok && other != tenant {
		return nil, failure.New(failure.Usage, "leave one of them out", "--tenant %s does not go with --label %s=%s", tenant, schema.TenantLabel, other)
	}
	all := map[string]string{schema.TenantLabel: tenant}
	maps.Copy(all, labels)
	return all, nil
}
