package liveness

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// MaxCandidates bounds the runs that [LiveRuns.Claimable] returns: as many as a claim may lose races for.
const MaxCandidates = 32

// LiveRuns is a daemon's table of the runs of a fleet that have not ended: the live index of all its shards, in
// memory. Fold workers find runs with dead executors in it, and the service claimable runs. A watch of each shard's
// live index fills it, so it lags by a message; no decision depends on it alone, because every action on an entry is
// a compare-and-set on the run's log.
//
// It costs about one KiB per run. All methods may be called at any time from any goroutine.
type LiveRuns struct {
	maxClaims int
	now       func() time.Time
	log       zerolog.Logger

	mu     sync.RWMutex
	stores []*kvstore.Shard
	shards []shardRuns
	// claimable runs, including quarantined ones, in the order of byAge.
	claimable []*entry
	// taken finds the run of a takeover by its request.
	taken map[takeoverKey]*entry
	// inHand counts the runs of each holder, atWork those of each tenant that have one.
	inHand map[Holder]int
	atWork map[string]int
	// became delivers runs that became claimable.
	became chan schema.Live
	// pauses of the fleet.
	pauses []schema.Pause
	// limits of the fleet that bound the runs at work, and their shares that live runs have, by key.
	limits []schema.Limit
	shares map[string]*share
}

// takeoverKey identifies a takeover by its executor and its request.
type takeoverKey struct{ executor, request string }

// shardRuns is the state of one shard.
type shardRuns struct {
	runs map[string]*entry
	// broken are the runs with an unreadable entry, and its revision.
	broken map[string]schema.Revision
	// untold are the runs whose parent was not told of their end, with the revision of their entry.
	untold map[string]schema.Revision
	// synced: every entry that existed when the watch began is here.
	synced bool
	// round counts the watches; an entry that a new one did not deliver is gone.
	round uint64
	// seen is the bucket's last revision of an entry's change.
	seen schema.Revision
}

// entry is one run. Only hidden, named, holder, epoch, key, shares and round change; otherwise a new entry replaces it.
type entry struct {
	live     schema.Live
	revision schema.Revision
	shard    int
	// since is Live.Since, expires Live.ExpiresAt, and started Live.StartedAt; zero if absent.
	since, expires, started time.Time
	// rank is since, moved back by the run's priority.
	rank time.Time
	// changed is when the entry arrived, by the daemon's clock.
	changed time.Time
	// held is since when the run has its executor, by the same clock; writes of others do not change it.
	held   time.Time
	hidden time.Time
	// named: a heartbeat of its instance named the run in its epoch. Only the sweeper of its shard uses it.
	named atomic.Bool
	// holder is the executor that works on it, or that has just got it; zero for none.
	holder Holder
	// epoch of the run, and key of the takeover that opened it; no request if a start did.
	epoch schema.Epoch
	key   takeoverKey
	round uint64
	// atWork is [schema.Live.AtWork], and shares are those of the fleet's limits.
	atWork bool
	shares []*share
}

// NewLiveRuns returns an empty table of the live runs of a fleet's shards, in the order of their numbers. Call Run to
// fill it. maxClaims as in [schema.Live.Quarantined]; [LiveRuns.Counts] uses it. now is the daemon's clock.
func NewLiveRuns(shards []*kvstore.Shard, maxClaims int, now func() time.Time, log zerolog.Logger) *LiveRuns {
	r := &LiveRuns{
		maxClaims: maxClaims, now: now, log: log, stores: shards, shards: make([]shardRuns, len(shards)),
		taken: make(map[takeoverKey]*entry), inHand: make(map[Holder]int), atWork: make(map[string]int), became: make(chan schema.Live, maxBecame),
	}
	for i := range r.shards {
		r.shards[i] = shardRuns{runs: make(map[string]*entry), broken: make(map[string]schema.Revision), untold: make(map[string]schema.Revision)}
	}
	return r
}

