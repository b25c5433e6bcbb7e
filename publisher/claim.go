package publisher

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/waymarkio/waymark/schema"
)

const (
	// leastPause is the shortest wait between two claims when there is no run to claim.
	leastPause = 50 * time.Millisecond
	// claimPause is the wait after a failed claim; it doubles up to mostClaimPause.
	claimPause     = time.Second
	mostClaimPause = 15 * time.Second
	// mostRefusedPause is the longest wait after runs that failed because of this executor's credentials.
	mostRefusedPause = 5 * time.Minute
)

// ClaimSpec selects the runs that an executor can resume.
type ClaimSpec struct {
	// Agents whose runs it claims; empty means the agent of Config, or all agents if Config names none.
	Agents []string
	// Labels that a run must have, with these values.
	Labels map[string]string
	// AllowGaps claims runs although events of them are known to be missing; see [ResumeSpec]. Without it such a run is
	// given back, and the claim fails with [ErrIncomplete].
	AllowGaps bool
}

// Claim asks once for a run that has no executor, and takes it over: a run that was released, whose executor fell
// silent, or that got the answer it waited for. The daemon chooses the run: runs of this executor's name first, then
// the one that has waited longest.
//
// A claimed run that lacks events or a key is given back for other executors. One that cannot be resumed for another
// reason is dropped: the heartbeats do not name it, so it is orphaned within two of their intervals, and claimable again.
// The same happens to a run that the daemon gave by an answer that was lost; that does not count as a claim without
// progress.
//
// It returns [*NothingError] when there is no run now; [*ClaimedRunError] for a run that could not be
// resumed (it wraps [ErrIncomplete] depending on spec, and [ErrConflict] when the run was taken from this
// executor at this moment); [ErrUnavailable]; and [ErrNoService].
func (f *Fleet) Claim(ctx context.Context, spec ClaimSpec) (*Run, error) {
	return f.claimOnce(ctx, spec, 0)
}

// claimOnce is Claim for an executor with room for so many runs; 0 means unknown.
func (f *Fleet) claimOnce(ctx context.Context, spec ClaimSpec, room int) (*Run, error) {
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
	f.presence.claims(spec.Agents)
	id := rand.Text()
	reply, err := askFleet[schema.ClaimReply](ctx, f.Reader, schema.VerbClaim, "", &schema.ClaimRequest{
		Executor: f.cfg.Executor, Instance: f.instance, RequestID: id, Agents: spec.Agents, Labels: spec.Labels,
		Build: f.versions.build, Room: max(room, 0), WithoutKeys: f.lacked.recent(),
	})
	if err != nil {
		return nil, err
	}
	if reply.Run == "" {
		return nil, &NothingError{RetryAfter: time.Duration(max(reply.RetryAfterMS, 0)) * time.Millisecond, Claimable: reply.Claimable}
	}
	_, done := f.hand.begin(reply.Run)
	defer done()
	// The run is this executor's now: finish the takeover even if the caller's context ends.
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.cfg.RequestTimeout)
	defer cancel()
	resume := ResumeSpec{Reason: schema.TakeoverClaim, RequestID: id, AllowGaps: spec.AllowGaps}
	run, err := f.resume(bounded, reply.Run, resume)
	if err == nil || errors.Is(err, ErrStopped) {
		return run, err
	}
	failed := &ClaimedRunError{Run: reply.Run, Err: err}
	if errors.Is(err, ErrEncrypted) || errors.Is(err, ErrIncomplete) {
		back := f.giveBack(ctx, reply.Run, resume, err)
		failed.GivenBack, failed.Err = back == nil, errors.Join(err, back)
	}
	return nil, failed
}

// giveBack releases a claimed run that cannot be resumed. It counts as a claim without progress, so that the run is not
// passed around for ever.
func (f *Fleet) giveBack(ctx context.Context, id string, resume ResumeSpec, why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.cfg.RequestTimeout)
	defer cancel()
	run, err := f.takeHead(ctx, id, resume)
	if err == nil {
		reason := schema.InterruptedPreempted
		// A value that its key does not open counts as damaged: no other executor could read it either.
		if errors.Is(why, ErrEncrypted) && !errors.Is(why, ErrNotDecrypted) {
			reason = schema.InterruptedUnavailable
			ids := run.Head().KeyIDs
			lacked := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return f.hasKeys(ctx, &schema.Head{KeyIDs: []string{id}}) == nil })
			if len(lacked) == 0 {
				lacked = ids // it has them, and cannot use them
			}
			f.lacked.add(lacked)
		}
		err = run.publishLast(ctx, fmt.Errorf("run %s: %w", run.id, why), draft{data: &schema.RunInterruptedData{Reason: reason}})
	}
	if err != nil {
		return fmt.Errorf("giving run %s back: %w", id, err)
	}
	return nil
}

// claimPauses paces claims. The zero value is ready.
type claimPauses struct {
	next time.Duration
	// bad is the run that the last claim could not resume, and short the pause after it.
	bad   string
	short time.Duration
}

// after waits for the pause that is due after a claim. If there was no run to claim, a call of the daemon ends the wait
// early. It returns false if ctx ends first.
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

// due returns the pause after a claim: none after a run, the daemon's interval if there was no run, and a growing one
// after errors. A run that cannot be resumed says nothing about other runs, so the pause after it is short. It grows
// only if the same run comes again at once, or if the run cannot even be given back. Otherwise an executor that can
// resume no run would take all of them from other executors.
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
	case one && failed.Run != p.bad:
		p.bad, p.short = failed.Run, leastPause
		return p.short, true
	case one:
		p.bad, p.short = failed.Run, min(max(2*p.short, leastPause), mostClaimPause)
		return p.short, true
	}
	p.next = min(max(2*p.next, claimPause), mostClaimPause)
	return p.next, true
}

// sleep waits for d plus up to half of it as jitter, so that waiting executors do not all ask at once, or until called
// is closed. It returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration, called <-chan struct{}) bool {
	d = max(d, leastPause)
	timer := time.NewTimer(d + mathrand.N(d/2+1)) //nolint:gosec // jitter
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-called:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// calls notifies claimers when the daemon asks them to claim at once. The zero value is ready.
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

// come signals a call of the daemon.
func (c *calls) come() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open != nil {
		close(c.open)
		c.open = nil
	}
}
