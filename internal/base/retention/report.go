package retention

import (
	"maps"
	"slices"

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
	return slices.Sorted(maps.Keys(r.ByWhy))
}
