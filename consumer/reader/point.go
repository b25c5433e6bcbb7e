package reader

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// maxCandidates bounds the listed places of an ambiguous point.
const maxCandidates = 16

// Moment is a run at a point of its history.
type Moment struct {
	Head schema.Head
	// records counts the run's messages up to the point, marks included; negative if the walk did not begin at the first one.
	records int64
	// Time at which the server stored the last of them; empty if it is unknown.
	Time string
	// signals were sent after the point; known only to [Reader.Rewind], which reads the run to its end.
	signals []schema.OpenSignal
}

// Place is the beginning of the run's content up to the point. The moment must be one of [Reader.Locate].
func (m *Moment) Place() *Place { return &Place{Segment: 1, Left: m.records} }

// Complete reports whether no event up to the point is known to be missing.
func (m *Moment) Complete() bool { return m.Head.Complete() }

// walker is a sink that folds a run's content in log order.
type walker struct {
	keys    *schema.Keys
	head    schema.Head
	records int64
	// stored is when the server stored the last record; 0 at first.
	stored int64
	// next is the number of the next segment.
	next  int
	order schema.Order
	// record is the current record, for before and behind.
	record *schema.Record
	// before and behind see the head around each record; the walk ends if either returns true.
	before func(*schema.Prepared) bool
	behind func(schema.Verdict) bool
}

// unknownRecords is the number of records before a keyframe: it counts those of the log, and a head does not count marks.
const unknownRecords = -1 << 62

// errSegmentMissing says that a walk reached events that are no longer stored.
var errSegmentMissing = errors.New("a segment is missing")

func (w *walker) Segment(n int, stored []byte) error {
	if n != w.next {
		return fmt.Errorf("segment %d: %w", w.next, errSegmentMissing)
	}
	w.next++
	_, frames, err := schema.DecodeSegment(stored)
	if err != nil {
		return &Damaged{Segment: n, Err: err}
	}
	return w.Frames(frames)
}

func (w *walker) Frames(chunk []byte) error {
	var stop error
	err := schema.ReadFrames(chunk, func(rec schema.Record) bool {
		w.order.Next(&w.head, &rec)
		p := schema.Prepare(w.keys, &rec)
		if w.before(&p) {
			stop = eventlog.ErrStop
			return false
		}
		v := w.head.ApplyPrepared(&p)
		w.records++
		w.stored = rec.Stored
		if w.behind(v) {
			stop = eventlog.ErrStop
		}
		return stop == nil
	})
	return errors.Join(err, stop)
}

// moment is the run after the last record.
func (w *walker) moment() *Moment {
	return &Moment{Head: w.head.Clone(), records: w.records, Time: schema.StoredTime(w.stored)}
}

// Locate finds a point of a run that was read with its content, and folds exactly the records up to it.
func (rd *Reader) Locate(ctx context.Context, r *Snapshot, p schema.Point) (*Moment, error) {
	return rd.locate(ctx, r, p, false)
}

// Rewind returns the record at which a run, read with its content, would continue after a takeover behind a point.
func (rd *Reader) Rewind(ctx context.Context, r *Snapshot, p schema.Point) (*schema.Base, error) {
	m, err := rd.locate(ctx, r, p, true)
	switch {
	case err != nil:
		return nil, err
	case m.Head.Status == "":
		return nil, schema.Fail(schema.CodeBadRequest, "Name a point after its first event: waymark runs history "+r.Run+" lists the existing points.",
			"point %s is before the first event of run %s", p, r.Run)
	case !m.Complete():
		return nil, schema.Fail(schema.CodeDamaged, "Name a point before them, or see what is wrong with: waymark verify "+r.Run+".",
			"events of run %s up to point %s are missing", r.Run, p)
	}
	base, err := schema.RewindTo(p, &m.Head, m.signals)
	if err != nil {
		return nil, schema.Fail(schema.CodeConflict, "Name another point.", "run %s: %s", r.Run, err)
	}
	base.Time = m.Time
	return base, nil
}

