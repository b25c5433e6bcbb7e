package service

import (
	"context"
	"errors"

	"github.com/waymarkio/waymark/consumer/internal/control"
	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/schema"
)

// Write writes a control event that no request would write.
func Write(ctx context.Context, s *Service, run string, data schema.Data) error {
	_, err := s.writer.write(ctx, run, change{decide: func(context.Context, *reader.Snapshot) (decision, error) { return decision{data: data}, nil }})
	return err
}

// Advance stores a control event without asking the fold before, and returns the answer to its request.
func Advance(ctx context.Context, s *Service, run string, data schema.Data) error {
	r, err := s.routing.proven(ctx, run, reader.Head)
	if err != nil {
		return err
	}
	e, err := s.writer.event(r, "", &decision{data: data})
	if err != nil {
		return err
	}
	at, err := control.Publish(ctx, s.js, r.Source.Store, e, r.LogLast)
	if err != nil {
		return err
	}
	_, err = s.writer.advance(ctx, r, e, at)
	return err
}

// Place puts a run into its shares, as a claim does, and returns the publish of that claim's takeover.
func Place(ctx context.Context, s *Service, run string) (publish func() error, err error) {
	r, err := s.routing.proven(ctx, run, reader.Head)
	if err == nil {
		err = s.writer.places.take(ctx, r)
	}
	return func() error {
		rr := &schema.RecoverRequest{Executor: "executor-9", Reason: schema.TakeoverRequest, RequestID: "request-9"}
		if opened, err := s.writer.open(ctx, r, rr, "", nil); err != nil || !opened {
			return errors.Join(control.ErrRefused, err)
		}
		return nil
	}, err
}
