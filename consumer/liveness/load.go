package liveness

import (
	"time"

	"github.com/waymarkio/waymark/schema"
)

// Holder is one start of an executor.
type Holder struct{ Executor, Instance string }

// InHand counts the runs that an executor works on: running ones, and those that it has just got by [LiveRuns.Take].
func (r *LiveRuns) InHand(h Holder) int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.inHand[h]
}

// Take notes that an executor's request took a run over, and hides the run until the given time, or until its entry
// changes: the index follows a moment later.
func (r *LiveRuns) Take(run string, epoch schema.Epoch, by Holder, request string, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.find(run); e != nil {
		r.forget(e)
		e.hidden, e.holder, e.epoch, e.key = until, by, epoch, takeoverKey{by.Executor, request}
		r.remember(e)
	}
}

// Since is when a run's entry last changed, by the daemon's clock; zero if there is none.
func (r *LiveRuns) Since(run string) time.Time {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if e := r.find(run); e != nil {
		return e.changed
	}
	return time.Time{}
}

// maxBecame bounds the runs waiting in Became. Executors find dropped ones by their own claims.
const maxBecame = 1 << 8

// Became delivers each run that became claimable since the live index of its shard is here, if it is read fast
// enough.
func (r *LiveRuns) Became() <-chan schema.Live { return r.became }

// tell is called under r.mu.
func (r *LiveRuns) tell(e *entry) {
	if !r.shards[e.shard].synced || r.paused(&e.live) {
		return
	}
	select {
	case r.became <- e.live:
	default:
	}
}

// holderOf is the executor that works on the run of an entry; zero for none.
func holderOf(l *schema.Live) Holder {
	if l.Status != schema.StatusRunning {
		return Holder{}
	}
	return Holder{l.Executor, l.Instance}
}

// remember counts an entry for its executor, and under its takeover; forget undoes that, unless another run's entry
// replaced the takeover. Under r.mu.
func (r *LiveRuns) remember(e *entry) {
	if e.holder != (Holder{}) {
		r.inHand[e.holder]++
	}
	if e.key.request != "" {
		r.taken[e.key] = e
	}
}

func (r *LiveRuns) forget(e *entry) {
	if r.taken[e.key] == e {
		delete(r.taken, e.key)
	}
	if e.holder == (Holder{}) {
		return
	}
	if r.inHand[e.holder]--; r.inHand[e.holder] == 0 {
		delete(r.inHand, e.holder)
	}
}
