package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waymarkio/waymark/consumer/verify"
	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/internal/permissions"
	"github.com/waymarkio/waymark/internal/retention"
	"github.com/waymarkio/waymark/schema"
)

const (
	// cleanupPage is the number of runs that are asked for at once.
	cleanupPage = 100
	// cleanupLook is the pause between two looks at what is still being removed.
	cleanupLook = 100 * time.Millisecond
	// shownRuns bounds the runs that are listed for people; reports have all.
	shownRuns = 20
)

// endedStatuses are those that a cleanup may remove.
var endedStatuses = []schema.Status{schema.StatusCompleted, schema.StatusFailed, schema.StatusCancelled}

type cleanupCmd struct {
	MaxAge   *age            `placeholder:"TIME" help:"Remove runs that ended longer ago than this, such as 30d or 36h, instead of by the fleet's policy; 0d removes all ended runs but those that --grace keeps."`
	Grace    age             `default:"10m" placeholder:"TIME" help:"Keep what anything was added to within this time, whatever its age (default: 10m)."`
	Status   []schema.Status `placeholder:"STATUS,..." help:"Only runs that are completed, failed or cancelled; may be given several times."`
	DryRun   bool            `help:"Show the plan, and remove nothing."`
	Report   string          `placeholder:"FILE" help:"Write the report to a new file: Markdown when the name ends with .md, else JSON."`
	NoVerify bool            `help:"Do not verify the runs that are left."`
	By       string          `placeholder:"NAME" environ:"WAYMARK_OPERATOR" help:"Your name, recorded as a claim (WAYMARK_OPERATOR; default: waymark-cli)."`
}

// Help is the text below the flags.
func (cleanupCmd) Help() string {
	return `Without an age the fleet's own policy is gone by, which waymark fleet retention sets and the daemon applies by itself. Whatever the ` +
		`age, a run stays that has not ended, waits, has a call or hand-off pending, has a pinned point, or that a kept fork stands on. The plan of ` +
		`a dry run is the one that is carried out. Ctrl-C ends it between two pages: what was done is said, and the next cleanup goes on. Runs ` +
		`are removed for good, and their ids are never used again. With --quiet only their ids are printed, one a line.

Examples:
  waymark cleanup --max-age 30d --status completed --dry-run
  waymark cleanup --max-age 0d --dry-run                what has ended, whatever its age
  waymark cleanup --max-age 7d --status failed --report cleanup.md`
}

// Validate is called by kong.
func (c cleanupCmd) Validate() error {
	if grace := time.Duration(c.Grace); grace < time.Second {
		return fmt.Errorf("--grace %s: use 1s or more", grace)
	}
	return nil
}

// age is a time that may be given in days.
type age time.Duration

// UnmarshalText reads a time with days, of 0 or more.
func (t *age) UnmarshalText(text []byte) error {
	d, err := parseDays(string(text))
	if err != nil || d < 0 {
		return fmt.Errorf("%.40q is no such time: use one such as 30d, 36h or 0d", text)
	}
	*t = age(d)
	return nil
}

// parseDays reads a Go duration, or a whole number of days up to the longest retention.
func parseDays(s string) (time.Duration, error) {
	days, ok := strings.CutSuffix(s, "d")
	if !ok {
		return time.ParseDuration(s)
	}
	n, err := strconv.Atoi(days)
	if err != nil || n > schema.MaxRetentionSeconds/86400 {
		return 0, fmt.Errorf("%q is not a number of days", days)
	}
	return time.Duration(n) * 24 * time.Hour, nil
}

// policyText is the policy for people. The shortest age that the daemon takes, a second, is none.
func (c cleanupCmd) policyText(p *schema.RetentionPolicy) string {
	if c.MaxAge != nil && *c.MaxAge == 0 {
		return "ended runs of any age are removed"
	}
	return p.String()
}

// policy is the one that the flags ask for, nil for the fleet's own.
func (c cleanupCmd) policy() *schema.RetentionPolicy {
	if c.MaxAge == nil {
		return nil
	}
	seconds := max(int64(time.Duration(*c.MaxAge)/time.Second), 1) // 0 is for ever
	return &schema.RetentionPolicy{
		CompletedSeconds: seconds, FailedSeconds: seconds, CancelledSeconds: seconds, GraceSeconds: int64(time.Duration(c.Grace) / time.Second),
	}
}

