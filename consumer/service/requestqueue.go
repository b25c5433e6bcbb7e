package service

import (
	"runtime"
	"slices"
	"sync"

	"github.com/waymarkio/waymark/schema"
)

// room counts requests that wait, those that are served, and the bytes of both.
type room struct {
	waiting, serving int
	bytes            int64
}

// requestQueue holds the requests that wait for a worker. Workers serve the senders in turn. No sender can take all
// places: each has a share of them.
type requestQueue struct {
	// whole is the room of all senders together, share that of one.
	whole, share room

	mu    sync.Mutex
	ready *sync.Cond
	used  room
	lines map[string]*line
	// turn are the lines with waiting requests, the next one first.
	turn   []*line
	closed bool
}

// line is one sender's part of a queue.
type line struct {
	used  room
	tasks []*task
}

// newRequestQueue returns a queue for half of the room that the configuration has.
func newRequestQueue(cfg *Config) *requestQueue {
	half := func(r room) room { return room{max(r.waiting/2, 1), max(r.serving/2, 1), max(r.bytes/2, 1)} }
	q := &requestQueue{whole: half(room{cfg.Queue, cfg.Workers, cfg.QueueBytes}), lines: make(map[string]*line)}
	q.ready, q.share = sync.NewCond(&q.mu), q.whole
	if cfg.Proof != nil {
		q.share = half(q.whole)
	}
	return q
}

// newReadQueue is a queue for reads. They cost the most processor time, so a sender has no more workers than there are
// processors.
func newReadQueue(cfg *Config) *requestQueue {
	q := newRequestQueue(cfg)
	if cfg.Proof != nil {
		q.share.serving = min(q.share.serving, runtime.GOMAXPROCS(0))
	}
	return q
}

// put queues a request, or returns why the client must ask again. It never waits.
func (q *requestQueue) put(t *task) *schema.ServiceError {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return schema.Fail(schema.CodeUnavailable, "Ask again: another replica answers.", "this replica is stopping")
	}
	l := q.lines[t.proven]
	if l == nil {
		l = new(line)
	}
	// A proven sender has a place for its first request even if others fill the queue: keys are few.
	if !l.used.fits(t, q.share) || !q.used.fits(t, q.whole) && (q.share == q.whole || l.used != (room{})) {
		return schema.Fail(schema.CodeOverloaded, "Wait a little longer before each new try, and ask again.",
			"%d requests are waiting already, %d of them from this sender", q.used.waiting, l.used.waiting)
	}
	for _, u := range []*room{&q.used, &l.used} {
		u.waiting++
		u.bytes += t.size
	}
	if q.lines[t.proven] = l; len(l.tasks) == 0 {
		q.turn = append(q.turn, l)
	}
	l.tasks = append(l.tasks, t)
	q.ready.Signal()
	return nil
}

// fits reports whether a request fits into what is left of some room.
func (r *room) fits(t *task, of room) bool {
	return r.waiting < of.waiting && r.bytes+t.size <= of.bytes
}

// take waits for a request whose sender has a place left, and returns it; nil after the last one of a closed queue.
func (q *requestQueue) take() *task {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		at := slices.IndexFunc(q.turn, func(l *line) bool { return l.used.serving < q.share.serving })
		if at < 0 {
			if q.closed && q.used.waiting == 0 {
				return nil
			}
			q.ready.Wait()
			continue
		}
		l := q.turn[at]
		t := l.tasks[0]
		q.turn, l.tasks = slices.Delete(q.turn, at, at+1), slices.Delete(l.tasks, 0, 1)
		if len(l.tasks) > 0 {
			q.turn = append(q.turn, l)
		}
		for _, u := range []*room{&q.used, &l.used} {
			u.waiting--
			u.serving++
		}
		return t
	}
}

// release frees the room of an answered request.
func (q *requestQueue) release(t *task) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[t.proven]
	for _, u := range []*room{&q.used, &l.used} {
		u.serving--
		u.bytes -= t.size
	}
	if l.used == (room{}) {
		delete(q.lines, t.proven)
	}
	if q.closed {
		q.ready.Broadcast()
	} else {
		q.ready.Signal() // the sender has a place again
	}
}

// close lets the workers end once the queue is empty.
func (q *requestQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.ready.Broadcast()
}
