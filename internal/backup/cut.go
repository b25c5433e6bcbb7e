package backup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/internal/jsapi"
	"github.com/waymarkio/waymark/internal/keyring"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

var (
	// ErrFuture comes for a cut at a time that is not over by the server's clock, or at a position that the log has
	// not reached: it would not stay the same. Choose one in the past.
	ErrFuture = errors.New("it is not past")
	// ErrMoving comes if more of a run was sealed during each read. Try again.
	ErrMoving = errors.New("the run is being sealed")
)

// CutConfig says where to cut a fleet.
type CutConfig struct {
	// Fleet to cut. Required.
	Fleet string
	// Time of the cut, by the servers' clocks. Zero when Positions are given.
	Time time.Time
	// Positions are the last included positions of the shards' logs, by shard; every shard of the fleet must be
	// there.
	Positions map[int]schema.StreamSequence
	// OnShard is called with each shard's cut before its runs, OnRun with each run that had begun, in the order of shards and ids.
	// An error ends the cut. Both are required.
	OnShard func(ShardPoint) error
	OnRun   func(RunPoint) error
}

// ShardPoint is where a shard's log is cut.
type ShardPoint struct {
	Shard int `json:"shard"`
	// Position is the last included position.
	Position schema.StreamSequence `json:"position"`
	// After is when the server stored the last included message of the log, Before when it stored the first excluded
	// one; empty if there is none. Events between the two were moved to segments, which have the server's times, too.
	After  string `json:"after,omitzero"`
	Before string `json:"before,omitzero"`
}

// RunPoint is a run at the cut: its last boundary up to there.
type RunPoint struct {
	Run   string `json:"run"`
	Shard int    `json:"shard"`
	// Point is that boundary in the form for recover, fork and diff; empty for a run that had none.
	Point string `json:"point,omitzero"`
	// The run after the boundary.
	Position schema.Position `json:"position"`
	Epoch    schema.Epoch    `json:"epoch"`
	Sequence schema.Sequence `json:"sequence"`
	Turn     int32           `json:"turn"`
	Status   schema.Status   `json:"status"`
	Events   int64           `json:"events"`
	Digest   string          `json:"digest"`
	// UpdatedAt is the time of the event, by its writer's clock.
	UpdatedAt string `json:"updated_at,omitzero"`
	// WentOn: the run has later events.
	WentOn bool `json:"went_on,omitzero"`
	// Gaps counts the gaps before the boundary.
	Gaps int64 `json:"gaps,omitzero"`
}

// Cut finds for each run of a fleet the last boundary up to a time or to positions of the logs. Within a shard the
// cut is one position of the log: an event counts if and only if it is not after it. Between shards it is as exact as
// the servers' clocks. Nothing is written. Removed runs are not in it.
func Cut(ctx context.Context, js jetstream.JetStream, cfg CutConfig) error {
	settings, _, err := kvstore.NewFleets(js).Get(ctx, cfg.Fleet)
	if err != nil {
		return err
	}
	if cfg.Time.IsZero() == (len(cfg.Positions) == 0) {
		return fmt.Errorf("%w: either a time or positions", ErrConfig)
	}
	if cfg.Time.IsZero() {
		for i := range settings.Shards {
			if _, ok := cfg.Positions[i]; !ok {
				return fmt.Errorf("%w: shard %d has no position, and the fleet has %d shards", ErrConfig, i, settings.Shards)
			}
		}
		if len(cfg.Positions) != settings.Shards {
			return fmt.Errorf("%w: there are positions of shards %v, and the fleet has %d shards", ErrConfig, slices.Sorted(maps.Keys(cfg.Positions)), settings.Shards)
		}
	}
	keys, err := keyring.Parse(settings.Fleet, settings.Keys)
	if err != nil {
		return err
	}
	for i := range settings.Shards {
		shard, err := kvstore.OpenShard(js, settings, i, "cut")
		if err != nil {
			return err
		}
		if err := (&cutter{js: js, keys: keys, shard: shard, cfg: &cfg}).cut(ctx); err != nil {
			return fmt.Errorf("cut shard %d: %w", i, err)
		}
	}
	return nil
}

// cutter cuts one shard.
type cutter struct {
	js    jetstream.JetStream
	keys  *schema.Keys
	shard *kvstore.Shard
	cfg   *CutConfig
}

