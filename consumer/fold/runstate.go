package fold

import (
	"slices"
	"time"

	"github.com/waymarkio/waymark/consumer/activity"
	"github.com/waymarkio/waymark/consumer/internal/replay"
	"github.com/waymarkio/waymark/schema"
)

// run is what the worker keeps of one run: its head, where its checkpoint stands, and how the tail will be cut.
// Only the fold loop touches it.
type run struct {
	id   string
	head schema.Head
	// overview is what the checkpoint tells people, and turns is what the last record changed of turns.
	overview schema.Overview
	turns    []schema.TurnNotice
	// segments as the last checkpoint counts them, advanced by sealing.
	segments schema.SegmentIndex
	// tailEvents and tailBytes measure what is in the log after the last cut.
	tailEvents int64
	tailBytes  int64
	// tailFirst is the position of its first record; unknown for a tail that was begun before the run was loaded.
	tailFirst schema.Position
	// tail has its frames, if they are kept.
	tail tailbuffer
	// cuts are the ends of segments to come, in order; see [run.observe].
	cuts []cut
	// uncut: the tail was loaded too large to know its cuts; the run must be folded again before it is sealed.
	uncut bool
	// lost are events that an earlier checkpoint had folded and that were not met again.
	lost []schema.Gap
	// revision of the checkpoint, 0 before the first.
	revision schema.Revision
	// live is the run's entry of the live index, nil when it should have none; liveRev is its revision, 0 when this term
	// did not put it.
	live    *schema.Live
	liveRev schema.Revision
	// index is what the index of runs holds of it.
	index indexed
	// quarantined: it was announced that nobody is given the run.
	quarantined bool
	// dirty: the head moved since the last checkpoint.
	dirty bool
	// loaded is the last event that it had when it came into memory.
	loaded schema.StreamSequence
	// uncovered counts the boundaries that were accepted since then.
	uncovered int64
	// did is what its events say of its agent since then, and alone since when it has no executor; see [activity.Watch].
	did   activity.Batch
	alone string
	// refolded: the run was folded again, from the segments that could be used.
	refolded bool
	// sealed names what segments hold that the log may still bring, after the run was folded again: damage may have
	// freed the sequences behind it, and others may stand there now.
	sealed map[schema.StreamSequence]string
	// confirmed is where the leader last said that it has not what is missing, either.
	confirmed gapKey
	// mark is the id of the latest mark that the run was removed, forged or not; "" for none that was seen.
	mark string
	// touched is when an event last came, for sealing idle tails.
	touched time.Time
}

// cut is the end of a segment: everything a segment's description needs to know about that point.
type cut struct {
	// first and frames of the segment, if they are kept.
	first  schema.Position
	frames tailbuffer
	last   schema.Position
	// head of the run there: the segment's keyframe.
	head   schema.Head
	events int64
	bytes  int64
}

// take applies a record of a size and marks where the tail is to be cut. The cuts depend on nothing but the records, so
// that after a crash the same segments are made again.
func (r *run) take(p *schema.Prepared, bytes int, cfg *Config) schema.Verdict {
	rec := p.Record
	if rec.Stream <= r.segments.Last.Stream && r.segments.Last.Stream <= r.head.Position.Stream && r.sealed != nil {
		if id, ok := r.sealed[rec.Stream]; ok && id == p.Position().ID {
			return schema.Verdict{Kind: schema.Replayed}
		}
		// A sequence that damage freed and a later event uses again: it comes after everything sealed, and the tail
		// begins with it.
		r.head.Position = schema.Position{}
		r.segments.Last.Stream = rec.Stream - 1
		r.sealed = nil
	}
	size := int64(bytes)
	if r.tailEvents > 0 && r.tailBytes+size > cfg.SealMaxBytes && rec.Stream > r.head.Position.Stream {
		r.cut()
	}
	v := r.head.ApplyPrepared(p)
	r.turns = r.overview.Apply(&r.head, &v)
	r.lost = replay.StillLost(r.lost, &r.head)
	if v.Kind == schema.Replayed || v.Kind == schema.Regressed {
		return v
	}
	r.dirty = true
	if v.Kind == schema.Skipped && schema.ErasedMark(v.Event) {
		r.mark = v.Event.ID
	}
	if r.head.Status == schema.StatusErased {
		return v // nothing of it is ever sealed
	}
	if r.tailEvents == 0 {
		r.tailFirst = r.head.Position
	}
	r.tail.add(rec, bytes, r.tailEvents == 0)
	r.tailEvents++
	r.tailBytes += size
	large := r.tailBytes >= cfg.SealBytes || r.tailEvents >= cfg.SealEvents
	_, ended := v.Data.(*schema.RunEndedData)
	switch {
	case r.tailEvents >= cfg.SealMaxEvents,
		large && !r.head.TurnOpen,
		ended && r.head.Status.Terminal():
		r.cut()
	}
	return v
}

// cut ends a segment at the head's position.
func (r *run) cut() {
	if r.tailEvents == 0 {
		return
	}
	r.cuts = append(r.cuts, cut{
		first: r.tailFirst, frames: r.tail.hand(), last: r.head.Position, head: r.head.Clone(),
		events: r.tailEvents, bytes: r.tailBytes,
	})
	r.tailEvents, r.tailBytes = 0, 0
}

// erase makes the run one that was removed, with the mark at the head's position.
func (r *run) erase(fleet, when string) {
	r.forget()
	r.head = schema.ErasedHead(fleet, r.id, r.head.Position, when)
	r.overview = schema.Overview{}
	r.segments, r.cuts, r.uncut, r.refolded, r.sealed, r.lost = schema.SegmentIndex{}, nil, false, false, nil, nil
	r.tailEvents, r.tailBytes, r.tailFirst = 0, 0, schema.Position{}
	r.dirty = true
}

// noteLost names the events that a head had folded and that this run, folded again, does not have. What a checkpoint shares is not changed.
func (r *run) noteLost(was *schema.Head) {
	r.lost = append(slices.Clone(r.lost), replay.LostSince(was, &r.head)...)
}

// forget gives back what is kept of the tail: the log has it.
func (r *run) forget() {
	r.tail.drop()
	for i := range r.cuts {
		r.cuts[i].frames.drop()
	}
}

// checkpoint returns the value to store.
func (r *run) checkpoint(incarnation string, maxClaims int) *schema.Checkpoint {
	c := &schema.Checkpoint{Overview: r.overview.Of(&r.head, maxClaims), Head: r.head, Segments: r.segments, Incarnation: incarnation, TailBytes: r.tailBytes, TailEvents: r.tailEvents, Lost: r.lost}
	for _, k := range r.cuts {
		c.TailBytes += k.bytes
		c.TailEvents += k.events
	}
	return c
}
