package publisher

import (
	"slices"
	"sync"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// overdueGrace is how long work may take to return after its context ended, before it counts as overdue.
const overdueGrace = time.Second

// works are the running model requests and tool calls that have a limit. Heartbeats report the overdue ones.
type works struct {
	now func() time.Time
	mu  sync.Mutex
	all map[*work]struct{}
}

// work is one request, or one try of a call.
type work struct {
	of    *works
	what  schema.Overdue
	limit time.Duration
	// since is its start; under the lock of works.
	since time.Time
}

// begin notes that work of a run begins. Without a limit it returns nil, on which all methods do nothing.
func (w *works) begin(what schema.Overdue, limit time.Duration) *work {
	if limit <= 0 {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	k := &work{of: w, what: what, limit: limit, since: w.now()}
	k.what.LimitMS = limit.Milliseconds()
	if w.all == nil {
		w.all = make(map[*work]struct{})
	}
	w.all[k] = struct{}{}
	return k
}

// again begins another try of the work, with the full limit.
func (k *work) again() {
	if k == nil {
		return
	}
	k.of.mu.Lock()
	defer k.of.mu.Unlock()
	k.since = k.of.now()
	k.of.all[k] = struct{}{}
}

func (k *work) end() {
	if k == nil {
		return
	}
	k.of.mu.Lock()
	defer k.of.mu.Unlock()
	delete(k.of.all, k)
}

// overdue returns overdue work, the oldest first, up to [schema.MaxOverdue].
func (w *works) overdue() (list []schema.Overdue) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var late []*work
	now := w.now()
	for k := range w.all {
		if now.Sub(k.since)-k.limit >= overdueGrace {
			late = append(late, k)
		}
	}
	slices.SortFunc(late, func(a, b *work) int { return a.since.Compare(b.since) })
	for _, k := range late[:min(len(late), schema.MaxOverdue)] {
		what := k.what
		what.Since = schema.FormatTime(k.since)
		list = append(list, what)
	}
	return list
}
