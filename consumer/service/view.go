package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/internal/base/failpoint"
	"github.com/waymarkio/waymark/schema"
)

// view is one answer in a view that the client asked for, and the state folded for it.
type view struct {
	svc   *Service
	task  *task
	view  string
	state *reader.StateSink
	// place is where the content of view events begins.
	place *reader.Place
}

// openView opens the view of a request, "" for state. Every answer is sent without waiting for the client: view events
// are read page by page, and after is the place of the page. stateBudget bounds the memory of view state. View head
// keeps one head; at a point it reads the run, of any size, without that bound.
func (s *Service) openView(t *task, name, after string) (*view, error) {
	v := &view{svc: s, task: t, view: cmp.Or(name, schema.ViewState), place: &reader.Place{Segment: 1, Left: reader.ToEnd}}
	if after == "" {
		return v, nil
	}
	p, form := v.place, "%d.%d.%d"
	_, err := fmt.Sscanf(after, form, &p.Segment, &p.Have, &p.Left)
	if err != nil || p.Segment < 1 || p.Have < 0 || p.Left < reader.ToEnd || fmt.Sprintf(form, p.Segment, p.Have, p.Left) != after || v.view != schema.ViewEvents {
		return nil, badField("/after", errors.New("is not the next of an answer with view events"))
	}
	return v, nil
}

// close frees the folded state. It may be called again.
func (v *view) close() {
	if v.state != nil {
		v.state.Release()
	}
}

func (v *view) want() reader.Want { return reader.Want(v.view != schema.ViewHead) }

// prepare does what can fail for the view alone, before a takeover changes anything.
func (v *view) prepare(ctx context.Context, r *reader.Snapshot) error {
	if v.view != schema.ViewState {
		return nil
	}
	if v.state != nil {
		v.state.Release()
	}
	if err := v.foldable(r); err != nil {
		return err
	}
	if err := v.fold(ctx, r.Run, &r.Head); err != nil {
		return err
	}
	if err := v.svc.reader.Sealed(ctx, r, &reader.Cursor{Next: 1}, v.state); err != nil {
		return err
	}
	return v.svc.reader.Tail(ctx, r, v.state)
}

// foldable refuses view state of a run that is too large for the daemon to fold.
func (v *view) foldable(r *reader.Snapshot) error {
	if v.view == schema.ViewState && r.Segments.Bytes+r.TailBytes() > schema.MaxStateView {
		return reader.ErrTooLarge
	}
	return nil
}

// fold begins a state for folding a run up to a head, with a fork's content from its base.
func (v *view) fold(ctx context.Context, run string, to *schema.Head) error {
	keys, err := v.svc.keys.Keys(ctx)
	if err != nil {
		return err
	}
	v.state = reader.NewStateSink(keys, schema.NewState(v.svc.cfg.Fleet, run), v.svc.budget)
	return v.svc.reader.Graft(ctx, v.state, run, to.Base, 0)
}

// finish folds the events read since, and compares the state with the head.
func (v *view) finish(ctx context.Context, r *reader.Snapshot) error {
	if v.state == nil {
		return nil
	}
	if v.state.State.Head.Position.Stream < r.LogLast {
		keys, err := v.svc.keys.Keys(ctx)
		if err != nil {
			return err
		}
		v.state.Again(keys)
		if err := v.svc.reader.Tail(ctx, r, v.state); err != nil {
			return err
		}
	}
	if got := v.state.State.Head.Digest; got != r.Head.Digest && r.Complete() {
		v.svc.log.Error().Str(logkey.Run, r.Run).Str("digest", got).Str("want", r.Head.Digest).Msg("state and head differ")
		r.Lost = append(r.Lost, schema.Gap{Epoch: r.Head.Epoch, From: v.state.State.Head.Sequence + 1, To: r.Head.Sequence, At: r.Head.Position, Reason: schema.ReasonLost})
	}
	return nil
}

// answer sends the view's content, and then the answer itself, which is built last: with the folded state, or the place
// of the next page.
func (s *Service) answer(ctx context.Context, v *view, r *reader.Snapshot, build func(state *schema.State, next string) any) error {
	if err := failpoint.Hit(ctx, failpoint.BeforeReply); err != nil {
		return err
	}
	switch v.view {
	case schema.ViewHead:
		return v.task.whole(build(nil, ""))
	case schema.ViewState:
		return v.joined(build(v.state.State.View(), ""))
	default:
		next, err := v.page(ctx, r)
		if err != nil {
			return err
		}
		return v.task.whole(build(nil, next))
	}
}

// page sends a page of the run's events, and returns the place of the next one, "" for none.
func (v *view) page(ctx context.Context, r *reader.Snapshot) (next string, err error) {
	more, err := v.svc.reader.Part(ctx, r, v.place, schema.PageBytes, v)
	if more {
		next = fmt.Sprintf("%d.%d.%d", v.place.Segment, v.place.Have, v.place.Left)
	}
	return next, err
}

// Segment and Frames send a piece of a page.
func (v *view) Segment(_ int, stored []byte) error { return v.task.send(schema.KindSegment, stored) }

// Frames is as Segment.
func (v *view) Frames(chunk []byte) error { return v.task.send(schema.KindFrames, chunk) }
