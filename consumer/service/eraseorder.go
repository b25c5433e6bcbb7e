package service

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/waymarkio/waymark/consumer/internal/control"
	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/consumer/retention"
	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// withdrawPatience is how long the withdrawal of an order may take after its request ended.
const withdrawPatience = 2 * time.Second

// remove orders the removal of a run, decides it, and puts its tombstone into the log; the fold worker of the shard
// does the rest.
// The order is first: it tells clients that begin a fork of the run that the run is being removed. Then forks of the
// run are searched. Then the order is decided, by compare-and-set on itself. Then the tombstone is put, by
// compare-and-set on the run's last event. Any daemon may withdraw an order that is not decided. Any daemon that
// finds a decided one executes it, and may withdraw it only if the log has another event in the tombstone's place: so
// the log never has a tombstone without its order.
func (s *Service) remove(ctx context.Context, run string, why removal) (*reader.Source, error) {
	for {
		record, rev, src, err := s.order(ctx, run, &why)
		switch {
		case errors.Is(err, kvstore.ErrConflict): // another request's order was put or withdrawn now
		case err != nil || record == nil:
			return src, err
		default:
			over, err := s.carry(ctx, src, record, rev)
			if err != nil || over {
				return src, err
			}
		}
		if err := pause.For(ctx, retryPause); err != nil {
			return nil, fmt.Errorf("run %s: %w: %w", run, err, control.ErrRefused)
		}
	}
}

// carry brings an order up to its tombstone in the log. It reports false if it must be begun again: the run
// continued, or another request had the order.
func (s *Service) carry(ctx context.Context, src *reader.Source, record *schema.Erasure, rev schema.Revision) (bool, error) {
	run := record.Run
	if !record.Decided() {
		if err := s.unneeded(ctx, run); err != nil {
			// Also after the deadline: no other request withdraws it.
			work, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawPatience)
			defer cancel()
			there, werr := src.Store.Erasures.Withdraw(work, run, rev)
			if werr == nil && !there && ctx.Err() == nil {
				return false, nil // another request decided it: it found no fork, and continues
			}
			return false, errors.Join(err, werr)
		}
		record.DecidedAt = schema.FormatTime(s.now())
		var err error
		if rev, err = src.Store.Erasures.Order(ctx, record, rev); errors.Is(err, kvstore.ErrConflict) {
			return false, nil
		} else if err != nil {
			return false, err
		}
	}
	marked, err := retention.Mark(ctx, s.js, src.Store, s.cfg.Name, record, s.now())
	if err != nil {
		return false, err // unknown whether it is stored: the fold worker continues with the order
	}
	if !marked {
		_, err := src.Store.Erasures.Withdraw(ctx, run, rev)
		return false, err
	}
	s.log.Info().Str(logkey.Run, run).Str("by", record.By).Str("erasure", record.ID).Msg("removal of a run ordered")
	return true, nil
}

// order returns the order to remove a run, an earlier one or a new one, or nil for a removed run. An earlier one that
// is not decided is judged again, by the new request. It returns [kvstore.ErrConflict] if the caller must ask again.
func (s *Service) order(ctx context.Context, run string, why *removal) (*schema.Erasure, schema.Revision, *reader.Source, error) {
	src := s.routing.of(run)
	record, rev, err := s.routing.erasure(ctx, run)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		record = nil
	case err != nil:
		return nil, 0, nil, err
	case record.RemovedAt != "":
		return nil, 0, src, nil
	case record.Decided():
		return record, rev, src, nil
	}
	r, err := s.reader.Proven(ctx, run, reader.Head)
	if err != nil {
		return nil, 0, nil, err
	}
	h := &r.Head
	if why.at.ID != "" && h.Position != why.at {
		return nil, 0, nil, schema.Fail(schema.CodeConflict, "The next cleanup plans it again.", "run %s continued after its removal was planned", run)
	}
	if !why.force {
		if err := removable(r); err != nil {
			return nil, 0, nil, err
		}
	}
	if record != nil {
		if record.Position.Stream == r.LogLast {
			return record, rev, src, nil
		}
		if _, err := src.Store.Erasures.Withdraw(ctx, run, rev); err != nil {
			return nil, 0, nil, err
		}
	}
	if err := s.unneeded(ctx, run); err != nil {
		return nil, 0, nil, err // most refused requests leave no order behind
	}
	record = &schema.Erasure{
		Fleet: s.cfg.Fleet, Run: run, Shard: r.Source.Store.Names.Shard, ID: rand.Text(), By: why.by, Claimed: why.claimed, Reason: why.reason,
		AskedAt: schema.FormatTime(s.now()), Force: why.force, Status: h.Status, Events: h.Counts.Events, Digest: h.Digest, Position: schema.Position{Stream: r.LogLast, ID: h.Position.ID},
		Segments: r.Segments, TailBytes: r.TailBytes(), Keys: append(schema.ChildKeys(h), schema.EndedKeys(h)...),
	}
	rev, err = r.Source.Store.Erasures.Order(ctx, record, 0)
	return record, rev, r.Source, err
}
