package service

import (
	"context"
	"errors"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/internal/base/failpoint"
	"github.com/waymarkio/waymark/schema"
)

// tellParents tells runs of their children's ends, of the shards that this process folds, until ctx ends. The fold
// worker lists each end before its checkpoint is put, and an entry goes once the parent's log has the signal. A crash in
// between repeats the signal, which has the same id.
func (s *Service) tellParents(ctx context.Context) {
	(&repeater[liveness.Untold]{
		list: func() []liveness.Untold { return s.liveRuns.Untold(s.leads) },
		do: func(within context.Context, of liveness.Untold) {
			if err := s.tellParent(within, of); err != nil && ctx.Err() == nil {
				s.log.Warn().Err(err).Str(logkey.Run, of.Run).Msg("parent not told of the end of its child, trying again")
			}
		},
		now: s.now, first: 500 * time.Millisecond, most: time.Minute, atOnce: 32,
	}).run(ctx)
}

// tellParent tells the parent of a run of its end, unless it has ended itself, and drops the entry.
func (s *Service) tellParent(ctx context.Context, of liveness.Untold) error {
	r, removed, err := s.routing.standing(ctx, of.Run)
	var head schema.Head
	switch {
	case errors.Is(err, reader.ErrNoRun):
	case err != nil:
		return err
	case removed != nil:
		head = schema.ErasedHead(removed)
	default:
		head = r.Head
	}
	// A run that was reopened or released since ends later.
	if end := schema.EndOf(&head, s.cfg.MaxClaims); end != nil {
		if err := s.endContent(ctx, r, removed == nil, end); err != nil {
			return err
		}
		if err := s.signalEnd(ctx, end, false); err != nil {
			return err
		}
	}
	if err := failpoint.Hit(ctx, failpoint.AfterTold); err != nil {
		return err
	}
	return s.routing.shards[of.Shard].Store.Checkpoints.Told(ctx, of.Run, of.Revision)
}

// endContent adds the content of the run.ended of a child. Large and encrypted content stays in the child's log.
func (s *Service) endContent(ctx context.Context, r *reader.Snapshot, stands bool, end *schema.ChildEnd) error {
	switch {
	case !stands:
		return nil
	case end.Status == schema.StatusQuarantined:
		end.Partial = len(r.Head.KeyIDs) > 0 && r.Head.LastError != nil
		if !end.Partial {
			end.Error = r.Head.LastError
		}
		return nil
	}
	e, found, err := s.reader.EventAt(ctx, r, r.Head.Position)
	if err != nil {
		return err
	}
	end.Partial = true
	if !found || e.Name() != schema.RunEnded {
		return nil // another event came after it
	}
	data, err := schema.ParseData(e)
	ended, ok := data.(*schema.RunEndedData)
	if err != nil || !ok || len(ended.Refs) > 0 {
		return nil //nolint:nilerr // the reader of the signal reads it
	}
	whole := *end
	whole.Partial, whole.Summary, whole.Output, whole.Error = false, ended.Summary, ended.Output, ended.Error
	if text, err := json.Marshal(&whole); err == nil && len(text) <= schema.MaxSignalPayload {
		*end = whole
	}
	return nil
}

// signalEnd writes the signal into the parent's log. There is nothing to tell to a parent that has ended or is gone. One
// that ended because the child continues its work has a parent that waits for the child; passed says that this is it, so
// parents in a circle are asked once.
func (s *Service) signalEnd(ctx context.Context, end *schema.ChildEnd, passed bool) error {
	payload, err := json.Marshal(end)
	if err != nil {
		return err
	}
	id := end.SignalID()
	data := &schema.SignalSentData{SignalID: id, Name: schema.ChildPrefix + string(end.Status), Payload: payload, By: s.cfg.Name}
	_, err = s.writer.write(ctx, end.Parent, change{
		who: sender{by: s.cfg.Name}, name: schema.RequestName("signal", id), same: repeatOf[*schema.SignalSentData](end.Parent, nil),
		decide: func(_ context.Context, r *reader.Snapshot) (decision, error) {
			return decision{data: data}, signallable(r)
		},
	})
	if errors.Is(err, reader.ErrNoRun) {
		return nil
	}
	if refused, ok := errors.AsType[*schema.ServiceError](err); ok {
		switch refused.Code {
		case schema.CodeRunEnded:
			r, err := s.routing.find(ctx, end.Parent, reader.Head)
			if err != nil || !r.Head.Status.Terminal() {
				return errors.Join(err, refused)
			}
			over := schema.EndOf(&r.Head, 0)
			if over == nil || over.ContinuedBy != end.Run || over.Parent == end.Parent || passed {
				return nil
			}
			end.Parent = over.Parent
			return s.signalEnd(ctx, end, true)
		case schema.CodeNotFound, schema.CodeErased:
			return nil
		case schema.CodeRunFull:
			s.log.Error().Err(err).Str(logkey.Run, end.Parent).Str("child", end.Run).Msg("parent cannot be told of the end of its child")
			return nil
		default: // told later
		}
	}
	return err
}
