package liveness

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// leastSilence is the shortest time that counts as silence, whatever the heartbeat interval.
const leastSilence = 500 * time.Millisecond

// Fill writes the answer to a request into the reply. fleet is the fleet's silence.
func (h *Heartbeats) Fill(reply *schema.ExecutorsReply, req *schema.ExecutorsRequest, fleet time.Duration) {
	inHand, runs := h.runs.holders(req.Executor)
	steady, heard := h.Steady()
	lives, now := h.all(req.Executor)
	for _, l := range lives {
		v, ok := l.versions[req.VersionsOf]
		same := func(o schema.Version) bool { return v.Equal(&o) }
		switch {
		case !ok || !l.alive(now, fleet) || slices.ContainsFunc(reply.Versions, same):
		case len(reply.Versions) < schema.MaxVersions:
			reply.Versions = append(reply.Versions, v)
		default:
			reply.MoreVersions++
		}
	}
	if heard {
		reply.HeardSince = schema.FormatTime(steady)
	}
	if heard && now.Sub(steady) >= fleet { // each living executor was heard by now
		reply.Claiming = make(map[string]int, len(req.Agents))
		for _, agent := range req.Agents {
			reply.Claiming[agent] = 0
		}
		all := 0
		for _, l := range lives {
			switch {
			case !l.alive(now, fleet):
				continue
			case len(l.agents) == 0:
				reply.Unsaid++
			case slices.Contains(l.agents, schema.AnyAgent):
				all++
				continue
			}
			for _, agent := range l.agents {
				if _, asked := reply.Claiming[agent]; asked {
					reply.Claiming[agent]++
				}
			}
		}
		for agent := range reply.Claiming {
			reply.Claiming[agent] += all
		}
	}
	list := make([]schema.ExecutorState, 0, max(len(lives), len(inHand)))
	for key := range inHand {
		if _, ok := lives[key]; !ok {
			lives[key] = instanceLife{executor: key.Executor, instance: key.Instance}
		}
	}
	for key, l := range lives {
		s := schema.ExecutorState{
			Executor: l.executor, Instance: l.instance, IntervalMS: l.interval.Milliseconds(), Leaving: l.leaving, InHand: inHand[key], Runs: runs[key],
		}
		if !l.seen.IsZero() {
			age := max(now.Sub(l.seen), 0)
			ms := age.Milliseconds()
			s.SeenMS, s.Silent = &ms, !l.leaving && age > max(l.interval+l.interval/2, leastSilence)
		}
		if s.InHand > 0 && heard {
			left := max(later(l.seen, steady).Add(l.silence(fleet)).Sub(now), 0).Milliseconds()
			if s.Leaving {
				left = 0
			}
			s.OrphanedInMS = &left
		}
		list = append(list, s)
	}
	slices.SortFunc(list, byUrgency)
	reply.Executors, reply.More = list[:min(len(list), schema.MaxExecutors)], max(len(list)-schema.MaxExecutors, 0)
}

// Builds returns a function that reports whether an executor with a build is alive and claims runs of an agent. It looks
// once. As long as a living executor may be unheard, each build counts as alive.
func (h *Heartbeats) Builds(fleet time.Duration) func(agent, build string) bool {
	type claims struct{ agent, build string }
	look := sync.OnceValue(func() map[claims]bool {
		steady, heard := h.Steady()
		lives, now := h.all("")
		if !heard || now.Sub(steady) < fleet {
			return nil
		}
		living := make(map[claims]bool)
		for _, l := range lives {
			for _, agent := range l.agents {
				living[claims{agent, l.build}] = living[claims{agent, l.build}] || l.alive(now, fleet)
			}
		}
		return living
	})
	return func(agent, build string) bool {
		living := look()
		return living == nil || living[claims{agent, build}] || living[claims{schema.AnyAgent, build}]
	}
}

// byUrgency sorts executors by when their runs are orphaned, and those without runs by when they were seen, the latest first.
func byUrgency(a, b schema.ExecutorState) int {
	at := func(s *schema.ExecutorState) int64 {
		switch {
		case s.InHand == 0:
			return 1 << 62
		case s.OrphanedInMS == nil:
			return 1 << 61
		}
		return *s.OrphanedInMS
	}
	seen := func(s *schema.ExecutorState) int64 {
		if s.SeenMS == nil {
			return 1 << 62
		}
		return *s.SeenMS
	}
	if a.InHand > 0 || b.InHand > 0 {
		return cmp.Or(cmp.Compare(at(&a), at(&b)), cmp.Compare(a.Executor, b.Executor), cmp.Compare(a.Instance, b.Instance))
	}
	return cmp.Or(cmp.Compare(seen(&a), seen(&b)), cmp.Compare(a.Executor, b.Executor), cmp.Compare(a.Instance, b.Instance))
}

// all returns the instances of an executor, or of every executor for an empty name, and the present time.
func (h *Heartbeats) all(name string) (map[Holder]instanceLife, time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	lives := make(map[Holder]instanceLife)
	for executor, own := range h.executors {
		if name != "" && executor != name {
			continue
		}
		for instance, l := range own {
			lives[Holder{executor, instance}] = *l
		}
	}
	return lives, h.now()
}

// holders returns the number of active runs of each executor, and the runs of the named one.
func (r *LiveRuns) holders(name string) (map[Holder]int, map[Holder][]string) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	counts, runs := make(map[Holder]int), make(map[Holder][]string)
	for h, n := range r.inHand {
		if name == "" || h.Executor == name {
			counts[h] = n
		}
	}
	if name == "" {
		return counts, nil
	}
	for i := range r.shards {
		for run, e := range r.shards[i].runs {
			if e.holder.Executor == name && len(runs[e.holder]) < schema.MaxExecutorRuns {
				runs[e.holder] = append(runs[e.holder], run)
			}
		}
	}
	for _, list := range runs {
		slices.Sort(list)
	}
	return counts, runs
}
