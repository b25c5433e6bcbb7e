package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/base/retention"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/schema"
)

const (
	// cleanupPage is the number of runs in one request.
	cleanupPage = 100
	// cleanupLook is the interval of polls for pending removals.
	cleanupLook = 100 * time.Millisecond
	// shownRuns bounds the runs that are listed for people; --json has all.
	shownRuns = 20
	// proposedDays is the age, in days, of failed runs that a cleanup without flags proposes to remove in a fleet
	// without a policy.
	proposedDays = 7
)

// endedStatuses are the statuses of runs that a cleanup may remove.
var endedStatuses = []schema.Status{schema.StatusCompleted, schema.StatusFailed, schema.StatusCancelled}

// CleanupCmd is waymark cleanup.
type CleanupCmd struct {
	MaxAge *age            `placeholder:"TIME" help:"Remove runs that ended longer ago, such as 30d or 36h (default: the fleet's policy); 0d: all ended runs."`
	Grace  age             `default:"10m" placeholder:"TIME" help:"Keep runs with events newer than this (default: 10m)."`
	Status []schema.Status `placeholder:"STATUS,..." help:"completed, failed or cancelled; may be repeated."`
	DryRun bool            `help:"Show the plan; remove nothing."`
	By     string          `placeholder:"NAME" environ:"WAYMARK_OPERATOR" help:"Your name, recorded as a claim (WAYMARK_OPERATOR; default: waymark-cli)."`
}

// Help is the text below the flags.
func (CleanupCmd) Help() string {
	return `Uses the fleet's policy (waymark fleet retention), which the daemon applies by itself. Without a policy and flags it only lists ` +
		`the failed runs older than seven days.

A run is kept at any age if it has not ended, waits, has a pending call or hand-off, has a named point, or is the base of a kept ` +
		`fork. Removed ids are never used again. With --quiet only ids are printed.

Examples:
  waymark cleanup --max-age 30d --status completed --dry-run
  waymark cleanup --max-age 7d --status failed --json > cleanup.json`
}

// Validate is called by kong.
func (c CleanupCmd) Validate() error {
	if grace := time.Duration(c.Grace); grace < time.Second {
		return fmt.Errorf("--grace %s: use 1s or more", grace)
	}
	return nil
}

// age is a time that may be given in days.
type age time.Duration

// UnmarshalText reads a time with days, of 0 or more.
func (t *age) UnmarshalText(text []byte) error {
	d, err := base.ParseDays(string(text))
	if err != nil || d < 0 {
		return fmt.Errorf("%.40q is not a valid age: use one such as 30d, 36h or 0d", text)
	}
	*t = age(d)
	return nil
}

// policyText is the policy for people. The daemon's minimum age, one second, means any age.
func (c CleanupCmd) policyText(p *schema.RetentionPolicy) string {
	if c.MaxAge != nil && *c.MaxAge == 0 {
		return "ended runs of any age are removed"
	}
	return p.String()
}

// policy is the policy from the flags; nil for the fleet's own.
func (c CleanupCmd) policy() *schema.RetentionPolicy {
	if c.MaxAge == nil {
		return nil
	}
	seconds := max(int64(time.Duration(*c.MaxAge)/time.Second), 1) // 0 means for ever
	return &schema.RetentionPolicy{
		CompletedSeconds: seconds, FailedSeconds: seconds, CancelledSeconds: seconds, GraceSeconds: int64(time.Duration(c.Grace) / time.Second),
	}
}

// Run removes runs page by page, and prints a report.
func (c CleanupCmd) Run(ctx context.Context, a *base.App) error {
	for _, status := range c.Status {
		if !slices.Contains(endedStatuses, status) {
			return failure.New(failure.Usage, "use completed, failed or cancelled, or several: --status completed,failed", "--status %q: only ended runs are removed", status)
		}
	}
	cl, by, err := a.ConnectAs(ctx, c.By)
	if err != nil {
		return err
	}
	report := &retention.Report{Fleet: cl.Fleet, DryRun: c.DryRun, Began: schema.FormatTime(a.Now()), Runs: []schema.CleanupItem{}, ByWhy: map[schema.Why]int64{}}
	err = c.pages(ctx, cl, by, report)
	stopped := ctx.Err() != nil
	if err != nil && !stopped && report.Scanned == 0 {
		return err
	}
	report.Interrupted, report.Ended = err != nil, schema.FormatTime(a.Now())
	if werr := c.show(a, report); werr != nil { // a removal cannot be undone
		return errors.Join(fmt.Errorf("runs removed: %d, but the report was not written: %w", report.Removed, werr), err)
	}
	switch {
	case stopped:
		return failure.New(failure.Interrupted, "the daemon finishes the ordered removals; the next cleanup continues with the rest", "interrupted: %s scanned, %d removed", output.Plural(report.Scanned, "run"), report.Removed)
	case err != nil:
		return err
	}
	return nil
}

