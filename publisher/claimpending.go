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
	// claimRetry is the wait before a claimed run that could not be resumed is retried; it doubles with each try, up to
	// mostClaimRetries times as long.
	claimRetry       = time.Second
	mostClaimRetries = 30
	// claimGiveBackAfter is the try from which on such a run is given back, with its head alone, after half a minute.
	// claimGiveUpAfter is the last try, after some ten minutes.
	claimGiveBackAfter = 6
	claimGiveUpAfter   = 24
	// keyLackedFor is how long runs with a key are not claimed after a run was given back because this executor lacks
	// that key.
	keyLackedFor = 10 * time.Minute
	// maxPending bounds the claims that are retried: at this number no new claim is begun.
	maxPending = 8
	// ownershipPatience bounds the query for the owner of a run.
	ownershipPatience = 2 * time.Second
)

// claim is a request for a run, kept until the run is active. The daemon may have taken the run over for this executor
// although the answer was lost. Because this process is alive, no other executor would get that run. So the request is
// kept, and a later claim repeats it.
type claim struct {
	id     string
	agents []string
	labels map[string]string
	// run that the daemon assigned; empty until the daemon answers.
	run string
	// epoch that the daemon opened for it.
	epoch schema.Epoch
	// tries to resume the run that failed while the daemon answered.
	tries int
	// back: the run was given back.
	back bool
	// due is the time of the next try, pause the wait before it.
	due   time.Time
	pause time.Duration
}

func (c *claim) serves(spec *ClaimSpec) bool {
	return slices.Equal(c.agents, spec.Agents) && maps.Equal(c.labels, spec.Labels)
}

// takeovers are the runs that this process asks for: claims to be retried, and takeovers in progress. It only keeps
// state and sends no request.
type takeovers struct {
	// retry is the wait before the first retry of a claim.
	retry time.Duration

	mu sync.Mutex
	// pending are claims without a result: neither an active run nor an answer that there is none.
	pending []claim
	// asked counts the takeovers in progress by run, and the claims in progress by id.
	asked map[string]int
	// lacked are the keys for which runs were given back, with the time.
	lacked map[string]time.Time
}

// lack notes keys that this executor does not have or cannot use.
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

// withoutKeys are the keys that claims exclude: those lacked recently. Older ones are tried again, because the key may
// be there by now.
func (t *takeovers) withoutKeys() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.lacked, func(_ string, at time.Time) bool { return time.Since(at) > keyLackedFor })
	return slices.Sorted(maps.Keys(t.lacked))
}

// take returns a claim for the spec: the pending one that is most overdue, or a new one. With pendingOnly it returns
// none if no pending claim is due. The claim is in progress until done is called.
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

// next is the index of the claim for the spec that is due first, or -1. Under mu.
func (t *takeovers) next(spec *ClaimSpec) int {
	next := -1
	for i := range t.pending {
		if t.pending[i].serves(spec) && (next < 0 || t.pending[i].due.Before(t.pending[next].due)) {
			next = i
		}
	}
	return next
}

// due returns when the next claim for the spec must be retried, if there is one.
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

// begin notes a takeover in progress, until done is called.
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

// want reports whether this process asks for a run, by its name or by the id of a claim or request.
func (t *takeovers) want(run, request string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.asked[run] > 0 || t.asked[request] > 0 ||
		slices.ContainsFunc(t.pending, func(c claim) bool { return c.run == run || c.id == request })
}

// claimFailed decides the fate of a claim after an error, and returns the error with it.
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
		c.tries++ // without an answer of the daemon the try proves nothing
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

// refusal reports whether the daemon refused the request, as opposed to being unable to answer.
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

// isOurs reports whether the claimed run still waits for this executor to resume it, and whether the daemon could
// answer. Without an answer it assumes yes.
func (f *Fleet) isOurs(ctx context.Context, c *claim) (ours, answered bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(ownershipPatience, f.cfg.RequestTimeout))
	defer cancel()
	head, err := f.Head(ctx, c.run)
	if err != nil {
		return !errors.Is(err, ErrRunNotFound) && !errors.Is(err, ErrRunErased), refusal(err)
	}
	// Any executor may claim a run that was orphaned or released since.
	return head.RequestID == c.id && !head.Status.Terminal() && !head.Status.Claimable() && head.Unattended == "", true
}

// giveBack releases a claimed run that cannot be resumed. It counts as a claim without progress, so that the run is not
// passed around for ever.
func (f *Fleet) giveBack(ctx context.Context, c *claim, spec *ClaimSpec, why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.cfg.RequestTimeout)
	defer cancel()
	resume := c.resumption(spec)
	run, err := f.takeHead(ctx, c.run, resume)
	if err == nil {
		reason := schema.InterruptedPreempted
		// A value that its key does not open counts as damaged: no other executor could read it either.
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

// resumption is the spec for resuming the claim's run.
func (c *claim) resumption(spec *ClaimSpec) ResumeSpec {
	return ResumeSpec{Reason: schema.TakeoverClaim, RequestID: c.id, AllowGaps: spec.AllowGaps, OnControl: spec.OnControl}
}
