package fold

import (
	"sync/atomic"

	"github.com/waymarkio/waymark/schema"
)

// frameRoom bounds the size of the frames of all tails of a term. Several sealing goroutines free it.
type frameRoom struct {
	limit int64
	used  atomic.Int64
}

func (m *frameRoom) take(n int64) bool {
	if m.used.Add(n) <= m.limit {
		return true
	}
	m.used.Add(-n)
	return false
}

// tailbuffer is the records after a cut in the form of the next segment, up to the latest record or, in a [cut], to
// its end: sealing them needs no second read of the log. It has them if there was room from the first one on;
// otherwise the log has them.
type tailbuffer struct {
	room *frameRoom
	// parts of the frames: the start of each, and the record's own body. They are nil if nothing is kept.
	parts [][]byte
	// taken is their share of the room.
	taken int64
}

func (f *tailbuffer) kept() bool { return f.parts != nil }

// add appends a record of a size. begins says that it is the first of the tail; a tail without its beginning is not
// kept at all.
func (f *tailbuffer) add(rec *schema.Record, size int, begins bool) {
	if f.room == nil || !begins && !f.kept() {
		return
	}
	start := schema.AppendFrameStart(make([]byte, 0, size-len(rec.Body)+64), rec) // 64: most frames' numbers
	n := int64(size + cap(start))                                                 // the body keeps the memory of the message with its headers
	if !f.room.take(n) {
		f.drop()
		return
	}
	f.parts, f.taken = append(f.parts, start, rec.Body), f.taken+n
}

// drop frees the memory.
func (f *tailbuffer) drop() {
	if h := f.hand(); h.kept() {
		h.room.used.Add(-h.taken)
	}
}

// hand returns the frames and keeps none; later records begin a new tail.
func (f *tailbuffer) hand() tailbuffer {
	h := *f
	f.parts, f.taken = nil, 0
	return h
}