// Run removes page by page, and reports.
func (c cleanupCmd) Run(ctx context.Context, a *app) error {
	for _, status := range c.Status {
		if !slices.Contains(endedStatuses, status) {
			return fail(exitUsage, "use completed, failed or cancelled, or several: --status completed,failed", "--status %q: only ended runs are removed", status)
		}
	}
	by, err := decider(c.By)
	if err != nil {
		return err
	}
	cl, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer cl.close()
	file, err := createFile("report", c.Report)
	if err != nil {
		return err
	}
	report := &retention.Report{Fleet: cl.fleet, DryRun: c.DryRun, Began: schema.FormatTime(a.now()), Runs: []schema.CleanupItem{}, ByWhy: map[schema.Why]int64{}}
	err = c.pages(ctx, cl, by, report)
	if err == nil && !c.DryRun {
		err = c.await(ctx, cl, report)
	}
	if err == nil && !c.DryRun {
		err = c.verify(ctx, a, cl, report)
	}
	stopped := ctx.Err() != nil
	if err != nil && !stopped && report.Scanned == 0 {
		file.discard()
		return err
	}
	report.Interrupted, report.Ended = err != nil, schema.FormatTime(a.now())
	if werr := c.write(a, file, report); werr != nil {
		if f, ok := errors.AsType[*failure](werr); ok && err != nil {
			f.what += "; the cleanup ended early: " + err.Error()
		}
		return werr
	}
	switch {
	case stopped:
		return fail(exitInterrupted, "the daemon finishes what was ordered; the next cleanup goes on with the rest", "interrupted: %s scanned, %d removed", plural(report.Scanned, "run"), report.Removed)
	case err != nil:
		return err
	case report.Verified != nil && report.Verified.Damaged > 0:
		return fail(exitDamaged, "see what is wrong with: waymark verify --all", "%d of %s that %s left %s damaged", report.Verified.Damaged,
			plural(report.Verified.Runs, "run"), inNumber(report.Verified.Runs, "is", "are"), inNumber(report.Verified.Damaged, "is", "are"))
	}
	return nil
}

// pages asks for one page after the other.
func (c cleanupCmd) pages(ctx context.Context, cl *client, by string, report *retention.Report) error {
	req := schema.CleanupRequest{Policy: c.policy(), Status: c.Status, DryRun: c.DryRun, By: by, Limit: cleanupPage}
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var reply schema.CleanupReply
		if err := cl.ask(ctx, schema.VerbCleanup, "", req, &reply); err != nil {
			return err
		}
		if !reply.Policy.Removes() {
			return fail(exitUsage, "name an age with --max-age, such as 30d, or give the fleet a policy: "+cl.prompt.command("fleet retention --completed 30d --failed 7d"),
				"the policy of fleet %s keeps all runs that are asked for", cl.fleet)
		}
		if reply.Incomplete {
			return fail(exitUnavailable, "ask again when waymark runs ls says no longer that runs may be missing", "the index of the fleet's runs is being built")
		}
		report.Policy = reply.Policy
		report.Pending = reply.Pending
		report.Add(reply.Items)
		if req.After = reply.Next; req.After == "" {
			return nil
		}
	}
}

// await waits until the daemon has removed what was ordered, as long as it gets on.
func (c cleanupCmd) await(ctx context.Context, cl *client, report *retention.Report) error {
	moved := time.Now()
	for report.Pending > 0 {
		var reply schema.CleanupReply
		if err := cl.ask(ctx, schema.VerbCleanup, "", schema.CleanupRequest{Pending: true}, &reply); err != nil {
			return err
		}
		if reply.Pending < report.Pending {
			moved = time.Now()
		}
		report.Pending = reply.Pending
		if time.Since(moved) > cl.wait {
			return nil // the report says how many are left; the daemon goes on
		}
		if err := pause.For(ctx, cleanupLook); err != nil {
			return err
		}
	}
	return nil
}

// verify verifies the runs that are left.
func (c cleanupCmd) verify(ctx context.Context, a *app, cl *client, report *retention.Report) error {
	if c.NoVerify || report.Removed == 0 {
		report.NotVerified = "nothing was removed"
		if c.NoVerify {
			report.NotVerified = "it was not asked for"
		}
		return nil
	}
	js, settings, err := cl.settings(ctx)
	total := verified{Verified: []*verify.Result{}}
	if err == nil {
		err = verifyCmd{All: true}.all(ctx, a, js, settings, &total)
	}
	if _, refused := errors.AsType[*permissions.Error](err); refused {
		report.NotVerified = "these credentials may not read the streams"
		return nil
	}
	if err != nil {
		report.NotVerified = err.Error()
		return err
	}
	report.Verified = &retention.Verified{Runs: total.Runs, Events: total.Events, Damaged: total.Damaged}
	for _, v := range total.Verified {
		if len(v.Findings) > 0 && len(report.Verified.DamagedRuns) < shownRuns {
			report.Verified.DamagedRuns = append(report.Verified.DamagedRuns, v.Run)
		}
	}
	return nil
}