func (c *cutter) cut(ctx context.Context) error {
	names := c.shard.Names
	stream, err := c.js.Stream(ctx, names.EventStream())
	if err != nil {
		return err
	}
	// Only a leader with a quorum can do this, so that the next answers do not come from an isolated one.
	if err := stream.Purge(ctx, jetstream.WithPurgeSubject(names.EventSubject("_nothing"))); err != nil {
		return err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(names.EventSubjects()))
	if err != nil {
		return err
	}
	var runs []string
	for subject := range info.State.Subjects {
		if run := names.RunOfSubject(subject); schema.ValidName(run) && run != schema.BarrierRun {
			runs = append(runs, run)
		}
	}
	slices.Sort(runs)
	at, err := c.point(ctx, info, runs)
	if err != nil {
		return err
	}
	if err := c.cfg.OnShard(at); err != nil {
		return err
	}
	for _, run := range runs {
		p, begun, err := c.run(ctx, run, at.Position)
		if err != nil {
			return fmt.Errorf("run %s: %w", run, err)
		}
		if !begun {
			continue
		}
		if err := c.cfg.OnRun(p); err != nil {
			return err
		}
	}
	return nil
}

// stored is a message of the log.
type stored struct {
	seq schema.StreamSequence
	at  time.Time
}

// next asks the leader for the first message of the log from a position on.
func (c *cutter) next(ctx context.Context, from schema.StreamSequence) (m stored, there bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := jsapi.Get(ctx, c.js, c.shard.Names.EventStream(), jsapi.GetRequest{Seq: max(uint64(from), 1), NextFor: c.shard.Names.EventSubjects()})
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return stored{}, false, nil
	case err != nil:
		return stored{}, false, err
	}
	return stored{schema.StreamSequence(answer.Sequence), answer.Time}, true, nil
}

// point finds the position of the log at which the shard is cut.
func (c *cutter) point(ctx context.Context, info *jetstream.StreamInfo, runs []string) (ShardPoint, error) {
	p := ShardPoint{Shard: c.shard.Names.Shard}
	last := schema.StreamSequence(info.State.LastSeq)
	if c.cfg.Time.IsZero() {
		p.Position = c.cfg.Positions[p.Shard]
		if p.Position > last {
			return p, fmt.Errorf("%w: the log ends at %d, before %d", ErrFuture, last, p.Position)
		}
		return p, nil
	}
	if c.cfg.Time.After(info.TimeStamp) {
		return p, fmt.Errorf("%w: %s is after the server's time, %s", ErrFuture, schema.FormatTime(c.cfg.Time), schema.FormatTime(info.TimeStamp))
	}
	// The positions are in time order: search for the first whose next message is not before the cut.
	low, high := schema.StreamSequence(info.State.FirstSeq), last+1
	var before, after stored // the messages next to the cut
	after.seq = last + 1
	for low < high {
		middle := low + (high-low)/2
		m, there, err := c.next(ctx, middle)
		if err != nil {
			return p, err
		}
		if !there || !m.at.Before(c.cfg.Time) {
			high = middle
			if there {
				after = m
			} else {
				after = stored{seq: last + 1}
			}
			continue
		}
		before, low = m, m.seq+1
	}
	if !before.at.IsZero() {
		p.After = schema.FormatTime(before.at)
	}
	if !after.at.IsZero() {
		p.Before = schema.FormatTime(after.at)
	}
	p.Position = after.seq - 1
	if before.seq+1 == after.seq {
		return p, nil
	}
	return c.between(ctx, p, before.seq, after.seq, runs)
}

// between decides about positions that the log no longer has: their events are in segments, with the server's times
// of storage. The cut is before the first of them that is not before its time.
func (c *cutter) between(ctx context.Context, p ShardPoint, before, after schema.StreamSequence, runs []string) (ShardPoint, error) {
	for _, run := range runs {
		for n := 1; ; n++ {
			packed, err := c.shard.Segments.GetFresh(ctx, run, n)
			if errors.Is(err, kvstore.ErrNotFound) {
				break
			}
			if err != nil {
				return p, err
			}
			info, err := schema.DecodeSegmentInfo(packed)
			if err != nil {
				return p, fmt.Errorf("segment %d of run %s: %w", n, run, err)
			}
			if info.First.Stream >= after {
				break
			}
			if info.Last.Stream <= before {
				continue
			}
			_, frames, err := schema.DecodeSegment(packed)
			if err != nil {
				return p, fmt.Errorf("segment %d of run %s: %w", n, run, err)
			}
			err = schema.ReadFrames(frames, func(r schema.Record) bool {
				if r.Stream <= before || r.Stream >= after {
					return true
				}
				if !time.Unix(0, r.Stored).Before(c.cfg.Time) {
					p.Position = min(p.Position, r.Stream-1)
				}
				return true
			})
			if err != nil {
				return p, fmt.Errorf("segment %d of run %s: %w", n, run, err)
			}
		}
	}
	return p, nil
}

