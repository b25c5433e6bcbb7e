package service

import (
	"context"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/base/pause"
)

// repeatEvery is how often a repeater lists its tasks.
const repeatEvery = 250 * time.Millisecond

// repeater does the tasks of a list, at most atOnce at a time. A task that is still listed is done again after a pause, which
// starts at first and doubles up to most. So a slow task, or one that fails, delays no other.
type repeater[K comparable] struct {
	list        func() []K
	do          func(ctx context.Context, task K)
	now         func() time.Time
	first, most time.Duration
	atOnce      int
}

// attempt is when a task is done next. round is the last list that has the task.
type attempt struct {
	at    time.Time
	pause time.Duration
	busy  bool
	round int
}

// run does tasks until ctx ends. Each attempt has claimPatience.
func (r *repeater[K]) run(ctx context.Context) {
	var group errgroup.Group
	group.SetLimit(r.atOnce)
	var mu sync.Mutex
	attempts := make(map[K]*attempt)
	for round := 0; pause.For(ctx, repeatEvery) == nil; round++ {
		list := r.list()
		mu.Lock()
		for _, task := range list {
			a := attempts[task]
			if a == nil {
				a = new(attempt)
				attempts[task] = a
			}
			a.round = round
			if a.busy || r.now().Before(a.at) {
				continue
			}
			a.busy = group.TryGo(func() error {
				within, cancel := context.WithTimeout(ctx, claimPatience)
				defer cancel()
				r.do(within, task)
				mu.Lock()
				defer mu.Unlock()
				a.busy, a.pause = false, min(max(2*a.pause, r.first), r.most)
				a.at = r.now().Add(a.pause)
				return nil
			})
		}
		maps.DeleteFunc(attempts, func(_ K, a *attempt) bool { return !a.busy && a.round != round })
		mu.Unlock()
	}
	_ = group.Wait() // it has no errors
}
