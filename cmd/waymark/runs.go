package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/waymarkio/waymark/schema"
)

type runsCmd struct {
	Ls      runsLsCmd      `cmd:"" aliases:"list" help:"List runs."`
	Get     runsGetCmd     `cmd:"" help:"Show a run, with every event acknowledged so far."`
	Watch   runsWatchCmd   `cmd:"" help:"Show each checkpoint of a run or of all runs as it is made."`
	History runsHistoryCmd `cmd:"" help:"List the checkpoints kept of a run."`
}

// statuses are all that a run can have.
var statuses = []schema.Status{
	schema.StatusRunning, schema.StatusWaiting, schema.StatusInterrupted, schema.StatusOrphaned,
	schema.StatusCompleted, schema.StatusFailed, schema.StatusCancelled,
}

type runsLsCmd struct {
	Status []schema.Status   `sep:"," placeholder:"STATUS" help:"Only runs of these: running, waiting, interrupted, orphaned, completed, failed, cancelled."`
	Agent  string            `placeholder:"NAME" help:"Only runs of this agent."`
	Parent string            `placeholder:"RUN" help:"Only children of this run."`
	Label  map[string]string `placeholder:"KEY=VALUE" help:"Only runs with this label; may be repeated."`
	Limit  int               `default:"100" placeholder:"N" help:"At most so many (default: 100); 0 lists all."`
	After  string            `placeholder:"RUN" help:"Begin behind this run id."`
}

// Run lists runs in the order of their ids. A list is of checkpoints: it may be a moment old.
func (c runsLsCmd) Run(ctx context.Context, a *app) error {
	for _, s := range c.Status {
		if !slices.Contains(statuses, s) {
			return fail(exitUsage, fmt.Sprintf("use one of %v", statuses), "status %q is not known", s)
		}
	}
	if c.Limit < 0 {
		return fail(exitUsage, "use 0 for all", "--limit %d is below 0", c.Limit)
	}
	cl, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer cl.close()
	var all schema.ListReply
	all.Runs = []schema.RunSummary{}
	request := schema.ListRequest{Status: c.Status, Agent: c.Agent, Parent: c.Parent, Labels: c.Label, After: c.After}
	for {
		request.Limit = schema.MaxList
		if c.Limit > 0 {
			request.Limit = min(schema.MaxList, c.Limit-len(all.Runs))
		}
		var page schema.ListReply
		if err := cl.ask(ctx, schema.VerbList, "", request, &page); err != nil {
			return err
		}
		all.Runs, all.Next = append(all.Runs, page.Runs...), page.Next
		if page.Next == "" || c.Limit > 0 && len(all.Runs) >= c.Limit {
			break
		}
		request.After = page.Next
	}
	if a.cli.JSON {
		return document(a.stdout, all)
	}
	if err := printRuns(a.stdout, all.Runs, a.now()); err != nil {
		return err
	}
	if all.Next != "" && !a.cli.Quiet {
		_, err = fmt.Fprintf(a.stderr, "there are more: --after %s, or --limit 0 for all\n", all.Next)
	} else if len(all.Runs) == 0 && !a.cli.Quiet {
		_, err = fmt.Fprintln(a.stderr, "no runs")
	}
	return err
}

func printRuns(w io.Writer, runs []schema.RunSummary, now time.Time) error {
	columns := []column{
		{title: "run", shrinks: true},
		{title: "agent", drop: 1},
		{title: "status"},
		{title: "epoch", right: true, drop: 3},
		{title: "turn", right: true},
		{title: "calls", right: true, drop: 2},
		{title: "open", right: true},
		{title: "events", right: true, drop: 4},
		{title: "updated"},
	}
	rows := make([][]string, len(runs))
	for i, r := range runs {
		rows[i] = []string{
			r.Run, r.Agent, statusText(r.Status, r.Gapped, r.InDoubt), count(r.Epoch), count(r.Turn), count(r.ToolCalls),
			count(r.OpenCalls), count(r.Events), ago(r.UpdatedAt, now),
		}
	}
	return printTable(w, columns, rows)
}

// statusText is the status with what must not be overlooked.
func statusText(s schema.Status, gapped bool, inDoubt int) string {
	t := string(s)
	if gapped {
		t += ", gapped"
	}
	if inDoubt > 0 {
		t += fmt.Sprintf(", %d in doubt", inDoubt)
	}
	return t
}

type runsGetCmd struct {
	Run_ string `arg:"" name:"run" help:"Run id."`
	View string `default:"head" enum:"head,state,events" help:"head: where the run stands; state: its messages and calls; events: all of its events."`
}

// Run shows a run.
func (c runsGetCmd) Run(ctx context.Context, a *app) error {
	cl, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer cl.close()
	switch c.View {
	case schema.ViewState:
		return showState(ctx, a, cl, c.Run_)
	case schema.ViewEvents:
		return showEvents(ctx, a, cl, c.Run_)
	}
	var reply schema.GetReply
	if err := cl.ask(ctx, schema.VerbGet, c.Run_, schema.GetRequest{View: schema.ViewHead}, &reply); err != nil {
		return err
	}
	if a.cli.JSON {
		return document(a.stdout, reply)
	}
	if err := printHead(a, &reply.Head); err != nil {
		return err
	}
	return printFields(a.stdout, "segments", segmentsText(reply.Segments))
}

