package service

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/waymarkio/waymark/consumer/internal/control"
	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/consumer/retention"
	"github.com/waymarkio/waymark/internal/base/pause"
	plan "github.com/waymarkio/waymark/internal/base/retention"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// maxNamed bounds the forks that an answer names.
const maxNamed = 16

// foldLook is the pause between two reads of how far the shards are folded.
const foldLook = 10 * time.Millisecond

// Erased is the error for a run that was removed.
func Erased(removal *schema.Removal) *schema.ServiceError {
	return schema.Fail(schema.CodeErased, "Its id is never used again: choose another for a new run.",
		"run %s was removed by %s at %s", removal.Run, removal.By, removal.At)
}

// erase removes a run, or reports its remaining data.
func (s *Service) erase(ctx context.Context, t *task, req *schema.EraseRequest) (*schema.EraseReply, error) {
	if req.Check {
		return s.checkErased(ctx, t)
	}
	who, err := t.sender(req.By)
	if err != nil {
		return nil, err
	}
	removed, already, err := s.remove(ctx, t.run, removal{sender: who, id: req.ID, reason: req.Reason, force: req.Force, overwrite: true})
	if err != nil {
		return nil, err
	}
	done, entry, err := s.routing.of(t.run).Store.Removed(ctx, t.run)
	return &schema.EraseReply{Removal: *removed, Done: done, Waits: entry.Waits, GoneBy: entry.GoneBy, Already: already}, err
}

// removal names the sender of a removal, and the reason.
type removal struct {
	sender
	// id of the removal; empty makes one.
	id, reason string
	// force removes a run that is live or pinned, or has something pending.
	force bool
	// overwrite the bytes.
	overwrite bool
	// at, if not zero, is the position at which the removal was planned: the run must not have continued since.
	at schema.Position
}

// remove removes a run by run.erased, published by compare-and-set on the run's last event; the fold worker of the
// shard does the rest. It reports whether the run was removed before.
func (s *Service) remove(ctx context.Context, run string, why removal) (*schema.Removal, bool, error) {
	id := cmp.Or(why.id, rand.Text())
	for {
		r, there, err := s.routing.standing(ctx, run)
		if e, told := errors.AsType[*schema.ServiceError](err); told && e.Code == schema.CodeDamaged && why.force {
			r, err = s.remains(ctx, run, err)
		}
		if err != nil || there != nil {
			return there, there != nil && there.ID != id, err
		}
		if err := s.removable(ctx, r, &why); err != nil {
			return nil, false, err
		}
		h := &r.Head
		order := &schema.Removal{
			Fleet: s.cfg.Fleet, Run: run, ID: id, By: why.by, Claimed: why.claimed, Reason: why.reason, At: schema.FormatTime(s.now()), Force: why.force, Overwrite: why.overwrite,
			Status: h.Status, Epoch: h.Epoch, Events: h.Counts.Events, Digest: h.Digest, Position: schema.Position{Stream: r.LogLast, ID: h.Position.ID},
			Segments: r.Segments.Count, Bytes: r.Segments.Bytes + r.TailBytes(), Keys: append(schema.ChildKeys(h), schema.EndedKeys(h)...),
		}
		if h.Parent != nil {
			order.Parent = h.Parent.Run
		}
		err = retention.Publish(ctx, s.js, r.Source.Store, s.writer.keys, s.cfg.Name, order, s.now())
		if err == nil {
			s.log.Info().Str(logkey.Run, run).Str("by", order.By).Str("removal", order.ID).Msg("removal of a run ordered")
			return order, false, nil
		}
		if !errors.Is(err, control.ErrRefused) {
			return nil, false, err
		}
		if err := pause.For(ctx, retryPause); err != nil {
			return nil, false, fmt.Errorf("run %s: %w: %w", run, err, control.ErrRefused)
		}
	}
}

// remains is the checkpoint of a run that the log has lost: all that is left to remove.
func (s *Service) remains(ctx context.Context, run string, damaged error) (*reader.Snapshot, error) {
	src := s.routing.of(run)
	c, _, err := src.Store.Checkpoints.GetFresh(ctx, run)
	if err != nil {
		return nil, errors.Join(damaged, err)
	}
	return &reader.Snapshot{Source: src, Run: run, Head: c.Head, Segments: c.Segments}, nil
}

