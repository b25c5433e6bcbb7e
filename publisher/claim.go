package publisher

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/waymarkio/waymark/schema"
)

const (
	// leastPause is the shortest wait between two claims when there is nothing to claim.
	leastPause = 50 * time.Millisecond
	// claimPause is the wait after a claim that failed, doubled up to mostClaimPause.
	claimPause     = time.Second
	mostClaimPause = 15 * time.Second
)

// ClaimSpec says which runs an executor can go on with.
type ClaimSpec struct {
	// Agents whose runs it takes; empty means the Config's, and if that is empty, too, all.
	Agents []string
	// Labels must all be there with these values.
	Labels map[string]string
	// AllowGaps takes runs although events of them are known to be missing; see [ResumeSpec]. Without it such a run is
	// given back, and the claim fails with [ErrIncomplete].
	AllowGaps bool
	// HeadOnly and OnControl as in [RunSpec].
	HeadOnly  bool
	OnControl func(event *schema.Event, data schema.Data)
}

// Claim asks once for a run that has no executor, and takes it over: a run that was left, whose executor fell silent,
// or that waited and was answered. Which one is the daemon's choice: runs of this executor's name first, then the one
// that has waited for longest.
//
// A run that the daemon gave and that could not be taken in hand is this executor's, and nobody else is given it. Later
// claims try it again, after 1 second and then ever longer, up to 30 seconds; between the tries they claim others. From
// the sixth try on, after half a minute, it is given back for others to try, which needs only its head. What cannot be
// given back either is left after the 24th try, some ten minutes later: the heartbeats give it up, and it is orphaned. While the daemon is away no try counts. With 8
// of them no new claim is begun.
//
// It returns [*NothingError] when there is none now, [*ClaimedRunError] with what becomes of a run that could not be taken
// in hand (within it [ErrIncomplete] as spec says, and [ErrConflict] when the run was taken from this executor in this
// moment), [ErrUnavailable] and [ErrNoService].
func (f *Fleet) Claim(ctx context.Context, spec ClaimSpec) (*Run, error) {
	return f.claimOnce(ctx, spec, 0, false)
}

// claimOnce is Claim of an executor that has room for so many runs, 0 if that is unknown, or only of what an earlier claim was given or may
// have been given.
func (f *Fleet) claimOnce(ctx context.Context, spec ClaimSpec, room int, pendingOnly bool) (*Run, error) {
	if len(spec.Agents) == 0 && f.cfg.Agent != "" {
		spec.Agents = []string{f.cfg.Agent}
	}
	for _, agent := range spec.Agents {
		if err := schema.CheckName("agent", agent); err != nil {
			return nil, fmt.Errorf("claim: %w: %w", ErrConfig, err)
		}
	}
	if err := f.readableLabels(spec.Labels); err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	if err := f.appear(); err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	c, done, ok := f.takeovers.take(&spec, pendingOnly)
	if !ok {
		return nil, &NothingError{}
	}
	defer done()
	run, err := f.claim(ctx, &c, &spec, room)
	if err != nil {
		return nil, f.claimFailed(ctx, &c, &spec, err)
	}
	return run, nil
}

func (f *Fleet) claim(ctx context.Context, c *claim, spec *ClaimSpec, room int) (*Run, error) {
	if c.run == "" {
		reply, err := askOne[schema.ClaimReply](ctx, f.Reader, schema.VerbClaim, "", &schema.ClaimRequest{
			Executor: f.cfg.Executor, Instance: f.cfg.Instance, RequestID: c.id, Agents: spec.Agents, Labels: spec.Labels,
			Room: max(room, 0), WithoutKeys: f.takeovers.withoutKeys(),
		})
		if err != nil {
			return nil, err
		}
		if reply.Run == "" {
			return nil, &NothingError{RetryAfter: time.Duration(max(reply.RetryAfterMS, 0)) * time.Millisecond, Claimable: reply.Claimable}
		}
		c.run, c.epoch, c.pause = reply.Run, reply.Epoch, 0
	}
	// The run is this executor's now: the caller's end must not leave it lying.
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.cfg.RequestTimeout)
	defer cancel()
	run, err := f.resume(bounded, c.run, c.resumption(spec))
	_, unreadable := errors.AsType[*unreadableError](err)
	if errors.Is(err, ErrIncomplete) || unreadable {
		return nil, errors.Join(err, f.giveBack(ctx, c, spec, err))
	}
	return run, err
}

