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
	// frames are nil if nothing is kept.
	frames []byte
}

func (f *tailbuffer) kept() bool { return f.frames != nil }

// add appends a record. begins says that it is the first of the tail; a tail without its beginning is not kept at
// all.
func (f *tailbuffer) add(rec *schema.Record, begins bool) {
	if f.room == nil || !begins && !f.kept() {
		return
	}
	// Doubling would copy less, and take the room of every other tail.
	frames := schema.AppendFrame(f.frames, rec)
	if grown := cap(frames) - cap(f.frames); grown > 0 && !f.room.take(int64(grown)) {
		f.drop()
		return
	}
	f.frames = frames
}

// drop frees the memory.
func (f *tailbuffer) drop() {
	if f.kept() {
		f.room.used.Add(-int64(cap(f.frames)))
		f.frames = nil
	}
}

// hand returns the frames and keeps none; later records begin a new tail.
func (f *tailbuffer) hand() tailbuffer {
	h := *f
	f.frames = nil
	return h
}
