package publisher

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// Window bounds a batch in pipelined mode.
type Window struct {
	// Events in a batch; 0 means 64. The maximum is 1,000.
	Events int
	// Bytes in a batch; 0 means 1 MiB. A larger event is sent alone.
	Bytes int
}

// queuedWindows bounds the queue, in windows.
const queuedWindows = 4

// pipeline is the queue of a run in pipelined mode, with the goroutine that sends the queued events. It handles sealed
// events and does not know their run.
type pipeline struct {
	run string
	// send makes a window of events durable.
	send func(ctx context.Context, window []*item) error
	// cancel ends the sender's waits at once. done is closed when the sender has ended.
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	window Window
	queue  []*item
	bytes  int
	// busy: the sender has taken events that are not durable yet.
	busy bool
	// err is the first failure; later ones do not replace it.
	err error
	// stopping: the sender ends once the queue is empty.
	stopping bool
	// changed is closed and replaced whenever a field above changes.
	changed chan struct{}
}

// startPipeline starts the sender.
func startPipeline(run string, window Window, send func(context.Context, []*item) error) *pipeline {
	ctx, cancel := context.WithCancel(context.Background())
	p := &pipeline{run: run, send: send, window: window, changed: make(chan struct{}), cancel: cancel, done: make(chan struct{})}
	go p.pump(ctx)
	return p
}

func (p *pipeline) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// await waits for a change, and releases mu meanwhile.
func (p *pipeline) await(ctx context.Context) error {
	changed := p.changed
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("run %s: waiting for queued events: %w", p.run, context.Cause(ctx))
	}
}

// resize changes the window.
func (p *pipeline) resize(window Window) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.window = window
}

func (p *pipeline) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// idle reports that the sender waits for events.
func (p *pipeline) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.queue) == 0 && !p.busy
}

// room waits until the queue has space for more events.
func (p *pipeline) room(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.err != nil {
			return p.err
		}
		if len(p.queue) == 0 || len(p.queue) < queuedWindows*p.window.Events && p.bytes < queuedWindows*p.window.Bytes {
			return nil
		}
		if err := p.await(ctx); err != nil {
			return err
		}
	}
}

// add queues events. Events added while the sender ends are not sent.
func (p *pipeline) add(items []*item) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.err != nil:
		return p.err
	case p.stopping:
		return fmt.Errorf("run %s: %w", p.run, ErrStopped)
	}
	for _, it := range items {
		p.bytes += it.size
	}
	p.queue = append(p.queue, items...)
	p.notify()
	return nil
}

// flush waits until all queued events are durable, or the pipeline has failed.
func (p *pipeline) flush(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.err == nil && (len(p.queue) > 0 || p.busy) {
		if err := p.await(ctx); err != nil {
			return err
		}
	}
	return p.err
}

