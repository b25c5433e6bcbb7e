package publisher

import (
	"cmp"
	"context"
	"fmt"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// Window bounds one batch of the pipelined mode.
type Window struct {
	// Events in a batch; 0 means 64. At most 1,000.
	Events int
	// Bytes in a batch; 0 means 1 MiB. An event larger than that travels alone.
	Bytes int
}

// queuedWindows bounds what waits to be sent, in windows.
const queuedWindows = 4

// pipeline is the queue of a run in pipelined mode. Under Run.mu, but for what is said otherwise.
type pipeline struct {
	window Window
	// head and writer are after what is queued.
	head   schema.Head
	writer schema.Writer
	queue  []*item
	bytes  int
	// busy: the sender has taken events that are not durable yet.
	busy bool
	// err is the first failure. It stays.
	err error
	// stopping: the sender ends once the queue is empty.
	stopping bool
	// changed is closed and made anew whenever any of the above changes.
	changed chan struct{}
	// cancel ends the sender's waits at once; done is closed when it has ended.
	cancel context.CancelFunc
	done   chan struct{}
}

// idle: the sender waits, and will go on waiting for as long as the run's turnstile is held.
func (p *pipeline) idle() bool { return len(p.queue) == 0 && !p.busy }

func (p *pipeline) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Pipelined switches the run to pipelined mode: events are queued and sent in the background, a window of them as
// one atomic batch (fewer than 16 one after the other), one under way at a time. Nothing is
// durable before [Run.Flush] returned nil. The first failure stays: all that follows is refused with it, and what was
// queued behind it is not published.
//
// The mode is for imports and for work that is repeatable from its last flush. [Turn.Tool] flushes by itself. Call
// [Run.Synchronous] to leave the mode; Close of the fleet does so, too.
func (r *Run) Pipelined(window Window) error {
	window.Events = cmp.Or(window.Events, DefaultWindowEvents)
	window.Bytes = cmp.Or(window.Bytes, DefaultWindowBytes)
	if window.Events < 1 || window.Events > eventlog.MaxBatch {
		return configError("Window.Events", window.Events, fmt.Sprintf("use 1 to %d", eventlog.MaxBatch))
	}
	if window.Bytes < 1 {
		return configError("Window.Bytes", window.Bytes, "use a number of bytes above 0")
	}
	r.turnstile <- struct{}{}
	defer r.leave()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.errLocked(); err != nil {
		return err
	}
	if r.pipe != nil {
		r.pipe.window = window
		return nil
	}
	f := r.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return fmt.Errorf("run %s: %w", r.id, ErrStopped)
	}
	r.pending = nil
	ctx, cancel := context.WithCancel(context.Background())
	p := &pipeline{
		window: window, head: r.head.Clone(), writer: r.writer, changed: make(chan struct{}), cancel: cancel, done: make(chan struct{}),
	}
	r.pipe = p
	f.pipelines[r] = struct{}{}
	go r.pump(ctx, p)
	return nil
}

// enqueue seals drafts behind what is queued. Its caller holds the turnstile.
func (r *Run) enqueue(ctx context.Context, drafts []draft) ([]schema.Verdict, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pipe
	for {
		if err := r.errLocked(); err != nil {
			return nil, err
		}
		if len(p.queue) == 0 || len(p.queue) < queuedWindows*p.window.Events && p.bytes < queuedWindows*p.window.Bytes {
			break
		}
		if err := r.await(ctx, p); err != nil {
			return nil, err
		}
	}
	all, err := opened(drafts, &p.head)
	if err != nil {
		return nil, err
	}
	items, next, err := r.seal(all, &p.head, &p.writer)
	if err != nil {
		return nil, err
	}
	p.head = *next
	for _, it := range items {
		it.next = nil // the plan goes on with it
		if err := p.writer.Commit(it.event); err != nil {
			return nil, fmt.Errorf("run %s: %w", r.id, err)
		}
		p.bytes += it.size
	}
	p.queue = append(p.queue, items...)
	p.notify()
	return verdicts(items[len(items)-len(drafts):]), nil
}