// Want describes the runs that an executor can take.
type Want struct {
	// Executor that claims: its own former runs come first.
	Executor string
	// Agents whose runs it can continue; empty means all.
	Agents []string
	// Labels must all be there with these values.
	Labels map[string]string
	// WithoutKeys are keys that it lacks.
	WithoutKeys []string
	// Build of the executor, and Lives, which reports whether an executor with another one is alive and claims runs of an
	// agent; nil means none is.
	Build string
	Lives func(agent, build string) bool
	// MaxClaims after which a run is quarantined, as in [schema.Live.Quarantined]; 0 means that of [NewLiveRuns].
	MaxClaims int
}

// Matches reports whether the executor can take a run.
func (w *Want) Matches(l *schema.Live) bool {
	if l.Quarantined(w.MaxClaims) || len(w.Agents) > 0 && !slices.Contains(w.Agents, l.Agent) {
		return false
	}
	if l.Build != "" && l.Build != w.Build && w.Lives != nil && w.Lives(l.Agent, l.Build) {
		return false
	}
	scope := schema.Scope{Labels: w.Labels}
	return scope.Selects(l) && !slices.ContainsFunc(l.KeyIDs, func(id string) bool { return slices.Contains(w.WithoutKeys, id) })
}

// Claimable returns up to [MaxCandidates] runs that the executor can take, and the number of all of them: first its
// own, then the others, in turns of the tenants. Runs that are paused, wait for a place, or are hidden beyond now, are left out.
//
// The cost depends on the number of claimable runs, not of live ones.
func (r *LiveRuns) Claimable(now time.Time, want Want) (candidates []schema.Live, total int) {
	others := make(map[string]*tenantRuns)
	want.MaxClaims = cmp.Or(want.MaxClaims, r.maxClaims)
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, e := range r.claimable {
		if !want.Matches(&e.live) || e.hidden.After(now) || r.paused(&e.live) || r.waits(e, now) {
			continue
		}
		total++
		if e.live.Executor == want.Executor {
			if len(candidates) < MaxCandidates {
				candidates = append(candidates, e.live)
			}
			continue
		}
		name := tenantOf(&e.live)
		if others[name] == nil {
			others[name] = &tenantRuns{atWork: r.atWork[name]}
		}
		if of := others[name]; len(of.waiting) < MaxCandidates {
			of.waiting = append(of.waiting, e)
		}
	}
	return append(candidates, inTurns(slices.Collect(maps.Values(others)), MaxCandidates-len(candidates))...), total
}

// Hide leaves a run out of [LiveRuns.Claimable] until the given time, or until its entry changes: a claim is about to
// take it, or found it taken.
func (r *LiveRuns) Hide(run string, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.find(run); e != nil {
		e.hidden = until
	}
}

// Get returns a run's entry; false if the run has ended or is unknown, or its entry is unreadable.
func (r *LiveRuns) Get(run string) (schema.Live, bool) {
	return r.of(schema.ShardOf(run, len(r.shards)), run)
}

// of is Get of a run of a shard.
func (r *LiveRuns) of(shard int, run string) (schema.Live, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if e := r.shards[shard].runs[run]; e != nil {
		return e.live, true
	}
	return schema.Live{}, false
}

func (r *LiveRuns) find(run string) *entry {
	return r.shards[schema.ShardOf(run, len(r.shards))].runs[run]
}

// Synced reports whether the live index of every shard is here, and all watches work. Otherwise an answer may miss
// runs.
func (r *LiveRuns) Synced() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return !slices.ContainsFunc(r.shards, func(s shardRuns) bool { return !s.synced })
}