// locate finds a point; with whole it reads up to the last record, even after the point is found.
func (rd *Reader) locate(ctx context.Context, r *Snapshot, p schema.Point, whole bool) (*Moment, error) {
	m, err := rd.search(ctx, r, p, rd.beginning(r), whole)
	if errors.Is(err, errSegmentMissing) {
		return nil, schema.Fail(schema.CodePointPurged, "Restore it from a backup, or ask for a point that is before it.",
			"point %s of run %s: %s, and the log does not have its events any more", p, r.Run, err)
	}
	return m, err
}

// fromLog reads a run with an unusable segment from the segments before it and the log. It returns nil if the log no
// longer has the events. Newer events may follow.
func (rd *Reader) fromLog(ctx context.Context, r *Snapshot) (*Snapshot, error) {
	whole, err := rd.fromSegments(ctx, r.Source, r.Run, readOptions{content: true, acceptGaps: true})
	if err != nil {
		return nil, err
	}
	if was, err := rd.passes(ctx, whole, r); err != nil || !was {
		return nil, err
	}
	return whole, nil
}

// passes reports whether another snapshot continues this one.
func (rd *Reader) passes(ctx context.Context, r, other *Snapshot) (bool, error) {
	if r.LogLast <= other.LogLast {
		return r.Head.Digest == other.Head.Digest && r.LogLast == other.LogLast, nil
	}
	same := false
	keys, err := rd.keys.Keys(ctx)
	if err != nil {
		return false, err
	}
	w := &walker{keys: keys, head: schema.NewHead(rd.fleet, r.Run), next: 1}
	w.before = func(*schema.Prepared) bool { return false }
	w.behind = func(schema.Verdict) bool {
		same = w.head.Position == other.Head.Position && w.head.Digest == other.Head.Digest
		return same
	}
	err = rd.withGaps(ctx, r, &Cursor{Next: 1}, w)
	if err == nil {
		err = rd.Tail(ctx, r, w)
	}
	if err != nil && !errors.Is(err, eventlog.ErrStop) {
		return false, err
	}
	return same, nil
}

// search walks through a run from a keyframe to find a point; with whole it walks to the end.
func (rd *Reader) search(ctx context.Context, r *Snapshot, p schema.Point, from *keyframe, whole bool) (*Moment, error) {
	finder, want, err := rd.finder(ctx, r, p)
	if err != nil {
		return nil, err
	}
	var found []Moment
	keys, err := rd.keys.Keys(ctx)
	if err != nil {
		return nil, err
	}
	w := &walker{keys: keys}
	if from.segment > 0 {
		w.records = unknownRecords
	}
	many := finder.Many(r.Head.Epoch)
	var ahead *Moment
	var signals []schema.OpenSignal
	w.before = func(*schema.Prepared) bool {
		if ahead = nil; finder.Before(&w.head) {
			ahead = w.moment()
		}
		return false
	}
	w.behind = func(v schema.Verdict) bool {
		if len(found) > 0 {
			signals = append(signals, schema.SentSignal(&w.head, v)...)
		}
		switch {
		case len(found) > 0 && !many:
		case ahead != nil && finder.Confirmed(v):
			found = append(found, *ahead)
		case finder.Behind(&w.head, v):
			found = append(found, *w.moment())
		}
		return len(found) > 0 && !many && !whole || len(found) == maxCandidates
	}
	err = rd.walk(ctx, r, from, w)
	if err != nil && !errors.Is(err, eventlog.ErrStop) {
		return nil, err
	}
	if len(found) == 0 && finder.AtEnd(&w.head) {
		found = append(found, *w.moment())
	}
	switch {
	case len(found) == 0:
		return nil, noPoint(p, &r.Head)
	case len(found) > 1:
		return nil, manyPoints(p, r.Run, found)
	case want != "" && found[0].Head.Digest != want:
		return nil, schema.Fail(schema.CodeDamaged, "See what is wrong with: waymark verify "+r.Run+".",
			"checkpoint %d of run %s has digest %.16s…, the events up to it %.16s…", p.Number, r.Run, want, found[0].Head.Digest)
	}
	found[0].signals = signals
	return &found[0], nil
}

