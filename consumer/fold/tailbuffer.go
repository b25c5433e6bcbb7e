package fold

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/waymarkio/waymark/schema"
)

const (
	// minFrames and maxFrames are the smallest and the largest buffer for frames, as powers of two: 4 KiB and 8 MiB.
	// A larger message is read from the log.
	minFrames = 12
	maxFrames = 23
	// usualFrames is the largest buffer for small records, as a power of two: 32 KiB.
	usualFrames = 15
)

// framePools are unused buffers, by size.
var framePools [maxFrames + 1]sync.Pool

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
	// parts have whole frames each; without parts, nothing is kept.
	parts []*[]byte
}

func (f *tailbuffer) kept() bool { return len(f.parts) > 0 }

// add appends a record. begins says that it is the first of the tail; a tail without its beginning is not kept at
// all.
func (f *tailbuffer) add(rec *schema.Record, size int, begins bool) {
	if f.room == nil || !begins && !f.kept() {
		return
	}
	if !f.grow(size + frameOverhead(rec)) {
		f.drop()
		return
	}
	end := f.parts[len(f.parts)-1]
	*end = schema.AppendFrame(*end, rec)
}

// appendTo appends all frames to b.
func (f *tailbuffer) appendTo(b []byte) []byte {
	for _, part := range f.parts {
		b = append(b, *part...)
	}
	return b
}

// frameOverhead bounds the size of a record's frame without headers and body: numbers of up to ten bytes.
func frameOverhead(rec *schema.Record) int {
	n := 3
	for _, values := range rec.Header {
		n += 2 * len(values)
	}
	return 10 * n
}

// grow makes room for n more bytes at the end of the last part and reports whether there is.
func (f *tailbuffer) grow(n int) bool {
	if i := len(f.parts) - 1; i >= 0 && len(*f.parts[i])+n <= cap(*f.parts[i]) {
		return true
	}
	// Each part is twice as large as the one before, up to the usual size, because many runs have short tails.
	class := max(bits.Len(uint(n-1)), min(minFrames+len(f.parts), usualFrames)) //nolint:gosec // a size in memory
	if class > maxFrames || !f.room.take(1<<class) {
		return false
	}
	part, ok := framePools[class].Get().(*[]byte)
	if !ok {
		fresh := make([]byte, 0, 1<<class)
		part = &fresh
	}
	f.parts = append(f.parts, part)
	return true
}

// drop frees the memory.
func (f *tailbuffer) drop() {
	for _, part := range f.parts {
		size := cap(*part)
		f.room.used.Add(-int64(size))
		*part = (*part)[:0]
		framePools[bits.Len(uint(size))-1].Put(part) //nolint:gosec // a size in memory
	}
	f.parts = nil
}

// hand returns the frames and keeps none; later records begin a new tail.
func (f *tailbuffer) hand() tailbuffer {
	h := *f
	f.parts = nil
	return h
}
