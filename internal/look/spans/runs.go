package spans

import (
	"container/list"

	"github.com/waymarkio/waymark/schema"
)

// rememberedRuns is how many times more runs are remembered only by their position.
const rememberedRuns = 16

// runs are the runs that a feed has seen, the latest first. It keeps the tracker of the first few, and of the others
// only the position up to which spans were made. A forgotten run is read and exported again from the feed's floor on.
type runs struct {
	max     int
	order   *list.List
	byName  map[string]*list.Element
	tracked int
}

// followed is the known state of a run.
type followed struct {
	run string
	// last is the stream sequence up to which its spans were made; 0 if unknown.
	last    schema.StreamSequence
	tracker *Tracker
	// counted: the tracker counts towards the kept ones.
	counted bool
}

func newRuns(most int) *runs {
	return &runs{max: most, order: list.New(), byName: make(map[string]*list.Element)}
}

// get returns the known state of a run, which may be empty.
func (r *runs) get(run string) *followed {
	if e, ok := r.byName[run]; ok {
		return e.Value.(*followed) //nolint:errcheck // nothing else is in the list
	}
	return &followed{run: run}
}

// seen notes that the run's spans were made up to a sequence.
func (r *runs) seen(run string, f *followed, at schema.StreamSequence) {
	f.last = at
	if f.tracker.Ended() {
		f.tracker = nil // few events follow an end; if one does, the run is read again
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
