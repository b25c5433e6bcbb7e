package reader

import (
	"errors"
	"slices"

	"github.com/waymarkio/waymark/consumer/internal/replay"
	"github.com/waymarkio/waymark/schema"
)

// maxTailBuffer is how much of a tail is kept in memory between folding and sending; a longer tail is read again. The tail of a
// sealed run is below it.
const maxTailBuffer = 1 << 20

// Snapshot is a run as it was read: folded up to the last event seen in the log. Whether that is the run's last event
// is for the caller to prove.
type Snapshot struct {
	Source *Source
	Run    string
	Head   schema.Head
	// Segments counts the segments that hold the run's older part.
	Segments schema.SegmentIndex
	// Lost are events that were stored once and are missing; what the fold itself missed is in Head.Gaps.
	Lost []schema.Gap
	// carried are those that the checkpoint says were lost before it.
	carried []schema.Gap
	// logFirst and LogLast are the stream sequences of the first record of the run that was read from the log, and of the last
	// one; 0 when the log has none.
	logFirst, LogLast schema.StreamSequence
	// rebuilt: no checkpoint was used.
	rebuilt bool
	// Damage was met and survived.
	Damage []schema.Damage
	// Marked: the log has a mark that the run was removed. Whether it was, the record in the segment bucket says.
	Marked bool
	// Doubtful: the log misses events behind all that the fold worker is known to have folded. It may have folded them before they were lost.
	Doubtful bool
	// unusable: the segment behind those of the index is there, and damaged.
	unusable bool
	tail     tailbuffer
}

// Empty reports whether nothing was found of the run. A mark that it is begun elsewhere is nothing of it.
func (r *Snapshot) Empty() bool {
	c := &r.Head.Counts
	return !r.Marked && r.Segments.Count == 0 && c.Events == 0 && c.DeadLetters == 0 && c.Duplicates == 0
}

// Gaps are all places where events of the run are known to be missing.
func (r *Snapshot) Gaps() []schema.Gap {
	all := slices.Concat([]schema.Gap{}, r.Head.Gaps, r.carried)
	for _, g := range r.Lost {
		if !slices.Contains(all, g) { // read again, what a checkpoint says is met again
			all = append(all, g)
		}
	}
	return all
}

// TailBytes is the size of the events behind the last segment.
func (r *Snapshot) TailBytes() int64 { return r.tail.bytes }

// TailEvents is their number.
func (r *Snapshot) TailEvents() int64 { return r.tail.events }

// Complete reports whether no event of the run is known to be missing.
func (r *Snapshot) Complete() bool {
	return r.Head.Complete() && len(r.Lost) == 0 && len(r.carried) == 0
}

// tailbuffer is the part of a run's log behind its last segment.
type tailbuffer struct {
	// from is where a read of the log begins; records up to and including the last segment's are no part.
	from schema.StreamSequence
	// first is the place of its first record.
	first  schema.StreamSequence
	events int64
	bytes  int64
	// chunks are the tail's frames in pieces that fit a reply; nil when the tail was too long to keep, or only the
	// head was asked for.
	chunks  [][]byte
	dropped bool
}

// add counts a record and keeps its frame as long as the tail is short.
func (t *tailbuffer) add(rec *schema.Record, keep bool) {
	if t.events == 0 {
		t.first = rec.Stream
	}
	t.events++
	t.bytes += int64(rec.Size())
	if !keep || t.dropped {
		return
	}
	if t.bytes > maxTailBuffer {
		t.chunks, t.dropped = nil, true
		return
	}
	n := len(t.chunks)
	if n == 0 || len(t.chunks[n-1])+rec.Size() > maxFramesReply {
		t.chunks = append(t.chunks, nil)
		n++
	}
	t.chunks[n-1] = schema.AppendFrame(t.chunks[n-1], rec)
}

// placed adds to a gap which snapshot met it.
func (r *Snapshot) placed(err error) error {
	if gap, ok := errors.AsType[*gapError](err); ok {
		gap.snapshot = r
	}
	return err
}

// noteLost names the events that a checkpoint had folded and that this snapshot does not have.
func (r *Snapshot) noteLost(was *schema.Head) {
	r.Lost = append(r.Lost, replay.LostSince(was, &r.Head)...)
}
