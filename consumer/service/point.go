package service

import (
	"context"
	"slices"

	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/schema"
)

// pointOf reads the point of a request. The other fields are checked already.
func pointOf(text string, after int) (schema.Point, error) {
	p, err := schema.ParsePoint(text)
	switch {
	case err != nil:
		return p, badField("/at", err)
	case after != 0:
		return p, badField("/after", errAfterWithAt)
	}
	return p, nil
}

// answerAt answers with a run at an earlier point. It takes nothing over and writes only a barrier.
func (s *Service) answerAt(ctx context.Context, t *task, want wish, p schema.Point,
	build func(*reader.Snapshot, *reader.Moment, *schema.Moment, *schema.StateView) any,
) error {
	v, err := s.pointView(t, want)
	if err != nil {
		return err
	}
	defer v.close()
	r, err := s.routing.proven(ctx, t.run, reader.Content)
	if err == nil && r.Head.Status == "" {
		return errNothingAccepted(t.run)
	}
	if err != nil {
		return err
	}
	if err := v.foldable(r); err != nil {
		return err
	}
	if err := s.routing.stays(ctx, t.run); err != nil {
		return err
	}
	locate := s.reader.Locate
	if v.view == schema.ViewHead {
		locate = s.reader.LocateHead
	}
	m, r, err := locate(ctx, r, p)
	if err != nil {
		return err
	}
	switch v.view {
	case schema.ViewEvents:
		if _, err := v.open(); err != nil {
			return err
		}
		if err := s.reader.ContentTo(v.out.ctx, r, m, v.out); err != nil { //nolint:contextcheck // a task carries its own context
			return err
		}
	case schema.ViewState:
		if err := v.fold(ctx, r.Run, &m.Head); err != nil {
			return err
		}
		if err := s.reader.ContentTo(ctx, r, m, v.state); err != nil {
			return err
		}
	}
	s.stats.Points.Add(1)
	at := &schema.Moment{Point: p.String(), Records: m.Head.Records, Position: m.Head.Position, Begun: m.Begun}
	if v.view == schema.ViewState {
		return v.joined(func(state *schema.StateView) any { return build(r, m, at, state) })
	}
	return t.whole(build(r, m, at, nil))
}

// getAt answers a read of a run at a point.
func (s *Service) getAt(ctx context.Context, t *task, req *schema.GetRequest) error {
	p, err := pointOf(req.At, req.After)
	if err != nil {
		return err
	}
	return s.answerAt(ctx, t, wishOf(req), p, func(r *reader.Snapshot, m *reader.Moment, at *schema.Moment, state *schema.StateView) any {
		return &schema.GetReply{
			Head: m.Head, State: state, Quarantined: m.Head.Quarantined(s.cfg.MaxClaims), Complete: m.Complete(), Gaps: gapsOf(&m.Head), Segments: r.Segments,
			Bytes: r.Segments.Bytes + r.TailBytes(), Shard: r.Source.Store.Names.Shard, At: at,
		}
	})
}

// recoverAt answers a recovery at a point. The point is in the past and has no executor, so no epoch is opened.
func (s *Service) recoverAt(ctx context.Context, t *task, req *schema.RecoverRequest) error {
	p, err := pointOf(req.At, req.After)
	if err != nil {
		return err
	}
	return s.answerAt(ctx, t, wish{view: req.View}, p, func(r *reader.Snapshot, m *reader.Moment, at *schema.Moment, state *schema.StateView) any {
		inDoubt := m.Head.InDoubt()
		if inDoubt == nil {
			inDoubt = []schema.OpenCall{}
		}
		return &schema.RecoverReply{
			Head: m.Head, State: state, Epoch: m.Head.Epoch, NextSequence: m.Head.Sequence + 1, LastStream: m.Head.Position.Stream,
			InDoubt: inDoubt, Complete: m.Complete(), Gaps: gapsOf(&m.Head), Segments: r.Segments, Shard: r.Source.Store.Names.Shard, At: at,
		}
	})
}

// gapsOf are a head's gaps, never nil.
func gapsOf(h *schema.Head) []schema.Gap { return append([]schema.Gap{}, h.Gaps...) }

// mark pins the present end of a run.
func (s *Service) mark(ctx context.Context, t *task) error {
	var req schema.MarkRequest
	if err := t.decode(&req); err != nil {
		return err
	}
	who, err := t.sender(req.By)
	if err != nil {
		return err
	}
	once, err := onceFor(req.RequestID, who, "mark", req.Name)
	if err != nil {
		return err
	}
	once.fact = true // like the mark
	reply, err := s.writer.write(ctx, t.run, once, who, func(ctx context.Context, r *reader.Snapshot) (decision, error) {
		d, err := markable(r, &req, who)
		if d.there != nil {
			// The reply names the sender of the first request.
			if there, err := s.reader.LatestEvent(ctx, r, func(id string, _ *schema.Event) bool { return id == d.there.EventID }); err != nil || there != nil {
				return decision{there: there}, err
			}
		}
		return d, err
	})
	if err != nil {
		return err
	}
	return t.whole(reply)
}

// markable decides a request to mark a run: a new mark, an existing one, or a conflict.
func markable(r *reader.Snapshot, req *schema.MarkRequest, who sender) (decision, error) {
	data := &schema.CheckpointMarkedData{Name: req.Name, By: who.by, Claimed: who.claimed}
	i := slices.IndexFunc(r.Head.Marks, func(m schema.Mark) bool { return m.Name == req.Name })
	switch {
	case i >= 0 && r.Head.Marks[i].Position == r.Head.Position:
		at := r.Head.Position
		return decision{there: &schema.ControlReply{EventID: at.ID, Stream: at.Stream}}, nil
	case i >= 0 && !req.Move:
		m := &r.Head.Marks[i]
		return decision{}, schema.Fail(schema.CodeConflict, "Choose another name, or say that the mark moves.",
			"run %s has mark %.80q already, at epoch %d, sequence %d, turn %d", r.Run, req.Name, m.Epoch, m.Sequence, m.Turn)
	case i < 0 && len(r.Head.Marks) >= schema.MaxMarks:
		return decision{}, schema.Fail(schema.CodeConflict, "Move one of them.", "run %s has %d marks, the most that a run can have", r.Run, schema.MaxMarks)
	default:
		return decision{data: data}, nil
	}
}
