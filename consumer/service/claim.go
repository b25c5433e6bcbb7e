package service

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"github.com/waymarkio/waymark/consumer/internal/control"
	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/schema"
)

const (
	// maxClaimTries bounds how many runs one claim may lose to other executors before its client is told to ask
	// again.
	maxClaimTries = 8
	// claimPatience bounds the takeover of one run for a claim, so that a shard without a leader does not delay other
	// claims.
	claimPatience = 3 * time.Second
	// claimIdle is when to ask again if no run can be claimed.
	claimIdle = time.Second
	// claimQueue is the longest wait that a client is told because of the rate.
	claimQueue = 30 * time.Second
	// hiddenTaken is how long a taken run is not given again, until its entry is updated; hiddenLost is for a run
	// that another executor was found to have, and hiddenBroken for one that could not be read.
	hiddenTaken  = 30 * time.Second
	hiddenLost   = time.Second
	hiddenBroken = 10 * time.Second
)

// claims is a replica's state of the claims it serves: the runs being taken, and the rate.
type claims struct {
	// same lets a repeat that arrives during its first try have the same answer.
	same  singleflight.Group
	now   func() time.Time
	step  time.Duration
	limit *rate.Limiter

	mu sync.Mutex
	// line is the latest time at which a client was told to ask again.
	line time.Time
	// active counts the requests that look for a run.
	active int
	// reserved runs are being taken by a request.
	reserved map[string]bool
	// asking are the executors that asked for a run recently.
	asking map[liveness.Holder]*asker
}

func newClaims(cfg *Config, now func() time.Time) *claims {
	return &claims{
		now: now, step: time.Duration(float64(time.Second) / cfg.ClaimRate), limit: rate.NewLimiter(rate.Limit(cfg.ClaimRate), cfg.ClaimBurst),
		reserved: make(map[string]bool), asking: make(map[liveness.Holder]*asker),
	}
}

// look counts a request until the returned function is called.
func (c *claims) look() (done func()) {
	count := func(n int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.active += n
	}
	count(1)
	return func() { count(-1) }
}

// reserve chooses one of the candidates for a request: the first of the executor's own runs, or else of all. Each of
// several concurrent requests takes one of the first few. The choice follows from the request, so that another
// replica tends to choose the same run for a repeat.
func (c *claims) reserve(req *schema.ClaimRequest, candidates []schema.Live) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	best, most, seen := "", uint64(0), 0
	own := false
	for i := range candidates {
		l := &candidates[i]
		mine := l.Executor == req.Executor
		if c.reserved[l.Run] || own && !mine {
			continue
		}
		if seen++; seen > min(c.active, maxClaimTries) && best != "" {
			break
		}
		own = mine
		h := fnv.New64a()
		_, _ = h.Write([]byte(req.RequestID + " " + l.Run)) // Write of a hash never fails
		if weight := h.Sum64(); best == "" || weight > most {
			best, most = l.Run, weight
		}
	}
	if best == "" {
		return "", false
	}
	c.reserved[best] = true
	return best, true
}

func (c *claims) release(run string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.reserved, run)
}

// later is called when the rate is used up. It assigns the next slot, and returns the time until it. Slots follow
// each other at the rate, so that a thousand concurrent clients return one by one.
func (c *claims) later() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if c.line.Before(now) {
		c.line = now
	}
	wait := c.line.Sub(now) + c.step
	if wait > claimQueue {
		return jitter(claimQueue)
	}
	c.line = c.line.Add(c.step)
	return jitter(wait)
}

// jitter adds up to a half to a wait, so that clients with the same answer do not return together.
func jitter(d time.Duration) time.Duration { return d + rand.N(d/2+1) }

// claim gives a claimable run to the executor that asks.
//
// A repeat is answered with the run of the first try, which any replica finds by the request among the live runs. Until
// they have it, another replica chooses the same run with high probability. If not, the heartbeats of the executor do
// not name the first run, and it is orphaned again.
func (s *Service) claim(ctx context.Context, _ *task, req *schema.ClaimRequest) (*schema.ClaimReply, error) {
	given, err, _ := s.claims.same.Do(req.Executor+" "+req.RequestID, func() (any, error) {
		defer s.claims.look()()
		settings := s.cfg.Settings()
		want := liveness.Want{
			Executor: req.Executor, Agents: req.Agents, Labels: req.Labels, WithoutKeys: req.WithoutKeys, MaxClaims: s.cfg.MaxClaims,
			Build: req.Build, Lives: s.cfg.Heartbeats.Builds(settings.Silence()),
		}
		s.claims.asks(req, want, s.liveRuns.InHand(holder(req)))
		return s.give(ctx, req, want)
	})
	reply, _ := given.(*schema.ClaimReply) // give returns nothing else
	return reply, err
}

