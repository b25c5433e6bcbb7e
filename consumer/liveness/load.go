package liveness

import (
	"cmp"
	"slices"
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
	if !r.shards[e.shard].synced || r.paused(&e.live) || r.waits(e, r.now()) {
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
		r.atWork[tenantOf(&e.live)]++
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
	tenant := tenantOf(&e.live)
	if r.atWork[tenant]--; r.atWork[tenant] == 0 {
		delete(r.atWork, tenant)
	}
}

// tenantOf is the tenant of a run; those without one, or with an encrypted one, share a turn.
func tenantOf(l *schema.Live) string { return l.Labels[schema.TenantLabel] }

// tenantRuns are runs of a tenant: the number of those that executors work on, and those that wait, the oldest first.
type tenantRuns struct {
	atWork  int
	waiting []*entry
}

// inTurns picks runs, each time the oldest one of the tenant with the fewest runs at work, picked ones included: a
// tenant that submits thousands does not keep the others waiting.
func inTurns(tenants []*tenantRuns, most int) (picked []schema.Live) {
	for len(picked) < most && len(tenants) > 0 {
		next := slices.MinFunc(tenants, func(a, b *tenantRuns) int {
			return cmp.Or(cmp.Compare(a.atWork, b.atWork), byAge(a.waiting[0], b.waiting[0]))
		})
		picked = append(picked, next.waiting[0].live)
		next.atWork++
		if next.waiting = next.waiting[1:]; len(next.waiting) == 0 {
			tenants = slices.DeleteFunc(tenants, func(t *tenantRuns) bool { return t == next })
		}
	}
	return picked
}
