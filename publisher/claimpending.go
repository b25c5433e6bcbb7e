package publisher

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
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
	// keyLackedFor is for how long no run is claimed for whose key another one was given back.
	keyLackedFor = 10 * time.Minute
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

// takeovers are the runs that this process asks for: claims that are tried again later, and takeovers that are under way. It is a
// memory alone, and asks nobody.
type takeovers struct {
	// retry is how soon a claim is tried again first.
	retry time.Duration

	mu sync.Mutex
	// pending are claims that were begun and came neither to a run in hand nor to nothing.
	pending []claim
	// asked counts the takeovers of a run, and the claims by their ids, that are under way.
	asked map[string]int
	// lacked are the keys that runs were given back for, with the time.
	lacked map[string]time.Time
}

// lack notes keys that this executor does not have, or cannot use.
func (t *takeovers) lack(keys []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lacked == nil {
		t.lacked = make(map[string]time.Time)
	}
	for _, key := range keys {
		if len(t.lacked) < schema.MaxWithoutKeys {
			t.lacked[key] = time.Now()
		}
	}
}

// withoutKeys are the keys that claims leave out: those lacked of late, as they may be there by now.
func (t *takeovers) withoutKeys() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.lacked, func(_ string, at time.Time) bool { return time.Since(at) > keyLackedFor })
	return slices.Sorted(maps.Keys(t.lacked))
}

// take returns a claim for the spec: the one that has been due for longest of those that were not brought to their
// end, or a new one. There is none when only a pending one is wanted, and none is due. It is under way until done is called.
func (t *takeovers) take(spec *ClaimSpec, pendingOnly bool) (c claim, done func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := t.next(spec)
	full := len(t.pending) >= maxPending && !pendingOnly
	switch {
	case i >= 0 && (full || !t.pending[i].due.After(time.Now())):
		c = t.pending[i]
		t.pending = slices.Delete(t.pending, i, i+1)
	case pendingOnly:
		return claim{}, nil, false
	default:
		c = claim{id: rand.Text(), agents: slices.Clone(spec.Agents), labels: maps.Clone(spec.Labels)}
	}
	t.asked[c.id]++
	return c, func() { t.end(c.id) }, true
}

// next is the place of the claim for the spec that is due first, -1 for none. Under mu.
func (t *takeovers) next(spec *ClaimSpec) int {
	next := -1
	for i := range t.pending {
		if t.pending[i].serves(spec) && (next < 0 || t.pending[i].due.Before(t.pending[next].due)) {
			next = i
		}
	}
	return next
}

// due says when a claim for the spec is to be tried again, if there is one.
func (t *takeovers) due(spec *ClaimSpec) (due time.Time, pending bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := t.next(spec)
	if i < 0 {
		return time.Time{}, false
	}
	return t.pending[i].due, true
}

// postpone keeps a claim for a later try.
func (t *takeovers) postpone(c *claim, least, most time.Duration) {
	c.pause = min(max(2*c.pause, least), most)
	c.due = time.Now().Add(c.pause)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending = append(t.pending, *c)
}

// begin notes that a run is being taken over, until done is called.
func (t *takeovers) begin(run string) (done func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked[run]++
	return func() { t.end(run) }
}

func (t *takeovers) end(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asked[id]--; t.asked[id] == 0 {
		delete(t.asked, id)
	}
}

// want reports whether a run is asked for: by its name, or by the claim or request with that id.
func (t *takeovers) want(run, request string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.asked[run] > 0 || t.asked[request] > 0 ||
		slices.ContainsFunc(t.pending, func(c claim) bool { return c.run == run || c.id == request })
}

// claimFailed decides what becomes of a claim after an error, and returns the error with it.
func (f *Fleet) claimFailed(ctx context.Context, c *claim, spec *ClaimSpec, err error) error {
	switch {
	case errors.Is(err, ErrNothing), errors.Is(err, ErrStopped):
		return err
	case c.run == "":
		if !refusal(err) {
			f.takeovers.postpone(c, claimPause, mostClaimPause)
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
		f.presence.abandon(schema.GivenUp{Run: c.run, Epoch: c.epoch})
		return failed
	}
	f.takeovers.postpone(c, f.takeovers.retry, mostClaimRetries*f.takeovers.retry)
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
		reason := schema.InterruptedPreempted
		// A value that its key does not open is damaged, as far as can be told, and counts: the next executor will not read it either.
		if unreadable, ok := errors.AsType[*unreadableError](why); ok && !errors.Is(why, ErrNotDecrypted) {
			reason = schema.InterruptedUnreadable
			f.takeovers.lack(unreadable.keys)
		}
		err = run.publishLast(ctx, fmt.Errorf("run %s: %w", run.id, why), draft{data: &schema.RunInterruptedData{Reason: reason}})
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