// Counts are the live runs, and those of them that are paused, claimable, quarantined (not claimable automatically), and
// gapped (events of them are missing). Paused runs are neither claimable nor quarantined. Waiting runs wait for a place, by
// a limit, and are not claimable. Sleeping runs wait for a time, and retrying ones for another try. A fold worker repairs
// unreadable entries when it takes the shard.
type Counts struct{ Live, Paused, Claimable, Waiting, Quarantined, Gapped, Sleeping, Retrying, Unreadable int }

// Counts counts the runs.
func (r *LiveRuns) Counts() Counts {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var c Counts
	for i := range r.shards {
		c.Live += len(r.shards[i].runs)
		for _, e := range r.shards[i].runs {
			if e.live.Gapped {
				c.Gapped++
			}
			if !e.live.Status.Terminal() && r.paused(&e.live) {
				c.Paused++
			}
			switch e.live.Timer {
			case schema.TimerSleep:
				c.Sleeping++
			case schema.TimerRetry:
				c.Retrying++
			}
		}
		c.Unreadable += len(r.shards[i].broken)
	}
	for _, e := range r.claimable {
		switch {
		case r.paused(&e.live):
		case e.live.Quarantined(r.maxClaims):
			c.Quarantined++
		case r.waits(e, r.now()):
			c.Waiting++
		default:
			c.Claimable++
		}
	}
	return c
}

// ClaimableByAgent counts the claimable runs of each agent that has any.
func (r *LiveRuns) ClaimableByAgent() map[string]int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	counts := make(map[string]int)
	for _, e := range r.claimable {
		if !e.live.Quarantined(r.maxClaims) && !r.paused(&e.live) && !r.waits(e, r.now()) {
			counts[e.live.Agent]++
		}
	}
	return counts
}

// sharedPlaces bounds the turns of invented executors in [LiveRuns.due].
const sharedPlaces = 64

// due returns up to limit entries of a shard that need work by a fold worker: one of each place, in random order, then
// a second one of each. An instance has a place for the runs that its heartbeats named: other processes cannot sign
// those. Other runs share a few, by the executor's name.
func (r *LiveRuns) due(shard, limit int, is func(*entry) bool) (due []*entry) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	places := make(map[Holder][]*entry)
	for _, e := range r.shards[shard].runs {
		if !is(e) {
			continue
		}
		at := Holder{Instance: strconv.Itoa(schema.ShardOf(e.live.Executor, sharedPlaces))}
		if e.live.Instance != "" && e.named.Load() {
			at = Holder{e.live.Executor, e.live.Instance}
		}
		if len(places[at]) < limit {
			places[at] = append(places[at], e)
		}
	}
	for turn := range limit {
		for _, of := range places {
			if turn < len(of) && len(due) < limit {
				due = append(due, of[turn])
			}
		}
	}
	return due
}

// stands reports whether an entry is still the current one of its run.
func (r *LiveRuns) stands(e *entry) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.shards[e.shard].runs[e.live.Run] == e
}

func (r *LiveRuns) syncedShard(shard int) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.shards[shard].synced
}

// begin is called when a watch of a shard begins, and sync when it has delivered all existing entries: the others are
// gone.
func (r *LiveRuns) begin(shard int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shards[shard].round++
	r.shards[shard].seen = 0
	clear(r.shards[shard].broken)
	clear(r.shards[shard].untold)
}

func (r *LiveRuns) sync(shard int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.shards[shard]
	for run, e := range s.runs {
		if e.round != s.round {
			delete(s.runs, run)
			r.forget(e)
			r.leave(e)
		}
	}
	r.claimable = slices.DeleteFunc(r.claimable, func(e *entry) bool { return e.shard == shard && e.round != s.round })
	s.synced = true
}

// unsync is called when a watch broke. The known entries stay.
func (r *LiveRuns) unsync(shard int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shards[shard].synced = false
}