// finder returns the finder for a point of a run, and the digest that the run must have there, if known.
func (rd *Reader) finder(ctx context.Context, r *Snapshot, p schema.Point) (*schema.Finder, string, error) {
	switch p.Kind {
	case schema.PointMark:
		for i := range r.Head.Marks {
			if m := &r.Head.Marks[i]; m.Name == p.Name {
				return schema.PositionFinder(m.Position), "", nil
			}
		}
		return nil, "", noPoint(p, &r.Head)
	case schema.PointCheckpoint:
		list, err := r.Source.Store.Checkpoints.History(ctx, r.Run)
		if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
			return nil, "", err
		}
		kept := make([]string, 0, len(list))
		for i := range list {
			c := &list[i]
			if uint64(c.Revision) != p.Number {
				kept = append(kept, fmt.Sprintf("checkpoint:%d", c.Revision))
				continue
			}
			if c.Err != nil {
				rd.stats.CorruptCheckpoints.Add(1)
				return nil, "", schema.Fail(schema.CodeDamaged, "Name the place otherwise: waymark runs history "+r.Run+" lists all points.",
					"checkpoint %d of run %s cannot be read: %s", p.Number, r.Run, c.Err)
			}
			return schema.PositionFinder(c.Checkpoint.Position), c.Checkpoint.Digest, nil
		}
		e := schema.Fail(schema.CodePointNotFound, "Use one of those that are kept, or any other kind of point: waymark runs history "+r.Run+" lists them.",
			"no checkpoint of run %s is kept at revision %d", r.Run, p.Number)
		return nil, "", e.With(map[string][]string{"points": kept})
	default:
		return schema.NewFinder(p, r.Head.Superseded), "", nil
	}
}

// noPoint says that a run does not have a point, and which points exist.
func noPoint(p schema.Point, h *schema.Head) error {
	if h.Base != nil && p.Kind != schema.PointMark {
		return schema.Fail(schema.CodePointNotFound, "waymark runs history "+h.Run+" lists the existing points; those before the fork are points of run "+h.Base.Run+".",
			"run %s, a fork of run %s at %s, has no point %s of its own", h.Run, h.Base.Run, h.Base.Point, p)
	}
	has := fmt.Sprintf("it is at epoch %d, sequence %d, turn %d", h.Epoch, h.Sequence, h.Turn)
	switch p.Kind {
	case schema.PointResult:
		has = fmt.Sprintf("it has %d tool calls", h.Counts.ToolCalls)
		if h.Counts.ToolCalls == 1 {
			has = "it has 1 tool call"
		}
	case schema.PointMark:
		names := make([]string, len(h.Marks))
		for i := range h.Marks {
			names[i] = "mark:" + h.Marks[i].Name
		}
		has = fmt.Sprintf("it has %d marks", len(names))
		e := schema.Fail(schema.CodePointNotFound, "Name one of its marks: waymark runs history "+h.Run+" lists them.", "run %s has no point %s: %s", h.Run, p, has)
		return e.With(map[string][]string{"points": names})
	case schema.PointTurn:
		if h.TurnOpen && uint64(h.Turn) == p.Number { //nolint:gosec // turns are from 1
			has = "that turn has not ended"
		}
	default:
	}
	return schema.Fail(schema.CodePointNotFound, "waymark runs history "+h.Run+" lists the existing points.", "run %s has no point %s: %s", h.Run, p, has)
}

// manyPoints lists the places of an ambiguous point.
func manyPoints(p schema.Point, run string, found []Moment) error {
	names := make([]string, len(found))
	for i := range found {
		names[i] = schema.Point{Kind: p.Kind, Epoch: found[i].Head.Epoch, Number: p.Number}.String()
	}
	e := schema.Fail(schema.CodePointAmbiguous, "Choose one: "+strings.Join(names, " or ")+".",
		"run %s has %d points %s, one in each of several epochs", run, len(found), p)
	return e.With(map[string][]string{"points": names})
}
