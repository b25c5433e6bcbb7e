package purge

import (
	"cmp"
	"container/list"
	"slices"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// unknownGain is the assumed gain of purging a run that a walk found, in bytes.
const unknownGain = 256 << 10

// entry is a run with events that may be purged.
type entry struct {
	run string
	// first and upTo bound the events sealed up to the time since; bytes is their size.
	first, upTo schema.StreamSequence
	bytes       int64
	// counted is the position up to which a checkpoint must count the run as sealed before the entry is done; 0 if
	// only a walk has found it.
	counted schema.StreamSequence
	since   time.Time
	// met is where a walk found the run last: the fold must have passed it before the entry is done.
	met schema.StreamSequence
	// next has the same for events sealed, or found, too late for this purge.
	nextFirst, nextUpTo, nextCounted, nextMet schema.StreamSequence
	nextBytes                                 int64
	// failed: the proof failed, and a full log is no reason to try sooner.
	failed bool
	// fruitless counts the tries in a row that freed nothing and must be repeated: other entries come first then.
	fruitless int
	// taken: it is being purged.
	taken bool
}

// queue has the runs in the order in which they are due. Seals of a run within a window are combined, so that a busy
// run is purged a few times per grace period and not once per segment.
type queue struct {
	grace, window time.Duration
	order         *list.List // of *entry, by since
	byRun         map[string]*list.Element
	// skipped is the first stream sequence that did not fit, 0 for none.
	skipped schema.StreamSequence
}

func newQueue(grace time.Duration) queue {
	return queue{grace: grace, window: grace / 4, order: list.New(), byRun: make(map[string]*list.Element)}
}

func (q *queue) len() int { return q.order.Len() }

func entryOf(el *list.Element) *entry {
	e, _ := el.Value.(*entry) // the list has no other values
	return e
}

// sealed adds events of a run that are being sealed.
func (q *queue) sealed(run string, first, last schema.StreamSequence, bytes int64, now time.Time) {
	el, ok := q.byRun[run]
	if !ok {
		q.add(&entry{run: run, first: first, upTo: last, counted: last, bytes: bytes, since: now})
		return
	}
	e := entryOf(el)
	if !e.taken && e.nextUpTo == 0 && e.upTo < first && now.Sub(e.since) <= q.window {
		e.upTo, e.counted, e.bytes = last, last, e.bytes+bytes
		return
	}
	if e.nextUpTo == 0 {
		e.nextFirst = first
	}
	if e.upTo >= first {
		// The walk could not know that these events were not sealed yet.
		e.nextUpTo, e.nextMet = max(e.nextUpTo, e.upTo), max(e.nextMet, e.met)
		e.upTo = first - 1
	}
	e.nextFirst, e.nextUpTo, e.nextCounted, e.nextBytes = min(e.nextFirst, first), max(e.nextUpTo, last), last, e.nextBytes+bytes
}

// mayGo reports whether a run may be purged up to a position: it was not sealed after the entry was taken.
func (q *queue) mayGo(run string, upTo schema.StreamSequence) bool {
	el, ok := q.byRun[run]
	return ok && upTo <= entryOf(el).upTo
}

// found adds a run found by a walk, with a position up to which it may be sealed. It reports false if there is no
// room.
func (q *queue) found(run string, from, at schema.StreamSequence, now time.Time) bool {
	if el, ok := q.byRun[run]; ok {
		e := entryOf(el)
		e.first = min(e.first, from)
		switch {
		case at <= max(e.upTo, e.nextUpTo):
		case !e.taken && e.nextUpTo == 0 && now.Sub(e.since) <= q.window:
			e.upTo, e.met = at, at
		case e.nextUpTo == 0:
			e.nextFirst, e.nextUpTo, e.nextMet, e.nextBytes = e.upTo+1, at, at, unknownGain
		default:
			e.nextUpTo, e.nextMet = at, at
		}
		return true
	}
	if q.len() >= maxQueue {
		return false
	}
	q.add(&entry{run: run, first: from, upTo: at, met: at, bytes: unknownGain, since: now})
	return true
}

func (q *queue) add(e *entry) {
	if q.len() >= maxQueue {
		q.skip(e.first)
		return
	}
	q.byRun[e.run] = q.order.PushBack(e)
}

func (q *queue) skip(first schema.StreamSequence) {
	if q.skipped == 0 || first < q.skipped {
		q.skipped = first
	}
}

// first is the lowest position of the waiting entries.
func (q *queue) first() (schema.StreamSequence, bool) {
	low := q.skipped
	for el := q.order.Front(); el != nil; el = el.Next() {
		e := entryOf(el)
		for _, at := range []schema.StreamSequence{e.first, e.nextFirst} {
			if at != 0 && (low == 0 || at < low) {
				low = at
			}
		}
	}
	return low, low != 0
}

// wait is the time until the next run is due.
func (q *queue) wait(now time.Time) time.Duration {
	for el := q.order.Front(); el != nil; el = el.Next() {
		if e := entryOf(el); !e.taken {
			return e.since.Add(q.grace + q.window).Sub(now)
		}
	}
	return q.grace
}

// due marks the next run that has waited long enough as taken and returns it. Pass it to done.
func (q *queue) due(now time.Time) (entry, bool) {
	for el := q.order.Front(); el != nil; el = el.Next() {
		e := entryOf(el)
		if e.taken {
			continue
		}
		if now.Sub(e.since) < q.grace+q.window {
			break
		}
		e.taken = true
		return *e, true
	}
	return entry{}, false
}

// barren reports whether the entry frees nothing for now. The first try may only have been before the checkpoint.
func (e *entry) barren() bool { return e.failed || e.fruitless > 1 }

// gains prioritises entries that free space: it marks as taken the runs with the largest gain, for a number of bytes,
// if they have waited for least. Entries that freed nothing when tried come last.
func (q *queue) gains(bytes int64, least time.Duration, now time.Time) []entry {
	var may []*entry
	for el := q.order.Front(); el != nil; el = el.Next() {
		e := entryOf(el)
		// Its last seal may be as old as the window.
		if e.taken || e.failed || least > 0 && now.Sub(e.since) < least+q.window {
			continue
		}
		if least == 0 && e.nextUpTo != 0 {
			e.join()
		}
		may = append(may, e)
	}
	slices.SortStableFunc(may, func(a, b *entry) int {
		if a.barren() != b.barren() {
			if a.barren() {
				return 1
			}
			return -1
		}
		return cmp.Compare(b.bytes, a.bytes)
	})
	var most []entry
	for _, e := range may {
		if bytes <= 0 {
			break
		}
		bytes -= e.bytes
		e.taken = true
		most = append(most, *e)
	}
	return most
}

// waiting is the size of sealed events that are not purged yet, without hopeless entries.
func (q *queue) waiting() (bytes int64) {
	for el := q.order.Front(); el != nil; el = el.Next() {
		if e := entryOf(el); !e.barren() {
			bytes += e.bytes + e.nextBytes
		}
	}
	return bytes
}

// done ends the purge of an entry; again keeps it for later.
func (q *queue) done(was entry, again bool, now time.Time) {
	el, ok := q.byRun[was.run]
	if !ok {
		return
	}
	e := entryOf(el)
	q.order.Remove(el)
	e.taken, e.failed, e.since = false, was.failed && again, now
	if e.fruitless = was.fruitless; !again {
		e.fruitless = 0
	}
	switch {
	case again:
		e.join()
	case e.nextUpTo != 0:
		e.first, e.upTo, e.counted, e.met, e.bytes = e.nextFirst, e.nextUpTo, e.nextCounted, e.nextMet, e.nextBytes
		e.dropNext()
	default:
		delete(q.byRun, was.run)
		return
	}
	q.byRun[was.run] = q.order.PushBack(e)
}

// join combines an entry with what came too late for its purge.
func (e *entry) join() {
	e.upTo, e.counted, e.met = max(e.upTo, e.nextUpTo), max(e.counted, e.nextCounted), max(e.met, e.nextMet)
	e.bytes += e.nextBytes
	e.dropNext()
}

func (e *entry) dropNext() {
	e.nextFirst, e.nextUpTo, e.nextCounted, e.nextMet, e.nextBytes = 0, 0, 0, 0, 0
}