func segmentsText(s schema.SegmentIndex) string {
	if s.Count == 0 {
		return ""
	}
	return fmt.Sprintf("%d, %d events in %s", s.Count, s.Events, bytesText(s.Bytes))
}

// printHead shows where a run stands, and the calls that are open.
func printHead(a *app, h *schema.Head) error {
	now := a.now()
	turn := count(h.Turn)
	if h.TurnOpen {
		turn += " (open)"
	}
	parent := ""
	if h.Parent != nil {
		parent = fmt.Sprintf("%s, turn %d, call %s", h.Parent.Run, h.Parent.Turn, h.Parent.ToolCallID)
	}
	lastError := ""
	if h.LastError != nil {
		lastError = h.LastError.Type + ": " + h.LastError.Message
	}
	started := ago(h.StartedAt, now)
	if h.EndedAt != "" {
		started += ", ended " + ago(h.EndedAt, now)
	}
	counts := fmt.Sprintf("%d events, %d turns, %d messages, %d calls, %d results",
		h.Counts.Events, h.Counts.Turns, h.Counts.Messages, h.Counts.ToolCalls, h.Counts.ToolResults)
	if err := printFields(a.stdout,
		"run", h.Run, "agent", h.Agent, "executor", h.Executor, "task", h.Task, "thread", h.ThreadID, "parent", parent,
		"status", statusText(h.Status, !h.Complete(), len(h.InDoubt())), "epoch", count(h.Epoch), "sequence", count(h.Sequence),
		"turn", turn, "phase", h.Phase, "phases done", strings.Join(h.CompletedPhases, ", "), "labels", labelsText(h.Labels),
		"counts", counts, "rejected", rejectedText(h.Counts), "tokens", tokensText(h.Usage), "last error", lastError,
		"summary", h.Summary, "started", started, "updated", ago(h.UpdatedAt, now), "position", positionText(h.Position),
		"digest", h.Digest,
	); err != nil {
		return err
	}
	for _, g := range h.Gaps {
		if _, err := fmt.Fprintf(a.stdout, "gap: epoch %d misses %d to %d (%s), seen at %d\n", g.Epoch, g.From, g.To, g.Reason, g.At.Stream); err != nil {
			return err
		}
	}
	return printCalls(a, h.OpenCalls)
}

// printCalls lists open calls; none is no table.
func printCalls(a *app, calls []schema.OpenCall) error {
	if len(calls) == 0 {
		return nil
	}
	rows := make([][]string, len(calls))
	for i, c := range calls {
		fate := "running"
		switch {
		case c.Late:
			fate = "in doubt, late result"
		case c.Held:
			fate = "in doubt, held"
		case c.InDoubt:
			fate = "in doubt"
		}
		rows[i] = []string{count(c.Turn), c.ToolCallID, count(c.Occurrence), c.Name, string(c.Replay), fate, ago(c.Since, a.now())}
	}
	if _, err := fmt.Fprintln(a.stdout); err != nil {
		return err
	}
	return printTable(a.stdout, []column{
		{title: "turn", right: true},
		{title: "call", shrinks: true},
		{title: "occ.", right: true},
		{title: "tool", shrinks: true},
		{title: "replay"},
		{title: "fate"},
		{title: "since"},
	}, rows)
}

func labelsText(labels map[string]string) string {
	list := make([]string, 0, len(labels))
	for k, v := range labels {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// rejectedText names what was not accepted; empty when all was.
func rejectedText(c schema.Counts) string {
	var list []string
	for _, n := range []struct {
		count int64
		what  string
	}{
		{c.DeadLetters, "dead letters"}, {c.Fenced, "fenced"}, {c.Forked, "forked"}, {c.Duplicates, "duplicates"}, {c.Gaps, "gaps"},
	} {
		if n.count > 0 {
			list = append(list, fmt.Sprintf("%d %s", n.count, n.what))
		}
	}
	return strings.Join(list, ", ")
}

func positionText(p schema.Position) string { return fmt.Sprintf("%d (%s)", p.Stream, p.ID) }

type runsHistoryCmd struct {
	Run_ string `arg:"" name:"run" help:"Run id."`
}

// Run lists the checkpoints kept of a run, newest first.
func (c runsHistoryCmd) Run(ctx context.Context, a *app) error {
	cl, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer cl.close()
	var reply schema.HistoryReply
	if err := cl.ask(ctx, schema.VerbHistory, c.Run_, struct{}{}, &reply); err != nil {
		return err
	}
	if a.cli.JSON {
		return document(a.stdout, reply)
	}
	rows := make([][]string, len(reply.Checkpoints))
	for i, e := range reply.Checkpoints {
		rows[i] = []string{
			count(e.Revision), count(e.Epoch), count(e.Sequence), count(e.Turn), string(e.Status), count(e.Events),
			count(e.Position.Stream), fmt.Sprintf("%.16s", e.Digest), ago(e.Stored, a.now()),
		}
	}
	return printTable(a.stdout, []column{
		{title: "revision", right: true},
		{title: "epoch", right: true},
		{title: "sequence", right: true},
		{title: "turn", right: true},
		{title: "status"},
		{title: "events", right: true},
		{title: "position", right: true},
		{title: "digest"},
		{title: "stored"},
	}, rows)
}