// await waits for a change of the pipeline, giving up Run.mu meanwhile.
func (r *Run) await(ctx context.Context, p *pipeline) error {
	changed := p.changed
	r.mu.Unlock()
	defer r.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("run %s: waiting for queued events: %w", r.id, context.Cause(ctx))
	}
}

// pump sends what is queued, until it is told to stop or fails.
func (r *Run) pump(ctx context.Context, p *pipeline) {
	defer close(p.done)
	for {
		window := r.nextWindow(ctx, p)
		if window == nil {
			return
		}
		err := r.deliver(ctx, window)
		r.mu.Lock()
		p.busy = false
		if err == nil {
			err = refusedOf(r.id, window)
		}
		if err != nil {
			p.err = err
			p.queue = nil
		}
		p.notify()
		r.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// refusedOf reports an event that was stored and that the fold refused after all, because a control event came between
// its planning and its place in the log.
func refusedOf(run string, items []*item) error {
	for _, it := range items {
		if it.verdict.Kind == schema.Rejected {
			return fmt.Errorf("run %s: event %s was stored behind an event of another and does not count: %w", run, it.event.ID, rejectedError(it))
		}
	}
	return nil
}

func (r *Run) nextWindow(ctx context.Context, p *pipeline) []*item {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(p.queue) == 0 {
		if p.stopping || r.await(ctx, p) != nil {
			return nil
		}
	}
	n, bytes := 0, 0
	for n < len(p.queue) {
		bytes += p.queue[n].size
		if n > 0 && (n == p.window.Events || bytes > p.window.Bytes) {
			break
		}
		n++
	}
	window := p.queue[:n:n]
	p.queue = p.queue[n:]
	for _, it := range window {
		p.bytes -= it.size
	}
	p.busy = true
	p.notify()
	return window
}

func (r *Run) isPipelined() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pipe != nil
}

// Flush waits until everything queued is durable. It returns the error that stopped the pipeline, or of ctx: then
// the events are still being sent. In synchronous mode there is nothing to wait for.
func (r *Run) Flush(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pipe
	for p != nil && p.err == nil && (len(p.queue) > 0 || p.busy) {
		if err := r.await(ctx, p); err != nil {
			return err
		}
	}
	return r.errLocked()
}

// Synchronous flushes and leaves the pipelined mode. On an error of the pipeline it is left, too, and the error
// returned; the handle's last durable event is then what Head says.
func (r *Run) Synchronous(ctx context.Context) error {
	if err := r.enter(ctx); err != nil {
		return err
	}
	defer r.leave()
	return r.stopPipeline(ctx)
}

// stopPipeline ends the sender once the queue is empty, or at once when ctx ends.
func (r *Run) stopPipeline(ctx context.Context) error {
	r.mu.Lock()
	p := r.pipe
	if p == nil {
		defer r.mu.Unlock()
		return r.dead
	}
	p.stopping = true
	p.notify()
	r.mu.Unlock()
	var err error
	select {
	case <-p.done:
	case <-ctx.Done():
		err = fmt.Errorf("run %s: stopped with events queued: %w", r.id, context.Cause(ctx))
	}
	p.cancel()
	<-p.done
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.err == nil && len(p.queue) > 0 {
		p.err = err
	}
	if r.pipe == p {
		r.pipe = nil
		r.fleet.mu.Lock()
		delete(r.fleet.pipelines, r)
		r.fleet.mu.Unlock()
	}
	return p.err
}

// settled is Flush for a call that goes on with the handle's state: in synchronous mode that may be unresolved, because
// repeating what is unresolved is what mends it.
func (r *Run) settled(ctx context.Context) error {
	r.mu.Lock()
	piped := r.pipe != nil
	dead := r.dead
	r.mu.Unlock()
	if piped {
		return r.Flush(ctx)
	}
	return dead
}

// publishNow publishes drafts and waits until they are durable, in either mode.
func (r *Run) publishNow(ctx context.Context, drafts ...draft) error {
	if _, err := r.publish(ctx, drafts...); err != nil {
		return err
	}
	return r.Flush(ctx)
}
