package reader

import (
	"errors"
	"slices"

	"github.com/waymarkio/waymark/consumer/internal/replay"
	"github.com/waymarkio/waymark/schema"
)

// maxTailBuffer is how much of a tail is kept in memory between folding and sending; a longer tail is read again. The
// tail of a regularly sealed run is below it.
const maxTailBuffer = 1 << 20

// Snapshot is a run at the time of a read, folded up to the last event seen in the log. The caller must prove whether
// that is the run's last event.
type Snapshot struct {
	Source *Source
	Run    string
	Head   schema.Head
	// Segments describes the segments with the run's older part.
	Segments schema.SegmentIndex
	// Lost are events that were stored once and are missing; gaps found by the fold itself are in Head.Gaps.
	Lost []schema.Gap
	// carried are the lost events of the checkpoint.
	carried []schema.Gap
	// logFirst and LogLast are the stream sequences of the first and last record of the run that were read from the
	// log; 0 if the log has none.
	logFirst, LogLast schema.StreamSequence
	// rebuilt: no checkpoint was used.
	rebuilt bool
	// Damage that was found and bypassed.
	Damage []schema.Damage
	// Doubtful: the log lacks events after the fold worker's known position. The worker may have folded them before
	// they were lost.
	Doubtful bool
	// unusable: the segment after those of the index exists, and is damaged.
	unusable bool
	tail     tailbuffer
}

// Empty reports whether nothing was found of the run.
func (r *Snapshot) Empty() bool {
	c := &r.Head.Counts
	return r.Segments.Count == 0 && c.Events == 0 && c.DeadLetters == 0 && c.Duplicates == 0
}

// Gaps are all known gaps in the run's events.
func (r *Snapshot) Gaps() []schema.Gap {
	all := slices.Concat([]schema.Gap{}, r.Head.Gaps, r.carried)
	for _, g := range r.Lost {
		if !slices.Contains(all, g) { // a repeated read may find the checkpoint's gaps again
			all = append(all, g)
		}
	}
	return all
}

// TailBytes is the size of the events after the last segment.
func (r *Snapshot) TailBytes() int64 { return r.tail.bytes }

// TailEvents is their number.
func (r *Snapshot) TailEvents() int64 { return r.tail.events }

// Complete reports whether no event of the run is known to be missing.
func (r *Snapshot) Complete() bool {
	return r.Head.Complete() && len(r.Lost) == 0 && len(r.carried) == 0
}

// tailbuffer is the part of a run's log after its last segment.
type tailbuffer struct {
	// from is where a read of the log begins; records up to the last segment's end do not belong to the tail.
	from schema.StreamSequence
	// first is the position of its first record.
	first  schema.StreamSequence
	events int64
	bytes  int64
	// chunks are the tail's frames in pieces that fit a reply; nil if the tail was too long to keep, or only the head
	// was requested.
	chunks  [][]byte
	dropped bool
}

// add counts a record and keeps its frame while the tail is short.
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

// placed adds the snapshot to a gap error.
func (r *Snapshot) placed(err error) error {
	if gap, ok := errors.AsType[*gapError](err); ok {
		gap.snapshot = r
	}
	return err
}

// noteLost records the events that a checkpoint had folded and that this snapshot lacks.
func (r *Snapshot) noteLost(was *schema.Head) {
	r.Lost = append(r.Lost, replay.LostSince(was, &r.Head)...)
}