// write writes the report where it was asked for.
func (c cleanupCmd) write(a *app, file *newFile, report *retention.Report) error {
	return errors.Join(c.writeReport(file, report), c.show(a, report))
}

// show prints the report.
func (c cleanupCmd) show(a *app, report *retention.Report) error {
	if a.cli.JSON {
		return document(a.stdout, report)
	}
	if !a.cli.Quiet {
		return c.print(a, report)
	}
	for i := range report.Runs {
		if item := &report.Runs[i]; item.Remove && item.Failed == "" {
			if _, err := fmt.Fprintln(a.stdout, item.Run); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeReport writes the report's file. A removal cannot be undone, so a failure says how many runs are removed.
func (c cleanupCmd) writeReport(file *newFile, report *retention.Report) error {
	err := file.write(func(w io.Writer) error {
		if strings.HasSuffix(c.Report, ".md") {
			return report.Markdown(w)
		}
		return document(w, report)
	})
	if err == nil {
		return nil
	}
	f := &failure{
		code: exitFailure, err: err,
		what: fmt.Sprintf("%s removed, and the report is not written: %s", removedRuns(report.Removed), err),
		hint: "standard output has what was done; it is not reported again",
	}
	if report.DryRun {
		f.what = fmt.Sprintf("nothing was removed, and the report is not written: %s", err)
		f.hint = "name a file that can be written"
	}
	return f
}

// keptText is how many runs are kept, and why: grace and age keep most of them, and no line names those.
func keptText(report *retention.Report) string {
	var whys []string
	for _, why := range report.Reasons() {
		if why != schema.WhyAge {
			whys = append(whys, fmt.Sprint(report.ByWhy[why], " ", why.Words()))
		}
	}
	kept := plural(report.Kept, "run")
	if len(whys) > 0 {
		kept += ": " + strings.Join(whys, ", ")
	}
	return kept
}

func removedRuns(n int64) string { return plural(n, "run") + " " + inNumber(n, "is", "are") }

func (c cleanupCmd) print(a *app, report *retention.Report) error {
	removed := "removed"
	if report.DryRun {
		removed = "to be removed"
	}
	var rows [][]string
	held := 0
	for i := range report.Runs {
		item := &report.Runs[i]
		unsettled := item.Why == schema.WhyInDoubt || item.Why == schema.WhyOpenCall
		if unsettled {
			held++
		}
		if !item.Remove && !report.DryRun && item.Failed == "" && !unsettled {
			continue
		}
		what := "kept"
		switch {
		case item.Failed != "":
			what = "not removed: " + item.Failed
		case item.Remove:
			what = removed
		}
		why := item.Why.Words()
		if item.Detail != "" {
			why += ", " + item.Detail
		}
		rows = append(rows, []string{item.Run, string(item.Status), ago(item.Last, a.now()), bytesText(item.Bytes), what, why})
	}
	left := len(rows) - shownRuns
	if left > 0 {
		rows = rows[:shownRuns]
	}
	if len(rows) > 0 {
		if err := printTable(a.stdout, []column{
			{title: "run"},
			{title: "status", drop: 3},
			{title: "last event", drop: 2},
			{title: "bytes", right: true, drop: 1},
			{title: "what"},
			{title: "why", shrinks: true, wraps: true},
		}, rows); err != nil {
			return err
		}
		if left > 0 {
			if err := a.say(a.stdout, "and %d more; --report FILE or --json has all", left); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintln(a.stdout); err != nil {
			return err
		}
	}
	verified := report.NotVerified
	if v := report.Verified; v != nil {
		verified = fmt.Sprintf("%s with %s, %d damaged", plural(v.Runs, "run"), plural(v.Events, "event"), v.Damaged)
	}
	failed, pending, unsettled := "", "", ""
	if held > 0 {
		// Only a person ends this: no age does.
		unsettled = fmt.Sprintf("%s with calls to settle: %s", plural(held, "run"), a.prompt.command("runs ls --status held"))
	}
	if report.Failed > 0 {
		failed = plural(report.Failed, "run") + ", see the report"
	}
	if report.Pending > 0 {
		pending = plural(report.Pending, "run") + "; the daemon goes on"
	}
	grace := ""
	if s := report.Policy.GraceSeconds; s > 0 {
		grace = fmt.Sprintf("%s: runs with newer events are kept", time.Duration(s)*time.Second)
	}
	return printFields(a.stdout, "policy", c.policyText(&report.Policy), "grace", grace, "scanned", inNumber(report.Scanned, "1 run that is", fmt.Sprint(report.Scanned, " runs that are"))+" old enough",
		removed, plural(report.Removed, "run")+", "+bytesText(report.Bytes), "kept", keptText(report),
		"waiting for a person", unsettled,
		"not removed", failed, "still going", pending, "verified", verified)
}