// Claims yields run after run, as long as its consumer goes on and ctx has not ended. When there is nothing to claim it
// waits for as long as the daemon says, with jitter. Other errors are yielded, and the next claim follows after a pause,
// a short one where it was about one run ([*ClaimedRunError]);
// [ErrStopped] and [ErrConfig] are the last. What was yielded must be driven or let go by the consumer.
func (f *Fleet) Claims(ctx context.Context, spec ClaimSpec) iter.Seq2[*Run, error] {
	return func(yield func(*Run, error) bool) {
		var pause claimPauses
		for ctx.Err() == nil {
			called := f.calls.next()
			run, err := f.Claim(ctx, spec)
			if err != nil && ctx.Err() != nil {
				return
			}
			if !errors.Is(err, ErrNothing) && !yield(run, err) || errors.Is(err, ErrStopped) || errors.Is(err, ErrConfig) {
				return
			}
			if !pause.after(ctx, err, called) {
				return
			}
		}
	}
}

// claimPauses paces claims. The zero value is ready.
type claimPauses struct {
	next time.Duration
	// bad is the run that the last claim could not take in hand, and short the pause after it.
	bad   string
	short time.Duration
}

// after waits for as long as is due after a claim, or, when there was nothing to claim, until the daemon calls. It returns false when ctx
// ends first.
func (p *claimPauses) after(ctx context.Context, err error, called <-chan struct{}) bool {
	d, wait := p.due(err)
	if !wait {
		return true
	}
	if !errors.Is(err, ErrNothing) {
		called = nil
	}
	return sleep(ctx, d, called)
}

// due is not at all after a claim that brought a run, as long as the daemon says when there was none, and longer each time
// after errors. One run that cannot be taken in hand says nothing about the next: the pause after it is short, and
// grows only when the same is given again at once, or when none of them can even be given back, so that an executor
// that can take nothing in hand does not take all there is from others.
func (p *claimPauses) due(err error) (d time.Duration, wait bool) {
	nothing, none := errors.AsType[*NothingError](err)
	failed, one := errors.AsType[*ClaimedRunError](err)
	switch {
	case err == nil:
		*p = claimPauses{}
		return 0, false
	case none:
		*p = claimPauses{}
		return nothing.RetryAfter, true
	case one && failed.Fate != ClaimRetried && failed.Run != p.bad:
		p.bad, p.short = failed.Run, leastPause
		return p.short, true
	case one:
		p.bad, p.short = failed.Run, min(max(2*p.short, leastPause), mostClaimPause)
		return p.short, true
	}
	p.next = min(max(2*p.next, claimPause), mostClaimPause)
	return p.next, true
}

// sleep waits for d and up to half as long again, so that those who wait for the same do not come together, or until called is closed. It
// returns false when ctx ends first.
func sleep(ctx context.Context, d time.Duration, called <-chan struct{}) bool {
	d = max(d, leastPause)
	timer := time.NewTimer(d + rand.N(d/2+1)) //nolint:gosec // jitter
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-called:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// calls are the daemon's, to claim at once. The zero value is ready.
type calls struct {
	mu   sync.Mutex
	open chan struct{}
}

// next returns a channel that the next call closes.
func (c *calls) next() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = make(chan struct{})
	}
	return c.open
}

// come is called for each call.
func (c *calls) come() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open != nil {
		close(c.open)
		c.open = nil
	}
}
