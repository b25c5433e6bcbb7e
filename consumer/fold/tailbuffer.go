package fold

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/waymarkio/waymark/schema"
)

const (
	// minFrames and maxFrames are the smallest and the largest buffer for frames, as powers of two: 4 KiB and 8 MiB. A
	// message beyond it is read from the log.
	minFrames = 12
	maxFrames = 23
	// usualFrames is how large the buffers of a tail get by themselves, as a power of two: 32 KiB.
	usualFrames = 15
)

// framePools hold buffers that are not in use, by size.
var framePools [maxFrames + 1]sync.Pool

// frameRoom bounds what the frames of all tails of a term take. Sealing gives back from several goroutines.
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
type tailbuffer struct {
	room *frameRoom
	// parts hold whole frames each; without any nothing is kept.
	parts []*[]byte
}

func (f *tailbuffer) kept() bool { return len(f.parts) > 0 }

// add appends a record. begins says that it is the first of the tail; of a tail whose beginning is not kept nothing is.
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

// frameOverhead bounds what the frame of a record has beside its headers and body: numbers of up to ten bytes.
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
	// Each part is twice as large as the one before, up to the usual size: many runs have short tails.
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

// drop gives the memory back.
func (f *tailbuffer) drop() {
	for _, part := range f.parts {
		size := cap(*part)
		f.room.used.Add(-int64(size))
		*part = (*part)[:0]
		framePools[bits.Len(uint(size))-1].Put(part) //nolint:gosec // a size in memory
	}
	f.parts = nil
}

// hand returns the frames and keeps none; the records that come begin a new tail.
func (f *tailbuffer) hand() tailbuffer {
	h := *f
	f.parts = nil
	return h
}
