package publisher

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/schema"
)

// maxUnclaimed bounds the runs that are watched at once.
const maxUnclaimed = 1024

// unclaimedRuns are runs assigned to this process that no caller is tracking. A request without an answer is sent again. Its
// first copy may lie on a stopped replica or a broken connection until long after the second one was answered. The
// daemon that reads it then assigns a run for which no caller waits; and because this process is alive, no other
// executor would get that run.
//
// A process with a generated instance, which is the normal case, reports such a run as abandoned in its heartbeats. If
// the caller named the instance, another handle may have its runs.
type unclaimedRuns struct {
	// after is how long a caller has to resume such a run; 0 means that none is abandoned.
	after time.Duration
	// look checks a run that is due, and reports whether it must be checked again.
	look func(ctx context.Context, run string) (again bool)

	mu sync.Mutex
	// due is when a run is checked.
	due map[string]time.Time
	// watching: a goroutine checks runs as they become due.
	watching bool
}

// unclaimedAfter is how long a run may be untracked. given is the caller's configuration, filled the same with defaults.
func unclaimedAfter(given, filled *Config) time.Duration {
	if given.Instance == "" && filled.Instance != "" {
		return 2 * filled.RequestTimeout
	}
	return 0
}

// note notes that the log assigns a run to this process, or perhaps to another one of its name. It reports whether the
// caller must start to watch.
func (u *unclaimedRuns) note(run string) (watch bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.after == 0 || len(u.due) >= maxUnclaimed {
		return false
	}
	u.due[run] = time.Now().Add(u.after)
	watch = !u.watching
	u.watching = true
	return watch
}

// found notes that a run is active.
func (u *unclaimedRuns) found(run string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.due, run)
}

// next returns the run that is due first, or stops watching if there is none.
func (u *unclaimedRuns) next() (run string, due time.Time, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for id, at := range u.due {
		if !ok || at.Before(due) {
			run, due, ok = id, at, true
		}
	}
	u.watching = ok
	return run, due, ok
}

// watch checks runs as they become due, one after the other, until none is left or ctx ends.
func (u *unclaimedRuns) watch(ctx context.Context) {
	for {
		run, due, ok := u.next()
		if !ok || pause.For(ctx, time.Until(due)) != nil {
			return
		}
		if u.take(run, due) && u.look(ctx, run) && ctx.Err() == nil {
			u.note(run) // this goroutine keeps watching
		}
	}
}

// take removes a run from the watched ones. It returns false if the run was found meanwhile, or noted again.
func (u *unclaimedRuns) take(run string, due time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if at, there := u.due[run]; !there || at.After(due) {
		return false
	}
	delete(u.due, run)
	return true
}

// watchUnclaimed watches a run that the log assigns to this process, or perhaps to another one of its name.
func (f *Fleet) watchUnclaimed(run string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.stopped && f.unclaimed.note(run) {
		f.background.Go(func() { f.unclaimed.watch(f.life) })
	}
}

// stillAsked checks a run that is due, and abandons it if it is assigned to this process and no caller asks for it. It
// returns true if the run must be checked again.
func (f *Fleet) stillAsked(ctx context.Context, run string) bool {
	head, err := f.Head(ctx, run)
	switch {
	case errors.Is(err, ErrRunNotFound), errors.Is(err, ErrRunErased):
		return false
	case err != nil:
		return true
	case head.Executor != f.cfg.Executor, head.Instance != f.cfg.Instance, head.Status.Terminal(), head.Status.Claimable(), head.Unattended != "":
		return false // not assigned, or assigned to another process
	}
	given := f.presence.abandonUnless(schema.GivenUp{Run: run, Epoch: head.Epoch}, func() bool {
		return f.takeovers.want(run, head.RequestID) || len(f.hand.of(run)) > 0
	})
	if !given {
		return true // a handle of an earlier epoch will find out that it is fenced
	}
	f.cfg.Logger.Warn().Str("run", run).Uint32("epoch", uint32(head.Epoch)).Str("executor", f.cfg.Executor).
		Msg("abandoned run that no caller is waiting for")
	return false
}
