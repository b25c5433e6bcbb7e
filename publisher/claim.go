package publisher

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nats-io/nuid"

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

// claim is a request for a run, until the run is in hand. The daemon may have taken the run over in the name of this
// executor although no answer came; as this process lives on, nobody else would take it. So the request is not
// forgotten: a later claim repeats it.
type claim struct {
	id     string
	agents []string
	labels map[string]string
	// run that the daemon gave; empty as long as it did not answer.
	run string
	// due is when it is tried again, pause how long it waited before.
	due   time.Time
	pause time.Duration
}

// Claim asks once for a run that has no executor, and takes it over: a run that was left, whose executor fell silent,
// or that waited and was answered. Which one is the daemon's choice: runs of this executor's name first, then the one
// that has waited for longest.
//
// It returns [*NothingError] when there is none now, [ErrIncomplete] as spec says, [ErrUnavailable], [ErrNoService], and
// [ErrConflict] when the run was taken from this executor in this moment.
func (f *Fleet) Claim(ctx context.Context, spec ClaimSpec) (*Run, error) {
	if len(spec.Agents) == 0 && f.cfg.Agent != "" {
		spec.Agents = []string{f.cfg.Agent}
	}
	for _, agent := range spec.Agents {
		if err := schema.CheckName("agent", agent); err != nil {
			return nil, fmt.Errorf("claim: %w: %w", ErrConfig, err)
		}
	}
	if err := f.appear(); err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	c := f.claimOf(spec)
	run, err := f.claim(ctx, &c, spec)
	if err != nil && f.mayBeOurs(ctx, &c, err) {
		c.pause = min(max(2*c.pause, claimPause), mostClaimPause)
		c.due = time.Now().Add(c.pause)
		f.mu.Lock()
		f.claims = append(f.claims, c)
		f.mu.Unlock()
	}
	return run, err
}

// claimOf returns a claim for the spec: one that was not brought to its end, or a new one.
func (f *Fleet) claimOf(spec ClaimSpec) claim {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	i := slices.IndexFunc(f.claims, func(c claim) bool {
		return slices.Equal(c.agents, spec.Agents) && maps.Equal(c.labels, spec.Labels) && !c.due.After(now)
	})
	if i < 0 {
		return claim{id: nuid.Next(), agents: slices.Clone(spec.Agents), labels: maps.Clone(spec.Labels)}
	}
	c := f.claims[i]
	f.claims = slices.Delete(f.claims, i, i+1)
	return c
}

func (f *Fleet) claim(ctx context.Context, c *claim, spec ClaimSpec) (*Run, error) {
	if c.run == "" {
		reply, err := askOne[schema.ClaimReply](ctx, f, schema.VerbClaim, "", &schema.ClaimRequest{
			Executor: f.cfg.Executor, Instance: f.cfg.Instance, RequestID: c.id, Agents: spec.Agents, Labels: spec.Labels,
		})
		if err != nil {
			return nil, err
		}
		if reply.Run == "" {
			return nil, &NothingError{RetryAfter: time.Duration(max(reply.RetryAfterMS, 0)) * time.Millisecond, Claimable: reply.Claimable}
		}
		c.run = reply.Run
	}
	// The run is this executor's now: the caller's end must not leave it lying.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.cfg.RequestTimeout)
	defer cancel()
	resume := ResumeSpec{Reason: "claim", RequestID: c.id, AllowGaps: spec.AllowGaps, HeadOnly: spec.HeadOnly, OnControl: spec.OnControl}
	run, err := f.resume(ctx, c.run, resume)
	if incomplete, ok := errors.AsType[*IncompleteError](err); ok {
		return nil, f.giveBack(ctx, resume, incomplete)
	}
	return run, err
}

// giveBack lets go of a run that was claimed and cannot be gone on with. It counts as a claim without progress, so that
// the run is not passed around for ever.
func (f *Fleet) giveBack(ctx context.Context, resume ResumeSpec, why *IncompleteError) error {
	resume.AllowGaps, resume.HeadOnly, resume.OnControl = true, true, nil
	run, err := f.resume(ctx, why.Run, resume)
	if err == nil {
		err = run.publishLast(ctx, fmt.Errorf("run %s: %w", run.id, why), draft{data: &schema.RunInterruptedData{Reason: "preempted"}})
	}
	if err != nil {
		return fmt.Errorf("giving run %s back, which misses events: %w", why.Run, err)
	}
	return why
}

// mayBeOurs reports whether, after an error, the daemon may have given this executor a run that it has not in hand.
func (f *Fleet) mayBeOurs(ctx context.Context, c *claim, err error) bool {
	said, refused := errors.AsType[*schema.ServiceError](err)
	if refused {
		switch said.Code {
		case schema.CodeUnavailable, schema.CodeOverloaded, schema.CodeInternal:
			refused = false // it could not say
		default:
		}
	}
	_, givenBack := errors.AsType[*IncompleteError](err)
	switch {
	case errors.Is(err, ErrNothing), errors.Is(err, ErrStopped), givenBack:
		return false
	case c.run == "", !refused:
		return !refused
	}
	// Taken by somebody else, or is it still waiting for this executor?
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.cfg.RequestTimeout)
	defer cancel()
	head, err := f.Head(ctx, c.run)
	if err != nil {
		return !errors.Is(err, ErrRunNotFound)
	}
	return head.RequestID == c.id && !head.Status.Terminal()
}

// Claims yields run after run, as long as its consumer goes on and ctx has not ended. When there is nothing to claim it
// waits for as long as the daemon says, with jitter. Other errors are yielded, and the next claim follows after a pause;
// [ErrStopped] and [ErrConfig] are the last. What was yielded must be driven or let go by the consumer.
func (f *Fleet) Claims(ctx context.Context, spec ClaimSpec) iter.Seq2[*Run, error] {
	return func(yield func(*Run, error) bool) {
		var pause claimPauses
		for ctx.Err() == nil {
			run, err := f.Claim(ctx, spec)
			if err != nil && ctx.Err() != nil {
				return
			}
			if !errors.Is(err, ErrNothing) && !yield(run, err) || errors.Is(err, ErrStopped) || errors.Is(err, ErrConfig) {
				return
			}
			if !pause.after(ctx, err) {
				return
			}
		}
	}
}

// claimPauses paces claims. The zero value is ready.
type claimPauses struct{ next time.Duration }

// after waits for as long as is due after a claim: not at all after one that brought a run, for as long as the daemon
// says when there was none, longer each time after errors. It returns false when ctx ends first.
func (p *claimPauses) after(ctx context.Context, err error) bool {
	nothing, none := errors.AsType[*NothingError](err)
	switch {
	case err == nil:
		p.next = 0
		return true
	case none:
		p.next = 0
		return sleep(ctx, nothing.RetryAfter)
	}
	p.next = min(max(2*p.next, claimPause), mostClaimPause)
	return sleep(ctx, p.next)
}

// sleep waits for d and up to half as long again, so that those who wait for the same do not come together. It returns
// false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	d = max(d, leastPause)
	timer := time.NewTimer(d + rand.N(d/2+1)) //nolint:gosec // jitter
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