// give finds a run for a claim, and takes it over.
func (s *Service) give(ctx context.Context, req *schema.ClaimRequest, want liveness.Want) (*schema.ClaimReply, error) {
	if run, epoch, ok := s.liveRuns.TakenBy(req.Executor, req.RequestID); ok {
		_, total := s.liveRuns.Claimable(s.now(), want)
		return &schema.ClaimReply{Run: run, Epoch: epoch, Claimable: total + 1}, nil
	}
	total := 0
	for range maxClaimTries {
		var candidates []schema.Live
		candidates, total = s.liveRuns.Claimable(s.now(), want)
		if s.yields(req, candidates) {
			return &schema.ClaimReply{Claimable: total, RetryAfterMS: yieldFor.Milliseconds()}, nil
		}
		run, ok := s.claims.reserve(req, candidates)
		if !ok && total == 0 {
			return &schema.ClaimReply{RetryAfterMS: jitter(claimIdle).Milliseconds()}, nil
		}
		if !ok {
			break // all candidates are being taken by other requests
		}
		if !s.claims.limit.AllowN(s.now(), 1) {
			s.claims.release(run)
			s.stats.ClaimsLimited.Add(1)
			return &schema.ClaimReply{Claimable: total, RetryAfterMS: s.claims.later().Milliseconds()}, nil
		}
		epoch, begun, err := s.take(ctx, run, req)
		_, full := errors.AsType[*fullShare](err)
		switch {
		case full: // the live runs leave out the runs of its share
		case err == nil && epoch != 0:
			s.liveRuns.Take(run, epoch, holder(req), req.RequestID, s.now().Add(hiddenTaken))
		case err != nil:
			s.liveRuns.Hide(run, s.now().Add(hiddenBroken))
		default:
			s.liveRuns.Hide(run, s.now().Add(hiddenLost))
		}
		s.claims.release(run)
		switch {
		case full:
			continue
		case err == nil && epoch != 0:
			return s.given(run, epoch, req, want), nil
		case err != nil && (begun || ctx.Err() != nil):
			return nil, err
		case err != nil:
			s.log.Warn().Err(err).Str(logkey.Run, run).Msg("claimable run cannot be read, trying another")
		}
		s.stats.ClaimsLost.Add(1)
	}
	return &schema.ClaimReply{Claimable: total, RetryAfterMS: s.claims.later().Milliseconds()}, nil
}

// given is the answer with a run, and says whether more runs can be claimed.
func (s *Service) given(run string, epoch schema.Epoch, req *schema.ClaimRequest, want liveness.Want) *schema.ClaimReply {
	_, more := s.liveRuns.Claimable(s.now(), want)
	s.stats.ClaimsGiven.Add(1)
	s.claims.given(req, s.liveRuns.InHand(holder(req)))
	s.log.Info().Str(logkey.Run, run).Uint32("epoch", uint32(epoch)).Str("executor", req.Executor).Int("left", more).Msg("run claimed")
	reply := &schema.ClaimReply{Run: run, Epoch: epoch, Claimable: more + 1}
	if more == 0 {
		reply.RetryAfterMS = jitter(claimIdle).Milliseconds()
	}
	return reply
}

// take takes a run over for a claim, and returns the epoch, or 0 if the run cannot be claimed. A 0 is not proven: a
// run that is wrongly skipped is claimed a little later. With an error, begun says that the takeover may have been
// stored.
func (s *Service) take(ctx context.Context, run string, req *schema.ClaimRequest) (epoch schema.Epoch, begun bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, claimPatience)
	defer cancel()
	rr := &schema.RecoverRequest{Executor: req.Executor, Instance: req.Instance, Reason: schema.TakeoverClaim, RequestID: req.RequestID}
	read := s.routing.find
	for {
		r, err := s.routing.undoubted(ctx, run, func() (*reader.Snapshot, error) {
			return s.reader.Repeat(ctx, run, func() (*reader.Snapshot, error) { return read(ctx, run, reader.Head) })
		})
		if errors.Is(err, reader.ErrNoRun) || err == nil && r.Empty() {
			return 0, false, nil
		}
		if err != nil {
			return 0, begun, err
		}
		again, refusal := s.writer.judge(r, rr)
		switch {
		case again:
			return r.Head.Epoch, true, nil
		case refusal != nil:
			return 0, false, nil
		}
		// Once a takeover may have been published, only a proven read tells that it was not stored.
		begun, read = true, s.routing.proven
		opened, err := s.writer.open(ctx, r, rr, "", nil)
		if err != nil {
			_, told := errors.AsType[*schema.ServiceError](err) // the fold refused it, so it is not open
			return 0, !told, err
		}
		if opened {
			s.stats.Takeovers.Add(1)
			return r.Head.Epoch, true, nil
		}
		if err := pause.For(ctx, retryPause); err != nil {
			return 0, true, fmt.Errorf("run %s: %w: %w", run, err, control.ErrRefused)
		}
	}
}