// removable returns why a run must not be removed.
func (s *Service) removable(ctx context.Context, r *reader.Snapshot, why *removal) error {
	if why.at.ID != "" && r.Head.Position != why.at {
		return schema.Fail(schema.CodeConflict, "The next cleanup plans it again.", "run %s continued after its removal was planned", r.Run)
	}
	if !why.force && r.Head.Status != "" {
		planned := plan.RunOf(&schema.Checkpoint{Head: r.Head, Segments: r.Segments}, 0)
		planned.Unreadable = false // missing events do not prevent a removal requested by id
		if reason, detail := planned.Pending(); reason != "" {
			e := schema.Fail(schema.CodeNeeded, "End it first, or close what is pending; to remove it all the same ask with force.", "run %s is kept: %s", r.Run, detail)
			return e.With(map[string]string{"why": string(reason)})
		}
	}
	return s.unforked(ctx, &r.Head, why)
}

// unforked makes sure that no fork depends on a run. The id of a fork that marked its base and has not begun is taken
// from it: with run.erased in its log it cannot begin any more, also if the base stays after all because it continued
// at this moment.
func (s *Service) unforked(ctx context.Context, h *schema.Head, why *removal) error {
	standing, unbegun, err := s.forksOf(ctx, h)
	if err != nil {
		return err
	}
	if len(standing) > 0 {
		stand := "fork " + standing[0] + " stands"
		if len(standing) > 1 {
			stand = fmt.Sprintf("%d forks, such as %s, stand", len(standing), standing[0])
		}
		e := schema.Fail(schema.CodeNeeded, "Remove forks before their base: their inherited events are read from it.", "%s on run %s", stand, h.Run)
		return e.With(map[string]any{"why": schema.WhyBase, "forks": standing[:min(len(standing), maxNamed)]})
	}
	for _, fork := range unbegun {
		order := &schema.Removal{
			Fleet: s.cfg.Fleet, Run: fork, ID: rand.Text(), By: why.by, Claimed: why.claimed, Reason: "the removal of its base " + h.Run + " was requested", At: schema.FormatTime(s.now()),
		}
		if err := retention.Publish(ctx, s.js, s.routing.of(fork).Store, s.writer.keys, s.cfg.Name, order, s.now()); err != nil {
			return fmt.Errorf("fork %s of run %s: %w", fork, h.Run, err) // it begins now, if it is refused
		}
	}
	return nil
}

// forksOf returns the forks of a run that were not removed, and those that have not begun.
func (s *Service) forksOf(ctx context.Context, h *schema.Head) (standing, unbegun []string, err error) {
	for _, fork := range h.Forks {
		if !schema.ValidName(fork) {
			continue
		}
		removed, there, err := s.routing.last(ctx, fork)
		switch {
		case err != nil:
			return nil, nil, err
		case removed != nil:
		case there:
			begun, err := s.begunOn(ctx, fork, h.Run)
			if err != nil {
				return nil, nil, err
			}
			if begun {
				standing = append(standing, fork)
			}
		default:
			unbegun = append(unbegun, fork)
		}
	}
	return standing, unbegun, nil
}

// begunOn reports whether a run is a fork of a base. Any client can mark a base with the id of another run. A run that
// cannot be read may be one.
func (s *Service) begunOn(ctx context.Context, fork, base string) (bool, error) {
	r, removed, err := s.routing.standing(ctx, fork)
	if _, damaged := errors.AsType[*reader.Damaged](err); damaged {
		return true, nil
	}
	if err != nil || removed != nil {
		return false, err
	}
	return r.Head.Base != nil && r.Head.Base.Run == base, nil
}

// checkErased reports the remaining data of a removed run, or the data of one that was not removed, or not here.
func (s *Service) checkErased(ctx context.Context, t *task) (*schema.EraseReply, error) {
	src := s.routing.of(t.run)
	_, removed, err := s.routing.standing(ctx, t.run)
	if err != nil {
		return nil, err
	}
	if removed == nil {
		removed = &schema.Removal{Run: t.run}
	}
	done, entry, err := src.Store.Removed(ctx, t.run)
	if err != nil {
		return nil, err
	}
	blobs, err := kvstore.BlobsOf(ctx, s.js, s.cfg.Fleet, map[string]struct{}{t.run: {}})
	if err != nil {
		return nil, err
	}
	keys, err := s.writer.keys.Keys(ctx)
	if err != nil {
		return nil, err
	}
	left, err := src.Store.Left(ctx, keys, t.run, removed.Keys, blobs[t.run], true)
	if err != nil {
		return nil, err
	}
	return &schema.EraseReply{Removal: *removed, Done: done, Waits: entry.Waits, GoneBy: entry.GoneBy, Left: &left}, nil
}
