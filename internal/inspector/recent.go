package inspector

import (
	"slices"
	"sync"
)

// recent has a value for each of the latest viewed runs.
type recent[T any] struct {
	mu   sync.Mutex
	list []*ofRun[T]
}

type ofRun[T any] struct {
	run   string
	value T
}

// of returns the value of a run, and makes the run the latest; most bounds the runs.
func (l *recent[T]) of(run string, most int) *T {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &ofRun[T]{run: run}
	if i := slices.IndexFunc(l.list, func(r *ofRun[T]) bool { return r.run == run }); i >= 0 {
		r = l.list[i]
		l.list = slices.Delete(l.list, i, i+1)
	}
	l.list = append(l.list, r)
	l.list = l.list[max(len(l.list)-most, 0):]
	return &r.value
}