// apply handles one change of a shard's live index.
func (r *LiveRuns) apply(shard int, c *kvstore.LiveEntry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.shards[shard]
	s.seen = max(s.seen, c.Revision)
	if c.Untold {
		delete(s.untold, c.Run)
		if !c.Gone {
			s.untold[c.Run] = c.Revision
		}
		return
	}
	old := s.runs[c.Run]
	// A bucket that was created again has new revisions.
	if old != nil && c.Live != nil && old.revision == c.Revision && old.live.Same(c.Live) {
		old.round = s.round
		return
	}
	if old != nil {
		delete(s.runs, c.Run)
		r.unclaimable(old)
		r.forget(old)
		defer r.leave(old) // once the run's new entry has joined
	}
	delete(s.broken, c.Run)
	if c.Live == nil {
		if errors.Is(c.Err, kvstore.ErrCorrupt) {
			s.broken[c.Run] = c.Revision
		}
		return
	}
	e := &entry{
		live: *c.Live, revision: c.Revision, shard: shard, changed: r.now(), round: s.round,
		since: schema.ParseTime(c.Live.Since), expires: schema.ParseTime(c.Live.ExpiresAt), started: schema.ParseTime(c.Live.StartedAt),
	}
	e.rank = e.since.Add(-time.Duration(e.live.Priority) * time.Minute)
	e.held, e.atWork = e.changed, e.live.AtWork(r.maxClaims)
	if old != nil && old.live.Epoch == e.live.Epoch && old.live.Executor == e.live.Executor && old.live.Instance == e.live.Instance && !old.live.Status.Claimable() {
		e.held = old.held
		e.named.Store(old.named.Load())
	}
	e.holder, e.epoch, e.key = holderOf(&e.live), e.live.Epoch, takeoverKey{e.live.Executor, e.live.RequestID}
	r.remember(e)
	r.join(e)
	s.runs[c.Run] = e
	if e.live.Status.Claimable() {
		at, _ := slices.BinarySearchFunc(r.claimable, e, byAge)
		r.claimable = slices.Insert(r.claimable, at, e)
		r.tell(e)
	}
}

// TakenBy returns the run whose current epoch an executor's request opened, and that epoch.
func (r *LiveRuns) TakenBy(executor, request string) (run string, epoch schema.Epoch, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if e := r.taken[takeoverKey{executor, request}]; e != nil {
		return e.live.Run, e.epoch, true
	}
	return "", 0, false
}

func (r *LiveRuns) unclaimable(e *entry) {
	if at, ok := slices.BinarySearchFunc(r.claimable, e, byAge); ok {
		r.claimable = slices.Delete(r.claimable, at, at+1)
	}
}

// byAge is the order in which runs are claimed. A step of priority is worth a minute of waiting, so no run waits for ever
// behind those of a higher priority.
func byAge(a, b *entry) int {
	if c := a.rank.Compare(b.rank); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(a.live.Run, b.live.Run), cmp.Compare(a.shard, b.shard))
}

// Each calls yield for every run, and reports whether those are all: not before the live index of every shard is
// here. yield must not call r.
func (r *LiveRuns) Each(yield func(shard int, l *schema.Live, started time.Time)) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if slices.ContainsFunc(r.shards, func(s shardRuns) bool { return !s.synced }) {
		return false
	}
	for i := range r.shards {
		for _, e := range r.shards[i].runs {
			yield(i, &e.live, e.started)
		}
	}
	return true
}

// Untold is a run whose parent was not told of its end, with the revision of its entry.
type Untold struct {
	Run      string
	Shard    int
	Revision schema.Revision
}

// Untold are the runs of some shards whose parents were not told of their ends.
func (r *LiveRuns) Untold(of func(shard int) bool) (list []Untold) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for i := range r.shards {
		if len(r.shards[i].untold) == 0 || !of(i) {
			continue
		}
		for run, rev := range r.shards[i].untold {
			list = append(list, Untold{run, i, rev})
		}
	}
	return list
}

// Revision is the last seen revision of a shard's bucket.
func (r *LiveRuns) Revision(shard int) schema.Revision {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.shards[shard].seen
}