// pump sends the queued events, until it is stopped or fails.
func (p *pipeline) pump(ctx context.Context) {
	defer close(p.done)
	for {
		window := p.next(ctx)
		if window == nil {
			return
		}
		err := p.send(ctx, window)
		p.mu.Lock()
		p.busy = false
		if err == nil {
			err = refusedOf(p.run, window)
		}
		if err != nil {
			p.err = err
			p.queue = nil
		}
		p.notify()
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// next waits for events and returns a window of them, or nil when the sender must end.
func (p *pipeline) next(ctx context.Context) []*item {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.queue) == 0 {
		if p.stopping || p.await(ctx) != nil {
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

// stop ends the sender once the queue is empty, or at once when ctx ends. It returns the error if events were not sent.
func (p *pipeline) stop(ctx context.Context) error {
	p.mu.Lock()
	p.stopping = true
	p.notify()
	p.mu.Unlock()
	var err error
	select {
	case <-p.done:
	case <-ctx.Done():
		err = fmt.Errorf("run %s: stopped with events queued: %w", p.run, context.Cause(ctx))
	}
	p.cancel()
	<-p.done
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil && len(p.queue) > 0 {
		p.err = err
	}
	return p.err
}

// refusedOf reports a stored event that the fold refused after all, because a control event came between its planning
// and its storage.
func refusedOf(run string, items []*item) error {
	for _, it := range items {
		if it.verdict.Kind == schema.Rejected {
			return fmt.Errorf("run %s: event %s was stored after another writer's event and has no effect: %w", run, it.event.ID, rejectedError(it))
		}
	}
	return nil
}

// Pipelined switches the run to pipelined mode: events are queued and sent in the background, one window at a time,
// each window as one atomic batch (fewer than 16 events one after the other). An event is durable only after
// [Run.Flush] returned nil. The first failure is final: later events are refused with it, and the events queued after
// it are not published.
//
// Use the mode for imports, and for work that can be repeated from its last flush. [Turn.Tool] flushes by itself.
// [Run.Synchronous] leaves the mode; Close of the fleet does so, too.
func (r *Run) Pipelined(window Window) error {
	window.Events = cmp.Or(window.Events, DefaultWindowEvents)
	window.Bytes = cmp.Or(window.Bytes, DefaultWindowBytes)
	if window.Events < 1 || window.Events > eventlog.MaxBatch {
		return configError("Window.Events", window.Events, fmt.Sprintf("use 1 to %d", eventlog.MaxBatch))
	}
	if window.Bytes < 1 {
		return configError("Window.Bytes", window.Bytes, "use a number of bytes above 0")
	}
	r.slot.held <- struct{}{}
	defer r.slot.leave()
	if err := r.Err(); err != nil {
		return err
	}
	if p := r.pipe.Load(); p != nil {
		p.resize(window)
		return nil
	}
	f := r.fleet
	r.ledger.beginPlan()
	f.mu.Lock()
	stopped := f.stopped
	if !stopped {
		r.pipe.Store(startPipeline(r.id, window, r.recorder.deliver))
		f.pipelines[r] = struct{}{}
	}
	f.mu.Unlock()
	if stopped {
		r.ledger.endPlan()
		return fmt.Errorf("run %s: %w", r.id, ErrStopped)
	}
	return nil
}

// enqueue seals drafts after the queued events. Its caller holds the slot.
func (r *Run) enqueue(ctx context.Context, p *pipeline, drafts []draft) ([]schema.Verdict, error) {
	if err := r.ledger.err(); err != nil {
		return nil, err
	}
	if err := p.room(ctx); err != nil {
		return nil, err
	}
	items, err := r.ledger.sealPlanned(drafts)
	if err != nil {
		return nil, err
	}
	planned := verdicts(items[len(items)-len(drafts):]) // once queued, the items belong to the sender
	return planned, p.add(items)
}

// Flush waits until all queued events are durable. It returns the error that stopped the pipeline, or that of ctx: then
// the events are still being sent. In synchronous mode it returns at once.
func (r *Run) Flush(ctx context.Context) error {
	if p := r.pipe.Load(); p != nil {
		if err := p.flush(ctx); err != nil {
			return cmp.Or(r.ledger.err(), err)
		}
	}
	return r.ledger.err()
}

// Synchronous flushes and leaves the pipelined mode. It leaves the mode even if the pipeline failed, and returns that
// error; Head then ends with the handle's last durable event.
func (r *Run) Synchronous(ctx context.Context) error {
	if err := r.slot.enter(ctx); err != nil {
		return err
	}
	defer r.slot.leave()
	return r.stopPipeline(ctx)
}

// stopPipeline leaves the pipelined mode, if the run is in it.
func (r *Run) stopPipeline(ctx context.Context) error {
	p := r.pipe.Load()
	if p == nil {
		return r.ledger.ended()
	}
	err := p.stop(ctx)
	if r.pipe.CompareAndSwap(p, nil) {
		r.ledger.endPlan()
		r.fleet.mu.Lock()
		defer r.fleet.mu.Unlock()
		delete(r.fleet.pipelines, r)
	}
	return err
}

// settled is Flush for a call that continues from the handle's state. In synchronous mode that state may be unresolved:
// repeating the same call resolves it.
func (r *Run) settled(ctx context.Context) error {
	if r.pipe.Load() != nil {
		return r.Flush(ctx)
	}
	return r.ledger.ended()
}

// publishNow publishes drafts and waits until they are durable, in either mode.
func (r *Run) publishNow(ctx context.Context, drafts ...draft) error {
	if _, err := r.publish(ctx, drafts...); err != nil {
		return err
	}
	return r.Flush(ctx)
}
