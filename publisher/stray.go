package publisher

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/schema"
)

// maxStrays bounds the runs that are watched because they may be in nobody's hand.
const maxStrays = 1024

// strays are runs that the log gives to this process and that nobody in it may know of. A request that had no answer is
// sent again, and its first copy may lie with a replica that was stopped, or on a line that was, until long after the
// second was answered. Whoever reads it then gives this process a run that nobody waits for; and as the process lives,
// nobody else would be given it.
//
// A process that gave itself an instance of its own, as most do, gives such a run up with its heartbeats. Another handle may
// have the runs of an instance that its caller named. Under Fleet.mu, but for after.
type strays struct {
	// after is how long such a run is left to whoever may be about to take it in hand; 0 when none is given up.
	after time.Duration
	// due is when a run is looked at.
	due map[string]time.Time
	// asked counts the takeovers of a run, and the claims by their ids, that are under way.
	asked map[string]int
	// watching: a goroutine looks at what comes due.
	watching bool
}

// newStrays returns none. given is the configuration as the caller gave it, and filled with its defaults filled in.
func newStrays(given, filled *Config) strays {
	s := strays{due: make(map[string]time.Time), asked: make(map[string]int)}
	if given.Instance == "" && filled.Instance != "" {
		s.after = 2 * filled.RequestTimeout
	}
	return s
}

// mayStray notes that the log gives a run to this process, or perhaps to another of its name.
func (f *Fleet) mayStray(run string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &f.strays
	if f.stopped || s.after == 0 || len(s.due) >= maxStrays {
		return
	}
	s.due[run] = time.Now().Add(s.after)
	if !s.watching {
		s.watching = true
		f.background.Go(func() { f.watchStrays(f.life) })
	}
}

// found notes that a run is in hand: what was given up of it in that epoch is taken back. Under Run.mu.
func (f *Fleet) found(run string, epoch schema.Epoch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.strays.due, run)
	f.givenUp = slices.DeleteFunc(f.givenUp, func(g schema.GivenUp) bool { return g == schema.GivenUp{Run: run, Epoch: epoch} })
}

// asking notes that a run, or by a claim with that id any run, is being taken over, until the function that it returns is
// called.
func (f *Fleet) asking(id string) (done func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.strays.asked[id]++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.strays.asked[id]--; f.strays.asked[id] == 0 {
			delete(f.strays.asked, id)
		}
	}
}

// nextStray returns the run that comes due first, or ends the watching when there is none.
func (f *Fleet) nextStray() (run string, due time.Time, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, at := range f.strays.due {
		if !ok || at.Before(due) {
			run, due, ok = id, at, true
		}
	}
	f.strays.watching = ok
	return run, due, ok
}

// watchStrays looks at what comes due, one after the other, until there is nothing more or ctx ends.
func (f *Fleet) watchStrays(ctx context.Context) {
	for {
		run, due, ok := f.nextStray()
		if !ok || pause.For(ctx, time.Until(due)) != nil {
			return
		}
		if f.takeStray(run, due) && f.stillAsked(ctx, run) {
			f.mayStray(run)
		}
	}
}

// takeStray takes a run out of those that are watched. It reports false when it was found meanwhile, or given once more.
func (f *Fleet) takeStray(run string, due time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at, there := f.strays.due[run]; !there || at.After(due) {
		return false
	}
	delete(f.strays.due, run)
	return true
}

// stillAsked looks at a run whose time has come, and gives it up if it is this process's and nobody in it asks for it. It
// reports true when the run must be looked at once more.
func (f *Fleet) stillAsked(ctx context.Context, run string) bool {
	head, err := f.Head(ctx, run)
	switch {
	case errors.Is(err, ErrRunNotFound), errors.Is(err, ErrRunErased):
		return false
	case err != nil:
		return true
	case head.Executor != f.cfg.Executor, head.Instance != f.cfg.Instance, head.Status.Terminal(), head.Status.Claimable(), head.Unattended != "":
		return false // nobody's, or another's
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	pending := slices.ContainsFunc(f.claims, func(c claim) bool { return c.run == run || c.id == head.RequestID })
	if pending || f.strays.asked[run] > 0 || f.strays.asked[head.RequestID] > 0 || len(f.hand.of(run)) > 0 {
		return true // a handle of an earlier epoch learns that it is fenced, and goes
	}
	f.giveUp(schema.GivenUp{Run: run, Epoch: head.Epoch})
	f.cfg.Logger.Warn().Str("run", run).Uint32("epoch", uint32(head.Epoch)).Str("executor", f.cfg.Executor).
		Msg("run was given to this process by a request that nobody waits for, given up")
	return false
}
