package fold

import "container/list"

// runCache keeps runs in memory. Only the folding goroutine uses it.
type runCache struct {
	runs   map[string]*list.Element
	recent *list.List // of *run, most recent first
	// most is the largest number of runs.
	most int
}

func newRunCache(most int) runCache {
	return runCache{runs: make(map[string]*list.Element), recent: list.New(), most: most}
}

// peek returns a run in memory, or nil.
func (c *runCache) peek(id string) *run {
	el, ok := c.runs[id]
	if !ok {
		return nil
	}
	r, _ := el.Value.(*run) // the list has no other values
	return r
}

// get returns a run in memory, or nil, and makes it the most recent one.
func (c *runCache) get(id string) *run {
	if el, ok := c.runs[id]; ok {
		c.recent.MoveToFront(el)
	}
	return c.peek(id)
}

// add adds a run that is not in memory.
func (c *runCache) add(r *run) { c.runs[r.id] = c.recent.PushFront(r) }

// drop removes a run, if it is in memory.
func (c *runCache) drop(id string) {
	if r := c.peek(id); r != nil {
		r.forget()
		c.recent.Remove(c.runs[id])
		delete(c.runs, id)
	}
}

// evict keeps the number of runs in memory bounded; an evicted run is read from its checkpoint again.
func (c *runCache) evict() {
	for el := c.recent.Back(); el != nil && c.recent.Len() > c.most; {
		prev := el.Prev()
		if r, ok := el.Value.(*run); ok {
			c.drop(r.id)
		}
		el = prev
	}
}

// each calls yield for every run in memory.
func (c *runCache) each(yield func(*run) bool) {
	var next *list.Element
	for el := c.recent.Front(); el != nil; el = next {
		next = el.Next()
		if r, ok := el.Value.(*run); ok && !yield(r) {
			return
		}
	}
}
