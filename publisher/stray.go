package publisher

import (
	"context"
	"errors"
	"sync"
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
// have the runs of an instance that its caller named.
type strays struct {
	// after is how long such a run is left to whoever may be about to take it in hand; 0 when none is given up.
	after time.Duration
	// look looks at a run whose time has come, and reports whether it must be looked at once more.
	look func(ctx context.Context, run string) (again bool)

	mu sync.Mutex
	// due is when a run is looked at.
	due map[string]time.Time
	// watching: a goroutine looks at what comes due.
	watching bool
}

// strayAfter is how long a run may be in nobody's hand. given is the configuration as the caller gave it, and filled with its defaults
// filled in.
func strayAfter(given, filled *Config) time.Duration {
	if given.Instance == "" && filled.Instance != "" {
		return 2 * filled.RequestTimeout
	}
	return 0
}

// note notes that the log gives a run to this process, or perhaps to another of its name. It reports whether the caller must begin to
// watch.
func (s *strays) note(run string) (watch bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.after == 0 || len(s.due) >= maxStrays {
		return false
	}
	s.due[run] = time.Now().Add(s.after)
	watch = !s.watching
	s.watching = true
	return watch
}

// found notes that a run is in hand.
func (s *strays) found(run string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.due, run)
}

// next returns the run that comes due first, or ends the watching when there is none.
func (s *strays) next() (run string, due time.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, at := range s.due {
		if !ok || at.Before(due) {
			run, due, ok = id, at, true
		}
	}
	s.watching = ok
	return run, due, ok
}

// watch looks at what comes due, one after the other, until there is nothing more or ctx ends.
func (s *strays) watch(ctx context.Context) {
	for {
		run, due, ok := s.next()
		if !ok || pause.For(ctx, time.Until(due)) != nil {
			return
		}
		if s.take(run, due) && s.look(ctx, run) && ctx.Err() == nil {
			s.note(run) // this goroutine watches
		}
	}
}

// take takes a run out of those that are watched. It reports false when it was found meanwhile, or given once more.
func (s *strays) take(run string, due time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, there := s.due[run]; !there || at.After(due) {
		return false
	}
	delete(s.due, run)
	return true
}

// mayStray watches a run that the log gives to this process, or perhaps to another of its name.
func (f *Fleet) mayStray(run string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.stopped && f.strays.note(run) {
		f.background.Go(func() { f.strays.watch(f.life) })
	}
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
	given := f.presence.abandonUnless(schema.GivenUp{Run: run, Epoch: head.Epoch}, func() bool {
		return f.takeovers.want(run, head.RequestID) || len(f.hand.of(run)) > 0
	})
	if !given {
		return true // a handle of an earlier epoch learns that it is fenced, and goes
	}
	f.cfg.Logger.Warn().Str("run", run).Uint32("epoch", uint32(head.Epoch)).Str("executor", f.cfg.Executor).
		Msg("run was given to this process by a request that nobody waits for, given up")
	return false
}
