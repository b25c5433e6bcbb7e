package publisher

import (
	"context"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
)

// recording are outcomes of pure and idempotent calls on their way to the log while the loop continues.
type recording struct {
	group *errgroup.Group
	// failed ends when an outcome cannot be recorded; its cause is the error.
	failed context.Context //nolint:containedctx // the life of the group

	mu       sync.Mutex
	outcomes []*outcomeAhead
}

func newRecording() *recording {
	r := new(recording)
	r.group, r.failed = errgroup.WithContext(context.Background())
	return r
}

// add starts to record an outcome.
func (r *recording) add(ahead *outcomeAhead) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outcomes = append(r.outcomes, ahead)
	r.group.Go(ahead.record)
}

// ahead are the outcomes that may not be durable yet.
func (r *recording) ahead() []*outcomeAhead {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.outcomes)
}

// context returns a context that ends when an outcome cannot be recorded or the run is taken over, with the reason as
// its cause.
func (r *recording) context(parent context.Context, run *Run) (ctx context.Context, cancel context.CancelFunc) {
	parent, leave := run.Context(parent)
	ctx, fail := context.WithCancelCause(parent)
	stop := context.AfterFunc(r.failed, func() { fail(context.Cause(r.failed)) })
	return ctx, func() {
		stop()
		fail(nil)
		leave()
	}
}

// recorded waits until all outcomes are durable: the loop's later events come after them.
func (l *looping) recorded() error {
	err := l.recording.group.Wait()
	l.recording = newRecording()
	return err
}
