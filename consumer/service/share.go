package service

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/schema"
)

const (
	// yieldAge is how long a run that became claimable is kept for executors with fewer active runs. After it any
	// executor is given it.
	yieldAge = 2 * time.Second
	// yieldFor is when an executor that yields asks again.
	yieldFor = 100 * time.Millisecond
	// askingFresh is how long an executor that asked for a run counts as waiting for one: the longest pause between
	// two claims.
	askingFresh = 2500 * time.Millisecond
	// callPatience is how long an executor may take to follow a call. A slower one is not waited for before it asks
	// again.
	callPatience = 250 * time.Millisecond
	// maxCalled bounds the executors called because of one claim, maxAsking those that are remembered.
	maxCalled = 8
	maxAsking = 1 << 14
)

// asker is an executor that asked for a run recently.
type asker struct {
	want liveness.Want
	at   time.Time
	// inHand is the number of runs that it had then. If it has more, another replica gave it one.
	inHand int
	// full: it has no room after the run that it was given.
	full bool
	// called is when it was told to ask; zero if not since it last asked.
	called time.Time
}

// waits reports whether the executor would take a run at once.
func (a *asker) waits(now time.Time, inHand int) bool {
	return !a.full && now.Sub(a.at) < askingFresh && inHand <= a.inHand && (a.called.IsZero() || now.Sub(a.called) < callPatience)
}

func holder(req *schema.ClaimRequest) liveness.Holder {
	return liveness.Holder{Executor: req.Executor, Instance: req.Instance}
}

// asks notes that an executor asks for a run, and its active runs.
func (c *claims) asks(req *schema.ClaimRequest, want liveness.Want, inHand int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h, now := holder(req), c.now()
	if c.asking[h] == nil && len(c.asking) >= maxAsking {
		for other, a := range c.asking {
			if now.Sub(a.at) >= askingFresh {
				delete(c.asking, other)
			}
		}
		if len(c.asking) >= maxAsking {
			return
		}
	}
	c.asking[h] = &asker{want: want, at: now, inHand: inHand}
}

// given notes that it was given one.
func (c *claims) given(req *schema.ClaimRequest, inHand int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.asking[holder(req)]; a != nil {
		a.at, a.inHand, a.full = c.now(), inHand, req.Room == 1
	}
}

// call tells an executor to ask for a run.
type call struct{ executor, run string }

// fewer returns executors that wait for one of the runs and have fewer active runs than the limit, and whether there
// are any. Only those not called yet are returned, with a run for each, up to a maximum; they count as called.
func (c *claims) fewer(than, most int, runs []schema.Live, inHand func(liveness.Holder) int) (calls []call, others bool) {
	type waiting struct {
		*asker
		load int
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	var list []waiting
	for h, a := range c.asking {
		if load := inHand(h); load < than && a.waits(now, load) {
			list = append(list, waiting{a, load})
		}
	}
	slices.SortFunc(list, func(a, b waiting) int { return cmp.Compare(a.load, b.load) })
	for _, w := range list {
		at := slices.IndexFunc(runs, func(l schema.Live) bool { return w.want.Matches(&l) })
		if at < 0 {
			continue
		}
		others = true
		if w.called.IsZero() && len(calls) < most {
			w.called = now
			calls = append(calls, call{w.want.Executor, runs[at].Run})
		}
	}
	return calls, others
}

// yields reports whether an executor that asks must leave the runs to waiting executors with fewer active ones, and
// calls those. It applies to runs that became claimable a moment ago, so that no executor waits for long. Differences
// of up to an eighth do not count, so that executors with many active runs do not alternate.
func (s *Service) yields(req *schema.ClaimRequest, candidates []schema.Live) bool {
	mine := s.liveRuns.InHand(holder(req))
	if mine == 0 || len(candidates) == 0 || s.now().Sub(s.liveRuns.Since(candidates[0].Run)) > yieldAge {
		return false
	}
	calls, others := s.claims.fewer(mine-mine/8, min(len(candidates), maxCalled), candidates, s.liveRuns.InHand)
	s.call(calls)
	return others
}

// callFor calls executors for runs as they become claimable, until ctx ends: for each run the two waiting ones with
// the fewest active runs. The second is called in case the first has just failed.
func (s *Service) callFor(ctx context.Context, became <-chan schema.Live) {
	for {
		select {
		case <-ctx.Done():
			return
		case run := <-became:
			calls, _ := s.claims.fewer(math.MaxInt, 2, []schema.Live{run}, s.liveRuns.InHand)
			s.call(calls)
		}
	}
}

// call tells executors to claim at once.
func (s *Service) call(calls []call) {
	for _, c := range calls {
		body, err := json.Marshal(&schema.Notice{Run: c.run, Name: schema.RunClaimable})
		if err == nil {
			err = s.nc.Publish(schema.NoticeSubject(s.cfg.Fleet, c.executor), body)
		}
		if err != nil {
			s.log.Debug().Err(err).Str(logkey.Run, c.run).Msg("executor not called")
		}
	}
}
