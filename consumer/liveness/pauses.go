package liveness

import "github.com/waymarkio/waymark/schema"

// SetPauses sets the fleet's pauses. They hold from the return of the call on.
func (r *LiveRuns) SetPauses(pauses []schema.Pause) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pauses = pauses
	select {
	case r.repaused <- struct{}{}:
	default:
	}
}

// Repaused delivers a value after the pauses were set.
func (r *LiveRuns) Repaused() <-chan struct{} { return r.repaused }

// Pauses are the fleet's.
func (r *LiveRuns) Pauses() []schema.Pause {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.pauses
}

// paused reports whether a pause selects a run. Under r.mu.
func (r *LiveRuns) paused(l *schema.Live) bool {
	for i := range r.pauses {
		if r.pauses[i].Has(l.Run, l.Agent, l.ModelTier, l.Labels) {
			return true
		}
	}
	return false
}

// Unstopped are the runs of some shards that a pause selects and that an executor may go on with all the same: the pause
// is not in their log yet.
func (r *LiveRuns) Unstopped(of func(shard int) bool) (runs []string) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if len(r.pauses) == 0 {
		return nil
	}
	for i := range r.shards {
		if !of(i) {
			continue
		}
		for run, e := range r.shards[i].runs {
			if e.live.Driven && r.paused(&e.live) {
				runs = append(runs, run)
			}
		}
	}
	return runs
}

// Selected counts the runs of a scope that have not ended, and those of them that an executor may go on with.
func (r *LiveRuns) Selected(scope *schema.Scope) (runs, driven int) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for i := range r.shards {
		for _, e := range r.shards[i].runs {
			if l := &e.live; !l.Status.Terminal() && scope.Has(l.Run, l.Agent, l.ModelTier, l.Labels) {
				runs++
				if l.Driven {
					driven++
				}
			}
		}
	}
	return runs, driven
}
