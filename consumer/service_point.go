package consumer

import (
	"context"
	"slices"

	"github.com/waymarkio/waymark/schema"
)

// pointOf reads the point of a request, of which the other fields are checked already.
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

// answerAt answers with a run as it was at a point. It takes nothing over and writes nothing but a barrier.
func (s *Service) answerAt(ctx context.Context, t *task, view string, p schema.Point, build func(*reading, *moment, *schema.Moment) any) error {
	v, err := s.pointView(t, view)
	if err != nil {
		return err
	}
	defer v.close()
	r, err := s.proven(ctx, t.run, mode{content: true})
	if err == nil && r.head.Status == "" {
		return errNothingAccepted(t.run)
	}
	if err != nil {
		return err
	}
	if err := s.stays(ctx, t.run); err != nil {
		return err
	}
	m, r, err := s.reader.locate(ctx, r, p)
	if err != nil {
		return err
	}
	switch v.kind {
	case schema.ViewEvents:
		if _, err := v.open(); err != nil {
			return err
		}
		if err := s.reader.contentTo(v.out.ctx, r, m, v.out); err != nil { //nolint:contextcheck // a task carries its own context
			return err
		}
	case schema.ViewState:
		if err := v.fold(ctx, r.run, &m.head); err != nil {
			return err
		}
		if err := s.reader.contentTo(ctx, r, m, v.state); err != nil {
			return err
		}
	}
	s.stats.Points.Add(1)
	if err := t.answer(build(r, m, &schema.Moment{Point: p.String(), Records: m.head.Records, Position: m.head.Position, Begun: m.begun})); err != nil {
		return err
	}
	if v.kind == schema.ViewState {
		if _, err := v.open(); err != nil {
			return err
		}
		if err := v.out.json(v.state.state); err != nil {
			return err
		}
	}
	return t.send(schema.KindEnd, nil, "")
}

// getAt answers a read of a run as it was at a point.
func (s *Service) getAt(ctx context.Context, t *task, req *schema.GetRequest) error {
	p, err := pointOf(req.At, req.After)
	if err != nil {
		return err
	}
	return s.answerAt(ctx, t, req.View, p, func(r *reading, m *moment, at *schema.Moment) any {
		return &schema.GetReply{
			Head: m.head, Quarantined: m.head.Quarantined(s.cfg.MaxClaims), Complete: m.complete(), Gaps: gapsOf(&m.head), Segments: r.index,
			Bytes: r.index.Bytes + r.tail.bytes, Shard: r.src.store.Names.Shard, At: at,
		}
	})
}

// recoverAt answers a recovery at a point. The point is in the past and belongs to nobody, so no epoch is opened.
func (s *Service) recoverAt(ctx context.Context, t *task, req *schema.RecoverRequest) error {
	p, err := pointOf(req.At, req.After)
	if err != nil {
		return err
	}
	return s.answerAt(ctx, t, req.View, p, func(r *reading, m *moment, at *schema.Moment) any {
		inDoubt := m.head.InDoubt()
		if inDoubt == nil {
			inDoubt = []schema.OpenCall{}
		}
		return &schema.RecoverReply{
			Head: m.head, Epoch: m.head.Epoch, NextSequence: m.head.Sequence + 1, LastStream: m.head.Position.Stream,
			InDoubt: inDoubt, Complete: m.complete(), Gaps: gapsOf(&m.head), Segments: r.index, Shard: r.src.store.Names.Shard, At: at,
		}
	})
}

// gapsOf are a head's gaps, never nil.
func gapsOf(h *schema.Head) []schema.Gap { return append([]schema.Gap{}, h.Gaps...) }

// mark pins the point where a run stands.
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
	reply, err := s.control(ctx, t.run, once, who, func(ctx context.Context, r *reading) (decision, error) {
		d, err := markable(r, &req, who)
		if d.there != nil {
			// The reply names the sender of the first request.
			if there, err := s.reader.lately(ctx, r, func(id string, _ *schema.Event) bool { return id == d.there.EventID }); err != nil || there != nil {
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

// markable says what marking a run as it is means: a new mark, one that stands there already, or a conflict.
func markable(r *reading, req *schema.MarkRequest, who sender) (decision, error) {
	data := &schema.CheckpointMarkedData{Name: req.Name, By: who.by, Claimed: who.claimed}
	i := slices.IndexFunc(r.head.Marks, func(m schema.Mark) bool { return m.Name == req.Name })
	switch {
	case i >= 0 && r.head.Marks[i].Position == r.head.Position:
		at := r.head.Position
		return decision{there: &schema.ControlReply{EventID: at.ID, Stream: at.Stream}}, nil
	case i >= 0 && !req.Move:
		m := &r.head.Marks[i]
		return decision{}, fail(schema.CodeConflict, "Choose another name, or say that the mark moves.",
			"run %s has mark %.80q already, at epoch %d, sequence %d, turn %d", r.run, req.Name, m.Epoch, m.Sequence, m.Turn)
	case i < 0 && len(r.head.Marks) >= schema.MaxMarks:
		return decision{}, fail(schema.CodeConflict, "Move one of them.", "run %s has %d marks, the most that a run can have", r.run, schema.MaxMarks)
	default:
		return decision{data: data}, nil
	}
}
