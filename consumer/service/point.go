package service

import (
	"context"
	"errors"
	"slices"

	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/schema"
)

// getAt answers a read of a run at an earlier point. It writes only a barrier.
func (s *Service) getAt(ctx context.Context, t *task, req *schema.GetRequest) error {
	p, err := schema.ParsePoint(req.At)
	if err != nil {
		return badField("/at", err)
	}
	v, err := s.openView(t, req.View, req.After)
	if err != nil {
		return err
	}
	defer v.close()
	if req.After != "" && v.place.Left < 0 {
		return badField("/after", errors.New("is the next of an answer without a point"))
	}
	r, err := s.whole(ctx, t.run)
	if err != nil {
		return err
	}
	if err := v.foldable(r); err != nil {
		return err
	}
	locate := s.reader.Locate
	if v.view == schema.ViewHead || req.After != "" {
		locate = s.reader.LocateHead
	}
	m, err := locate(ctx, r, p)
	if err != nil {
		return err
	}
	reply := schema.GetReply{
		Head: m.Head, Quarantined: m.Head.Quarantined(s.cfg.MaxClaims), Complete: m.Complete(), Gaps: append([]schema.Gap{}, m.Head.Gaps...), Segments: r.Segments,
		Bytes: r.Segments.Bytes + r.TailBytes(), Shard: r.Source.Store.Names.Shard,
		At: &schema.Moment{Point: p.String(), Records: m.Head.Records, Position: m.Head.Position, Time: m.Time},
	}
	switch v.view {
	case schema.ViewHead:
		return t.whole(&reply)
	case schema.ViewEvents:
		if req.After == "" {
			v.place = m.Place()
		}
		if reply.Next, err = v.page(ctx, r); err != nil {
			return err
		}
		return t.whole(&reply)
	default:
		if err := v.fold(ctx, r.Run, &m.Head); err != nil {
			return err
		}
		if _, err := s.reader.Part(ctx, r, m.Place(), 0, v.state); err != nil {
			return err
		}
		reply.State = v.state.State.View()
		return v.joined(&reply)
	}
}

// mark pins the present end of a run.
func (s *Service) mark(t *task, req *schema.MarkRequest) (c change, err error) {
	if c.who, err = t.sender(req.By); err != nil {
		return c, err
	}
	c.same = repeatOf[*schema.CheckpointMarkedData](t.run, nil)
	c.name = requestName(req.RequestID, c.who, "mark", req.Name)
	c.decide = func(ctx context.Context, r *reader.Snapshot) (decision, error) {
		d, err := markable(r, req, c.who)
		if d.data == nil && err == nil {
			return s.doneAt(ctx, r, r.Head.Position)
		}
		return d, err
	}
	return c, nil
}

// markable decides a request to mark a run: a new mark, nothing if the run's last event is that mark, or a conflict.
func markable(r *reader.Snapshot, req *schema.MarkRequest, who sender) (decision, error) {
	data := &schema.CheckpointMarkedData{Name: req.Name, By: who.by, Claimed: who.claimed}
	i := slices.IndexFunc(r.Head.Marks, func(m schema.Mark) bool { return m.Name == req.Name })
	switch {
	case i >= 0 && r.Head.Marks[i].Position == r.Head.Position:
		return decision{}, nil
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
