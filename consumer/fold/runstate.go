package fold

import (
	"slices"
	"time"

	"github.com/waymarkio/waymark/consumer/activity"
	"github.com/waymarkio/waymark/consumer/internal/replay"
	"github.com/waymarkio/waymark/schema"
)

// run is the worker's state of one run: its head, its checkpoint's revision, and the coming segments of the tail.
// Only the fold loop uses it.
type run struct {
	id   string
	head schema.Head
	// overview is the checkpoint's overview for people, and turns are the last record's changes of turns.
	overview schema.Overview
	turns    []schema.TurnNotice
	// segments of the last checkpoint, advanced by sealing.
	segments schema.SegmentIndex
	// tailEvents and tailBytes are the size of the log after the last segment end.
	tailEvents int64
	tailBytes  int64
	// tailFirst is the position of its first record; unknown for a tail that began before the run was loaded.
	tailFirst schema.Position
	// tail has its frames, if there was room.
	tail tailbuffer
	// cuts are the ends of the next segments, in order; see [run.observe].
	cuts []cut
	// lost are events that an earlier checkpoint had folded and that were not found again.
	lost []schema.Gap
	// revision of the checkpoint, 0 before the first.
	revision schema.Revision
	// live is the run's entry of the live index, nil if it should have none; liveRev is its revision, 0 if this term
	// did not put it.
	live    *schema.Live
	liveRev schema.Revision
	// index are its entries in the index of runs.
	index indexed
	// quarantined: the quarantine of the run was announced.
	quarantined bool
	// dirty: the head moved since the last checkpoint.
	dirty bool
	// unstored: the last checkpoint could not be stored.
	unstored bool
	// uncovered counts the boundaries accepted since the last checkpoint.
	uncovered int64
	// did counts its agent's work since the last checkpoint, and alone is since when it has no executor; see
	// [activity.Watch].
	did   activity.Batch
	alone string
	// refolded: the run was folded again, from its usable segments.
	refolded bool
	// sealed are sealed events that the log may still deliver, after the run was folded again: damage may have freed
	// their sequences, and other events may have them now.
	sealed map[schema.StreamSequence]string
	// confirmed is where the leader last confirmed that it lacks the missing events too.
	confirmed gapKey
	// touched is the time of the last event, for sealing idle tails.
	touched time.Time
}

// cut is the end of a segment, with everything a segment's description needs at that point.
type cut struct {
	// first position and frames of the segment, if kept.
	first  schema.Position
	frames tailbuffer
	last   schema.Position
	// head of the run there: the segment's keyframe.
	head   schema.Head
	events int64
	bytes  int64
}

// take applies a record of a size and marks where the tail will be cut. The cuts depend only on the records, so that
// the same segments are made again after a crash.
func (r *run) take(p *schema.Prepared, bytes int, cfg *Config) schema.Verdict {
	rec := p.Record
	if rec.Stream <= r.segments.Last.Stream && r.segments.Last.Stream <= r.head.Position.Stream && r.sealed != nil {
		if id, ok := r.sealed[rec.Stream]; ok && id == p.Position().ID {
			return schema.Verdict{Kind: schema.Replayed}
		}
		// Damage freed this sequence and a later event uses it again: the event follows all sealed ones, and begins
		// the tail.
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
	if r.head.Status == schema.StatusErased {
		r.dropContent()
		return v // it is never sealed
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

// dropContent forgets the content of a removed run.
func (r *run) dropContent() {
	r.forget()
	r.overview = schema.Overview{}
	r.segments, r.cuts, r.refolded, r.sealed, r.lost = schema.SegmentIndex{}, nil, false, nil, nil
	r.tailEvents, r.tailBytes, r.tailFirst = 0, 0, schema.Position{}
}

// noteLost records the events of a head that this run, folded again, lacks. Shared checkpoint data is not changed.
func (r *run) noteLost(was *schema.Head) {
	r.lost = append(slices.Clone(r.lost), replay.LostSince(was, &r.head)...)
}

// forget frees the memory of the tail, which the log has.
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
