package liveness

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// fullFor is how long a share counts as full after a claim found it full, unless one of its runs leaves before.
const fullFor = time.Second

// Share is what a limit gives to the runs that it selects, or to those with one value of its label.
type Share struct {
	schema.Limit
	// Key identifies the share: a hash, for names of stored tables.
	Key string
	// Value of the limit's label.
	Value string
}

// share is a share with its live runs.
type share struct {
	Share
	// atWork are its runs at work, and entries all of its live runs.
	atWork  map[string]*entry
	entries int
	// full: a claim found no place in it, until then. placed are the runs that had one.
	full   time.Time
	placed map[string]bool
	// left counts its runs that stopped being at work.
	left uint64
}

// shareOf is the share of a limit that a run belongs to.
func shareOf(limit *schema.Limit, l *schema.Live) (Share, bool) {
	scope, ok := limit.Of(l)
	if !ok {
		return Share{}, false
	}
	key := sha256.Sum256([]byte(limit.Flags() + "\x00" + scope.Flags()))
	return Share{Limit: *limit, Key: hex.EncodeToString(key[:16]), Value: l.Labels[limit.Each]}, true
}

// SetLimits sets the fleet's limits. They hold from the return of the call on.
func (r *LiveRuns) SetLimits(limits []schema.Limit) {
	limits = slices.DeleteFunc(slices.Clone(limits), func(l schema.Limit) bool { return l.AtWork == 0 })
	r.mu.Lock()
	defer r.mu.Unlock()
	if reflect.DeepEqual(limits, r.limits) {
		return
	}
	r.limits, r.shares = limits, make(map[string]*share)
	for i := range r.shards {
		for _, e := range r.shards[i].runs {
			r.join(e)
		}
	}
}

// join adds an entry to its shares. Under r.mu.
func (r *LiveRuns) join(e *entry) {
	e.shares = nil
	for i := range r.limits {
		of, ok := shareOf(&r.limits[i], &e.live)
		if !ok {
			continue
		}
		s := r.shares[of.Key]
		if s == nil {
			s = &share{Share: of, atWork: make(map[string]*entry)}
			r.shares[of.Key] = s
		}
		s.entries++
		if e.atWork {
			s.atWork[e.live.Run] = e
		}
		e.shares = append(e.shares, s)
	}
}

// leave removes an entry from its shares. If its run is not at work any more, the oldest waiting run of each can begin.
// Under r.mu.
func (r *LiveRuns) leave(e *entry) {
	for _, s := range e.shares {
		if s.entries--; s.entries == 0 {
			delete(r.shares, s.Key)
		}
		if s.atWork[e.live.Run] != e {
			continue
		}
		delete(s.atWork, e.live.Run)
		s.full = time.Time{}
		s.left++
		if at := slices.IndexFunc(r.claimable, func(next *entry) bool {
			return slices.Contains(next.shares, s) && !next.live.Quarantined(r.maxClaims) && !r.paused(&next.live) && !r.waits(next, r.now())
		}); at >= 0 {
			r.tell(r.claimable[at])
		}
	}
}

// waits reports whether a run waits for a place: a share of it is full, and the run has no place there. A run that is at
// work, because its executor may come back, takes no further place. Under r.mu.
func (r *LiveRuns) waits(e *entry, now time.Time) bool {
	return !e.atWork && slices.ContainsFunc(e.shares, func(s *share) bool { return s.isFull(e, now) })
}

// isFull reports whether a share has no place for a run.
func (s *share) isFull(e *entry, now time.Time) bool {
	return len(s.atWork) >= s.AtWork || s.full.After(now) && !s.placed[e.live.Run]
}

// SharesOf are the shares of a run, in the order of their keys.
func (r *LiveRuns) SharesOf(l *schema.Live) (list []Share) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for i := range r.limits {
		if s, ok := shareOf(&r.limits[i], l); ok {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b Share) int { return cmp.Compare(a.Key, b.Key) })
	return list
}

// AtWork are the runs of a share that are at work, and how many have left it so far, for [LiveRuns.Full].
func (r *LiveRuns) AtWork(key string) (runs []string, left uint64) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if s := r.shares[key]; s != nil {
		return slices.Collect(maps.Keys(s.atWork)), s.left
	}
	return nil, 0
}

// Full notes that a claim found all places of a share taken, by the given runs, after left of its runs had left it. For
// a second, or until another one leaves, [LiveRuns.Claimable] leaves out the share's runs that have no place.
func (r *LiveRuns) Full(key string, left uint64, placed map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.shares[key]; s != nil && s.left == left {
		s.full, s.placed = r.now().Add(fullFor), placed
	}
}

// FullFor are the limits for whose places a run waits, each with the scope of the run's share.
func (r *LiveRuns) FullFor(run string) (list []schema.Limit) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	e := r.find(run)
	if e == nil || !e.live.Status.Claimable() || !r.waits(e, r.now()) {
		return nil
	}
	for _, s := range e.shares {
		if s.isFull(e, r.now()) {
			of := s.Limit
			of.Scope, _ = s.Of(&e.live)
			of.Each = ""
			list = append(list, of)
		}
	}
	return list
}

// Shares are those of a limit that live runs use, the fullest first, at most schema.MaxLimitShares.
func (r *LiveRuns) Shares(limit *schema.Limit) (list []schema.LimitShare) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	waiting, now := make(map[*share]int), r.now()
	for _, e := range r.claimable {
		for _, s := range e.shares {
			if !e.atWork && !e.live.Quarantined(r.maxClaims) && !r.paused(&e.live) && s.isFull(e, now) {
				waiting[s]++
			}
		}
	}
	for _, s := range r.shares {
		if n := len(s.atWork); s.Same(limit) && (n > 0 || waiting[s] > 0) {
			list = append(list, schema.LimitShare{Value: s.Value, AtWork: n, Waiting: waiting[s]})
		}
	}
	slices.SortFunc(list, func(a, b schema.LimitShare) int {
		return cmp.Or(cmp.Compare(b.AtWork, a.AtWork), cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(a.Value, b.Value))
	})
	return list[:min(len(list), schema.MaxLimitShares)]
}
