package liveness

import "github.com/waymarkio/waymark/schema"

// SetPauses sets the fleet's pauses. They hold from the return of the call on.
func (r *LiveRuns) SetPauses(pauses []schema.Pause) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pauses = pauses
}

// Pauses are the fleet's.
func (r *LiveRuns) Pauses() []schema.Pause {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.pauses
}

// paused reports whether a pause selects a run. Under r.mu.
func (r *LiveRuns) paused(l *schema.Live) bool { return len(schema.PausesOf(r.pauses, l)) > 0 }

// Unstopped are the runs of a shard that a pause selects and that an executor may still go on with: the pause is not in
// their log yet.
func (r *LiveRuns) Unstopped(shard int) (runs []string) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if len(r.pauses) == 0 {
		return nil
	}
	for run, e := range r.shards[shard].runs {
		if e.live.Driven && r.paused(&e.live) {
			runs = append(runs, run)
		}
	}
	return runs
}
