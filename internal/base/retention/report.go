package retention

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// Report is what a cleanup did, or would do: the plan's items and their totals.
type Report struct {
	Fleet  string                 `json:"fleet"`
	Policy schema.RetentionPolicy `json:"policy"`
	// DryRun: nothing was removed.
	DryRun bool `json:"dry_run,omitzero"`
	// Proposed: the fleet has no policy, and the command named none. Policy is the proposed one; DryRun is set.
	Proposed bool `json:"proposed,omitzero"`
	// Began and Ended are times, RFC 3339. Interrupted: not all runs were checked; the next cleanup continues.
	Began       string `json:"began"`
	Ended       string `json:"ended"`
	Interrupted bool   `json:"interrupted,omitzero"`
	// Scanned runs, and the decisions about them. Bytes are those known to be stored for the removed runs: segments,
	// tails, checkpoints.
	Scanned int64 `json:"scanned"`
	Removed int64 `json:"removed"`
	Kept    int64 `json:"kept"`
	Failed  int64 `json:"failed"`
	Bytes   int64 `json:"bytes"`
	// ByWhy counts the runs by the reason to keep or remove them.
	ByWhy map[schema.Why]int64 `json:"by_why"`
	// Runs are the items of the plan.
	Runs []schema.CleanupItem `json:"runs"`
}

// Add adds a page of items.
func (r *Report) Add(items []schema.CleanupItem) {
	if r.ByWhy == nil {
		r.ByWhy = make(map[schema.Why]int64)
	}
	for i := range items {
		item := &items[i]
		r.Scanned++
		switch {
		case !item.Remove:
			r.Kept++
		case item.Failed != "":
			r.Failed++
		default:
			r.Removed++
			r.Bytes += item.Bytes
		}
		r.ByWhy[item.Why]++
	}
	r.Runs = append(r.Runs, items...)
}

// Reasons are the occurring reasons, sorted.
func (r *Report) Reasons() []schema.Why {
	reasons := make([]schema.Why, 0, len(r.ByWhy))
	for why := range r.ByWhy {
		reasons = append(reasons, why)
	}
	slices.Sort(reasons)
	return reasons
}

// Markdown writes the report as a page.
func (r *Report) Markdown(w io.Writer) error {
	var b strings.Builder
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(&b, format+"\n", args...) } // a strings.Builder takes everything
	removed := "removed"
	if r.DryRun {
		removed = "would be removed"
	}
	line("# Cleanup of fleet %s", r.Fleet)
	line("")
	line("From %s to %s. Kept are: %s.", r.Began, r.Ended, r.Policy.String())
	line("")
	if r.Proposed {
		line("Nothing was removed: the fleet has no policy, and this is a proposal.")
		line("")
	}
	if r.Interrupted {
		line("It was interrupted: the next cleanup goes on.")
		line("")
	}
	line("| what | runs |")
	line("|---|---|")
	line("| scanned | %d |", r.Scanned)
	line("| %s | %d (%d bytes) |", removed, r.Removed, r.Bytes)
	line("| kept | %d |", r.Kept)
	line("| not removed after all | %d |", r.Failed)
	line("")
	line("| why | runs |")
	line("|---|---|")
	for _, why := range r.Reasons() {
		line("| %s | %d |", why.Words(), r.ByWhy[why])
	}
	line("")
	line("| run | status | last event | bytes | what | why |")
	line("|---|---|---|---|---|---|")
	for i := range r.Runs {
		item := &r.Runs[i]
		what := "kept"
		switch {
		case item.Remove && item.Failed != "":
			what = "not removed: " + cell(item.Failed)
		case item.Remove:
			what = removed
		}
		why := item.Why.Words()
		if item.Detail != "" {
			why += ": " + cell(item.Detail)
		}
		line("| %s | %s | %s | %d | %s | %s |", item.Run, item.Status, item.Last, item.Bytes, what, why)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// cell escapes text for a table's cell.
func cell(s string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c == '|':
			return '/'
		case c < ' ' || c == 0x7f:
			return ' '
		}
		return c
	}, s)
}