// cutTries bounds how often a run is read again because more of it was sealed during the read.
const cutTries = 5

// run finds a run's last boundary up to a position. begun is false for a run that has no event up to there.
func (c *cutter) run(ctx context.Context, run string, upTo schema.StreamSequence) (p RunPoint, begun bool, err error) {
	for range cutTries {
		f := &folding{keys: c.keys, head: schema.NewHead(c.shard.Names.Fleet, run), upTo: upTo}
		n, logged, err := c.read(ctx, run, f)
		if err != nil {
			return p, false, err
		}
		if logged {
			whole, err := c.whole(ctx, run, n, upTo)
			if err != nil {
				return p, false, err
			}
			if !whole {
				continue
			}
		}
		if f.records == 0 {
			return p, false, nil
		}
		return f.point(run, c.shard.Names.Shard), true, nil
	}
	return p, false, ErrMoving
}

// whole reports whether the log's events of a run up to a position are complete: the first unread segment may have
// been sealed during the read, and its events purged. Events after the position do not show that.
func (c *cutter) whole(ctx context.Context, run string, n int, upTo schema.StreamSequence) (bool, error) {
	packed, err := c.shard.Segments.GetFresh(ctx, run, n)
	if errors.Is(err, kvstore.ErrNotFound) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	info, err := schema.DecodeSegmentInfo(packed)
	if err != nil {
		return false, fmt.Errorf("segment %d: %w", n, err)
	}
	return info.First.Stream > upTo, nil
}

// read folds a run's segments and then the log, and returns the number of the first unread segment, and whether it
// reached the log.
func (c *cutter) read(ctx context.Context, run string, f *folding) (next int, logged bool, err error) {
	last := schema.StreamSequence(0)
	next = 1
	for ; !f.beyond; next++ {
		packed, err := c.shard.Segments.GetFresh(ctx, run, next)
		if errors.Is(err, kvstore.ErrNotFound) {
			break
		}
		if err != nil {
			return next, false, err
		}
		info, frames, err := schema.DecodeSegment(packed)
		if err != nil {
			return next, false, fmt.Errorf("segment %d: %w", next, err)
		}
		last = info.Last.Stream
		if err := schema.ReadFrames(frames, f.add); err != nil {
			return next, false, fmt.Errorf("segment %d: %w", next, err)
		}
	}
	if f.beyond {
		return next, false, nil
	}
	err = eventlog.Read(ctx, c.js, c.shard.Names, run, last+1, func(r schema.Record) error {
		if !f.add(r) {
			return eventlog.ErrStop
		}
		return nil
	})
	if errors.Is(err, eventlog.ErrStop) {
		err = nil
	}
	return next, true, err
}

// folding folds a run up to a position and keeps its last boundary.
type folding struct {
	keys    *schema.Keys
	head    schema.Head
	upTo    schema.StreamSequence
	records int
	beyond  bool
	// at is the head after the last boundary.
	at     schema.Head
	bounds bool
	// name is the shortest name of that boundary: the sequence of an executor's event, else the event's id.
	name schema.Point
}

// add folds a record, and returns false for the first one beyond.
func (f *folding) add(r schema.Record) bool {
	if r.Stream > f.upTo {
		f.beyond = true
		return false
	}
	if v := f.head.Apply(f.keys, &r); v.Kind != schema.Skipped {
		f.records++
		if v.Boundary {
			f.at, f.bounds = f.head.Clone(), true
			f.name = schema.Point{Kind: schema.PointEvent, Name: f.at.Position.ID}
			if v.Event.Sequence != 0 && v.Kind == schema.Applied {
				f.name = schema.Point{Kind: schema.PointSequence, Epoch: f.at.Epoch, Number: uint64(v.Event.Sequence)}
			}
		}
	}
	return true
}

func (f *folding) point(run string, shard int) RunPoint {
	p := RunPoint{Run: run, Shard: shard, WentOn: f.beyond, Gaps: f.head.Counts.Gaps}
	if !f.bounds {
		return p
	}
	h := &f.at
	p.Position, p.Epoch, p.Sequence, p.Turn, p.Status = h.Position, h.Epoch, h.Sequence, h.Turn, h.Status
	p.Events, p.Digest, p.UpdatedAt = h.Counts.Events, h.Digest, h.UpdatedAt
	p.Point = f.name.String()
	return p
}
