package publisher

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/waymarkio/waymark/schema"
)

const (
	// claimRetry is how soon a claimed run that could not be taken in hand is tried again; the wait doubles with each try,
	// up to mostClaimRetries times as long.
	claimRetry       = time.Second
	mostClaimRetries = 30
	// claimGiveBackAfter is the try from which on such a run is given back, with its head alone: by then half a minute
	// has gone. claimGiveUpAfter is the last try, after some ten minutes.
	claimGiveBackAfter = 6
	claimGiveUpAfter   = 24
	// maxPending bounds the claims that are tried again: with so many no new one is begun.
	maxPending = 8
	// ownershipPatience bounds the question who has a run.
	ownershipPatience = 2 * time.Second
)

// claim is a request for a run, until the run is in hand. The daemon may have taken the run over in the name of this
// executor although no answer came; as this process lives on, nobody else would take it. So the request is not
// forgotten: a later claim repeats it.
type claim struct {
	id     string
	agents []string
	labels map[string]string
	// run that the daemon gave; empty as long as it did not answer.
	run string
	// epoch that the daemon opened for it.
	epoch schema.Epoch
	// tries to take the run in hand that failed although the daemon answered.
	tries int
	// back: the run was given back.
	back bool
	// due is when it is tried again, pause how long it waited before.
	due   time.Time
	pause time.Duration
}

func (c *claim) serves(spec *ClaimSpec) bool {
	return slices.Equal(c.agents, spec.Agents) && maps.Equal(c.labels, spec.Labels)
}

// claimOf returns a claim for the spec: the one that has been due for longest of those that were not brought to their
// end, or a new one. There is none when only a pending one is wanted, and none is due.
func (f *Fleet) claimOf(spec *ClaimSpec, pendingOnly bool) (claim, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := f.nextPending(spec)
	full := len(f.claims) >= maxPending && !pendingOnly
	if i >= 0 && (full || !f.claims[i].due.After(time.Now())) {
		c := f.claims[i]
		f.claims = slices.Delete(f.claims, i, i+1)
		return c, true
	}
	return claim{id: rand.Text(), agents: slices.Clone(spec.Agents), labels: maps.Clone(spec.Labels)}, !pendingOnly
}

// nextPending is the place of the claim for the spec that is due first, -1 for none. Under Fleet.mu.
func (f *Fleet) nextPending(spec *ClaimSpec) int {
	next := -1
	for i := range f.claims {
		if f.claims[i].serves(spec) && (next < 0 || f.claims[i].due.Before(f.claims[next].due)) {
			next = i
		}
	}
	return next
}

// pendingDue says when a claim for the spec is to be tried again, if there is one.
func (f *Fleet) pendingDue(spec *ClaimSpec) (due time.Time, pending bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := f.nextPending(spec)
	if i < 0 {
		return time.Time{}, false
	}
	return f.claims[i].due, true
}

// postpone keeps a claim for a later try.
func (f *Fleet) postpone(c *claim, least, most time.Duration) {
	c.pause = min(max(2*c.pause, least), most)
	c.due = time.Now().Add(c.pause)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.claims = append(f.claims, *c)
}

// claimFailed decides what becomes of a claim after an error, and returns the error with it.
func (f *Fleet) claimFailed(ctx context.Context, c *claim, spec *ClaimSpec, err error) error {
	switch {
	case errors.Is(err, ErrNothing), errors.Is(err, ErrStopped):
		return err
	case c.run == "":
		if !refusal(err) {
			f.postpone(c, claimPause, mostClaimPause)
		}
		return err
	}
	failed := &ClaimedRunError{Run: c.run, Fate: ClaimGivenBack, Err: err}
	if c.back {
		return failed
	}
	ours, answered := f.isOurs(ctx, c)
	if !ours {
		failed.Fate = ClaimGone
		return failed
	}
	if answered {
		c.tries++ // while the daemon is away nothing is known about the run
	}
	if c.tries >= claimGiveBackAfter {
		back := f.giveBack(ctx, c, spec, err)
		if back == nil {
			return failed
		}
		failed.Err = errors.Join(err, back)
	}
	if c.tries >= claimGiveUpAfter {
		failed.Fate = ClaimLeft
		f.abandon(schema.GivenUp{Run: c.run, Epoch: c.epoch})
		return failed
	}
	f.postpone(c, f.claimRetry, mostClaimRetries*f.claimRetry)
	failed.Fate, failed.RetryAfter = ClaimRetried, c.pause
	return failed
}

// refusal reports whether the daemon said no, and not merely that it could not say.
func refusal(err error) bool {
	said, ok := errors.AsType[*schema.ServiceError](err)
	if !ok {
		return false
	}
	switch said.Code {
	case schema.CodeUnavailable, schema.CodeOverloaded, schema.CodeInternal:
		return false
	default:
		return true
	}
}

// isOurs reports whether a run that was given for the claim still waits for this executor to take it in hand, and whether
// the daemon could say. What it could not say is taken for yes.
func (f *Fleet) isOurs(ctx context.Context, c *claim) (ours, answered bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(ownershipPatience, f.cfg.RequestTimeout))
	defer cancel()
	head, err := f.Head(ctx, c.run)
	if err != nil {
		return !errors.Is(err, ErrRunNotFound) && !errors.Is(err, ErrRunErased), refusal(err)
	}
	// What was orphaned or let go since, everybody may claim.
	return head.RequestID == c.id && !head.Status.Terminal() && !head.Status.Claimable() && head.Unattended == "", true
}

// giveBack lets go of a run that was claimed and cannot be gone on with. It counts as a claim without progress, so that
// the run is not passed around for ever.
func (f *Fleet) giveBack(ctx context.Context, c *claim, spec *ClaimSpec, why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.cfg.RequestTimeout)
	defer cancel()
	resume := c.resumption(spec)
	resume.AllowGaps, resume.HeadOnly, resume.OnControl = true, true, nil
	run, err := f.resume(ctx, c.run, resume)
	if err == nil {
		err = run.publishLast(ctx, fmt.Errorf("run %s: %w", run.id, why), draft{data: &schema.RunInterruptedData{Reason: schema.InterruptedPreempted}})
	}
	if err != nil {
		return fmt.Errorf("giving run %s back: %w", c.run, err)
	}
	c.back = true
	return nil
}

// resumption is how the claim's run is taken in hand.
func (c *claim) resumption(spec *ClaimSpec) ResumeSpec {
	return ResumeSpec{Reason: schema.TakeoverClaim, RequestID: c.id, AllowGaps: spec.AllowGaps, HeadOnly: spec.HeadOnly, OnControl: spec.OnControl}
}