// proposed is the policy of a cleanup without flags, in a fleet without a policy.
func (c CleanupCmd) proposed() *schema.RetentionPolicy {
	day := int64(24 * time.Hour / time.Second)
	return &schema.RetentionPolicy{FailedSeconds: proposedDays * day, GraceSeconds: int64(time.Duration(c.Grace) / time.Second)}
}

// pages requests one page after the other.
func (c CleanupCmd) pages(ctx context.Context, cl *base.Client, by string, report *retention.Report) error {
	req := schema.CleanupRequest{Policy: c.policy(), Status: c.Status, DryRun: c.DryRun, By: by, Limit: cleanupPage}
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var reply schema.CleanupReply
		if err := cl.Ask(ctx, schema.VerbCleanup, "", req, &reply); err != nil {
			return err
		}
		if !reply.Policy.Removes() && c.MaxAge == nil && len(c.Status) == 0 && !report.Proposed {
			// Without a policy no run is removed: the report is a proposal.
			report.Proposed, report.DryRun = true, true
			req.Policy, req.DryRun = c.proposed(), true
			continue
		}
		if !reply.Policy.Removes() {
			return failure.New(failure.Usage, "set an age with --max-age, such as 30d, or set a policy for the fleet: "+cl.Prompt.Command("fleet retention --completed 30d --failed 7d"),
				"the policy of fleet %s keeps all of the selected runs", cl.Fleet)
		}
		report.Policy = reply.Policy
		report.Add(reply.Items)
		if req.After = reply.Next; req.After == "" {
			return nil
		}
	}
}

// show prints the report.
func (c CleanupCmd) show(a *base.App, report *retention.Report) error {
	if a.JSON {
		return output.Document(a.Stdout, report)
	}
	if !a.Quiet {
		return c.print(a, report)
	}
	for i := range report.Runs {
		if item := &report.Runs[i]; item.Remove && item.Failed == "" {
			if _, err := fmt.Fprintln(a.Stdout, item.Run); err != nil {
				return err
			}
		}
	}
	return nil
}

// keptText is the number of kept runs with reasons: grace and age keep most of them, and those are not listed.
func keptText(report *retention.Report) string {
	var whys []string
	for _, why := range report.Reasons() {
		if why != schema.WhyAge {
			whys = append(whys, fmt.Sprint(report.ByWhy[why], " ", why.Words()))
		}
	}
	kept := output.Plural(report.Kept, "run")
	if len(whys) > 0 {
		kept += ": " + strings.Join(whys, ", ")
	}
	return kept
}

func (c CleanupCmd) print(a *base.App, report *retention.Report) error {
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
		rows = append(rows, []string{item.Run, string(item.Status), output.Ago(item.Last, a.Now()), output.Bytes(item.Bytes), what, why})
	}
	left := len(rows) - shownRuns
	if left > 0 {
		rows = rows[:shownRuns]
	}
	if len(rows) > 0 {
		if err := output.Table(a.Stdout, []output.Column{
			{Title: "run"},
			{Title: "status", Drop: 3},
			{Title: "last event", Drop: 2},
			{Title: "bytes", Right: true, Drop: 1},
			{Title: "what"},
			{Title: "why", Shrinks: true, Wraps: true},
		}, rows); err != nil {
			return err
		}
		if left > 0 {
			if err := a.Say(a.Stdout, "and %d more; --json has all", left); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintln(a.Stdout); err != nil {
			return err
		}
	}
	failed, unsettled := "", ""
	if held > 0 {
		// Only a person can settle these calls: age does not.
		unsettled = fmt.Sprintf("%s with calls to settle: %s", output.Plural(held, "run"), a.Prompt.Command("runs ls --status held"))
	}
	if report.Failed > 0 {
		failed = output.Plural(report.Failed, "run") + ", see the report"
	}
	proposal, do := "", ""
	if report.Proposed {
		proposal = fmt.Sprintf("no run was removed; fleet %s has no policy, so these are the failed runs older than %d days", report.Fleet, proposedDays)
		do = a.Prompt.Command(fmt.Sprintf("cleanup --max-age %dd --status failed", proposedDays))
	}
	grace, enough := "", " old enough"
	if s := report.Policy.GraceSeconds; s > 0 {
		enough += fmt.Sprintf(" and without an event for %s", time.Duration(s)*time.Second)
		grace = fmt.Sprintf("%s: runs with newer events are kept", time.Duration(s)*time.Second)
	}
	return output.Fields(a.Stdout, "dry run", proposal, "to remove them", do, "policy", c.policyText(&report.Policy), "grace", grace, "scanned", output.InNumber(report.Scanned, "1 run that is", fmt.Sprint(report.Scanned, " runs that are"))+enough,
		removed, output.Plural(report.Removed, "run")+", "+output.Bytes(report.Bytes), "kept", keptText(report),
		"waiting for a person", unsettled,
		"not removed", failed)
}
