package consumer

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/waymarkio/waymark/schema"
)

const (
	// minFrames and maxFrames are the smallest and the largest buffer for the frames of a tail, as powers of two: 4 KiB
	// and 8 MiB. A tail beyond it, of one message that large, is read from the log.
	minFrames = 12
	maxFrames = 23
)

// framePools hold buffers that are not in use, by size.
var framePools [maxFrames + 1]sync.Pool

// frameRoom bounds what the frames of all tails of a reign take. Sealing gives back from several goroutines.
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

// frames are the records behind a cut as they will stand in the next segment, up to the latest or, in a [cut], to its
// end: sealing them needs no second reading of the log. They are there if there was room for them from the first one
// on; if not, the log has them.
type frames struct {
	room *frameRoom
	// b is nil when nothing is kept.
	b *[]byte
}

func (f *frames) kept() bool { return f.b != nil }

// add appends a record. begins says that it is the first of the tail; of a tail whose beginning is not kept nothing is.
func (f *frames) add(rec *schema.Record, size int, begins bool) {
	if f.room == nil || !begins && f.b == nil {
		return
	}
	if !f.grow(size + frameOverhead(rec)) {
		f.drop()
		return
	}
	*f.b = schema.AppendFrame(*f.b, rec)
}

// frameOverhead bounds what the frame of a record has beside its headers and body: numbers of up to ten bytes.
func frameOverhead(rec *schema.Record) int {
	n := 3
	for _, values := range rec.Header {
		n += 2 * len(values)
	}
	return 10 * n
}

// grow makes room for n more bytes and reports whether there is.
func (f *frames) grow(n int) bool {
	have, length := 0, 0
	if f.b != nil {
		have, length = cap(*f.b), len(*f.b)
	}
	if length+n <= have {
		return true
	}
	class := max(bits.Len(uint(length+n-1)), minFrames) //nolint:gosec // sizes of memory
	if class > maxFrames || !f.room.take(int64(1)<<class-int64(have)) {
		return false
	}
	next, ok := framePools[class].Get().(*[]byte)
	if !ok {
		fresh := make([]byte, 0, 1<<class)
		next = &fresh
	}
	if f.b != nil {
		*next = append(*next, *f.b...)
		pool(f.b)
	}
	f.b = next
	return true
}

// pool gives a buffer to whoever needs one of its size.
func pool(b *[]byte) {
	*b = (*b)[:0]
	framePools[bits.Len(uint(cap(*b)))-1].Put(b)
}

// drop gives the memory back.
func (f *frames) drop() {
	if f.b == nil {
		return
	}
	f.room.used.Add(-int64(cap(*f.b)))
	pool(f.b)
	f.b = nil
}

// hand returns the frames and keeps none; the records that come begin a new tail.
func (f *frames) hand() frames {
	h := *f
	f.b = nil
	return h
}
