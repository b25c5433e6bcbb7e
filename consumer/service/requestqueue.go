package service

import (
	"sync"

	"golang.org/x/sync/semaphore"
)

// requestQueue holds the requests that wait for a worker. It bounds their number, and the size of all unanswered
// ones.
type requestQueue struct {
	tasks chan *task
	bytes *semaphore.Weighted

	mu     sync.RWMutex
	closed bool
}

// queueing is the result of queueing a request.
type queueing int

const (
	taskQueued queueing = iota
	queueFull
	queueClosed
)

func newRequestQueue(cfg *Config) *requestQueue {
	return &requestQueue{tasks: make(chan *task, cfg.Queue), bytes: semaphore.NewWeighted(cfg.QueueBytes)}
}

// put queues a request. It never waits.
func (q *requestQueue) put(t *task) queueing {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.closed {
		return queueClosed
	}
	if !q.bytes.TryAcquire(t.size) {
		return queueFull
	}
	select {
	case q.tasks <- t:
		return taskQueued
	default:
		q.bytes.Release(t.size)
		return queueFull
	}
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
