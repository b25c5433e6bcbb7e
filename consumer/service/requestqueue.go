package service

import (
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/waymarkio/waymark/schema"
)

// requestQueue holds the requests that wait for a worker. It bounds their number, and the size of all unanswered
// ones.
type requestQueue struct {
	tasks chan *task
	bytes *semaphore.Weighted

	mu     sync.RWMutex
	closed bool
}

func newRequestQueue(cfg *Config) *requestQueue {
	return &requestQueue{tasks: make(chan *task, cfg.Queue), bytes: semaphore.NewWeighted(cfg.QueueBytes)}
}

// put queues a request, or returns why the client must ask again. It never waits.
func (q *requestQueue) put(t *task) *schema.ServiceError {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.closed {
		return schema.Fail(schema.CodeUnavailable, "Ask again: another replica answers.", "this replica is stopping")
	}
	if q.bytes.TryAcquire(t.size) {
		select {
		case q.tasks <- t:
			return nil
		default:
			q.bytes.Release(t.size)
		}
	}
	return schema.Fail(schema.CodeOverloaded, "Wait a little longer before each new try, and ask again.",
		"%d requests are waiting already", len(q.tasks))
}

// release frees the room of an answered request.
func (q *requestQueue) release(t *task) { q.bytes.Release(t.size) }

// close lets the workers end once the queue is empty.
func (q *requestQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.tasks)
	}
}
