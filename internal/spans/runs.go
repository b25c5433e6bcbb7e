package spans

import (
	"container/list"

	"github.com/waymarkio/waymark/schema"
)

// rememberedRuns is how many times more runs are remembered by their position alone.
const rememberedRuns = 16

// runs are those that a feed has met, the one met last in front. Of the first few the tracker is kept, of the others only up
// to where spans were made; what is forgotten altogether is read, and exported, from the feed's floor on.
type runs struct {
	max     int
	order   *list.List
	byName  map[string]*list.Element
	tracked int
}

// followed is what is known of a run.
type followed struct {
	run string
	// last is the stream sequence up to which its spans were made; 0 when nothing is known.
	last    schema.StreamSequence
	tracker *Tracker
	// counted: the tracker is counted as one of those kept.
	counted bool
}

func newRuns(most int) *runs {
	return &runs{max: most, order: list.New(), byName: make(map[string]*list.Element)}
}

// get returns what is known of a run, which may be nothing.
func (r *runs) get(run string) *followed {
	if e, ok := r.byName[run]; ok {
		return e.Value.(*followed) //nolint:errcheck // nothing else is in the list
	}
	return &followed{run: run}
}

// seen notes that the run's spans were made up to a place.
func (r *runs) seen(run string, f *followed, at schema.StreamSequence) {
	f.last = at
	if f.tracker.Ended() {
		f.tracker = nil // little comes behind an end, and what comes has the run read again
	}
	if e, ok := r.byName[run]; ok {
		r.order.MoveToFront(e)
	} else {
		r.byName[run] = r.order.PushFront(f)
	}
	r.count(f)
	for e := r.order.Back(); r.tracked > r.max && e != nil; e = e.Prev() {
		old := e.Value.(*followed) //nolint:errcheck // nothing else is in the list
		old.tracker = nil
		r.count(old)
	}
	for r.order.Len() > rememberedRuns*r.max {
		e := r.order.Back()
		old := e.Value.(*followed) //nolint:errcheck // nothing else is in the list
		old.tracker = nil
		r.count(old)
		delete(r.byName, old.run)
		r.order.Remove(e)
	}
}

func (r *runs) count(f *followed) {
	switch {
	case f.tracker != nil && !f.counted:
		r.tracked++
	case f.tracker == nil && f.counted:
		r.tracked--
	}
	f.counted = f.tracker != nil
}
