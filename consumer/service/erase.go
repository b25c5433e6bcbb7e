package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/internal/retention"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// maxNamed bounds the forks that an answer names.
const maxNamed = 16

const (
	// eraseWait is how long a request for a removal waits until it is done, and eraseLook the pause between two
	// reads.
	eraseWait = 2 * time.Second
	eraseLook = 20 * time.Millisecond
	// foldLook is the pause between two reads of how far the shards are folded.
	foldLook = 10 * time.Millisecond
	// maxForks bounds the forks of a run that are read.
	maxForks = 4096
)

// Erased is the error for a run that was removed, or is being removed.
func Erased(record *schema.Erasure) *schema.ServiceError {
	left := "Nothing of it is left"
	if record.RemovedAt == "" {
		left = "Its content is being taken out"
	}
	return schema.Fail(schema.CodeErased, left+", and its id is never used again: choose another for a new run.",
		"run %s was removed by %s at %s", record.Run, record.By, record.AskedAt)
}

// erase removes a run, or reports its remaining data.
func (s *Service) erase(ctx context.Context, t *task) error {
	var req schema.EraseRequest
	if err := t.decode(&req); err != nil {
		return err
	}
	if req.Check {
		return s.checkErased(ctx, t, &req)
	}
	who, err := t.sender(req.By)
	if err != nil {
		return err
	}
	if len(req.Reason) > schema.MaxIdentifier {
		return badField("/reason", fmt.Errorf("has %d bytes, at most %d are allowed", len(req.Reason), schema.MaxIdentifier))
	}
	before, _, err := s.routing.erasure(ctx, t.run)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return err
	}
	already := err == nil && before.RemovedAt != ""
	src, err := s.remove(ctx, t.run, removal{sender: who, reason: req.Reason, force: req.Force})
	if err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, eraseWait)
	defer cancel()
	for {
		record, _, done, err := src.Store.Erasures.Get(ctx, t.run)
		if err != nil {
			return err
		}
		if done || pause.For(wait, eraseLook) != nil {
			return t.whole(&schema.EraseReply{Erasure: *record, Done: done, Already: already})
		}
	}
}

// removal names the sender of a removal, and the reason.
type removal struct {
	sender
	reason string
	// force removes a run that is live or pinned, or has something pending.
	force bool
	// at, if not zero, is the position at which the removal was planned: the run must not have continued since.
	at schema.Position
}

// removable returns why a run must not be removed without force.
func removable(r *reader.Snapshot) error {
	if r.Head.Status == "" {
		return nil // no event of it was ever accepted
	}
	planned := retention.RunOf(&schema.Checkpoint{Head: r.Head, Segments: r.Segments}, 0, nil)
	planned.Unreadable = false // missing events do not prevent a removal requested by id
	why, detail := planned.Pending()
	if why == "" {
		return nil
	}
	e := schema.Fail(schema.CodeNeeded, "End it first, or close what is pending; to remove it all the same ask with force.", "run %s is kept: %s", r.Run, detail)
	return e.With(map[string]string{"why": string(why)})
}

// unneeded makes sure that no fork depends on a run: none that began before this call.
func (s *Service) unneeded(ctx context.Context, run string) error {
	if err := s.routing.foldedSince(ctx, s.now()); err != nil {
		return err
	}
	forks, err := s.forksOf(ctx, run)
	if err != nil || len(forks) == 0 {
		return err
	}
	shown := forks[:min(len(forks), maxNamed)]
	stand := "fork " + forks[0] + " stands"
	if len(forks) > 1 {
		stand = fmt.Sprintf("%d forks, such as %s, stand", len(forks), forks[0])
	}
	e := schema.Fail(schema.CodeNeeded, "Remove forks before their base: their inherited events are read from it.", "%s on run %s", stand, run)
	return e.With(map[string]any{"why": schema.WhyBase, "forks": shown})
}

// forksOf finds the runs that depend on a run and were not removed, as far as they are folded.
func (s *Service) forksOf(ctx context.Context, run string) ([]string, error) {
	var forks []string
	for _, src := range s.routing.shards {
		if err := s.routing.awaitIndexed(ctx, src); err != nil {
			return nil, err
		}
		children, err := src.Store.Checkpoints.Children(ctx, run)
		if err != nil {
			return nil, err
		}
		if len(children) > maxForks {
			return nil, schema.Fail(schema.CodeNeeded, "Remove those first.", "%d runs came of run %s, more than are read", len(children), run)
		}
		for chunk := range slices.Chunk(children, schema.MaxList) {
			list, err := src.Store.Checkpoints.OfFresh(ctx, chunk)
			if err != nil {
				return nil, err
			}
			for i := range list {
				c := list[i].Checkpoint
				switch {
				case errors.Is(list[i].Err, kvstore.ErrNotFound):
					// A child without a checkpoint is skipped: its entry was put for a run without accepted events.
				case c == nil, c.Base != nil && c.Base.Run == run:
					forks = append(forks, list[i].Run) // an unreadable one may be a fork
				}
			}
		}
	}
	return forks, nil
}

// checkErased reports the remaining data of a removed run.
func (s *Service) checkErased(ctx context.Context, t *task, req *schema.EraseRequest) error {
	src := s.routing.of(t.run)
	record, _, err := s.routing.erasure(ctx, t.run)
	if errors.Is(err, kvstore.ErrNotFound) {
		if _, err := s.routing.proven(ctx, t.run, reader.Head); err != nil {
			return err
		}
		return schema.Fail(schema.CodeConflict, "Look at it with waymark.get.", "run %s was not removed", t.run)
	}
	if err != nil {
		return err
	}
	if len(req.Chunks) > schema.MaxErasedChunks {
		return badField("/chunks", fmt.Errorf("has %d entries, at most %d are allowed", len(req.Chunks), schema.MaxErasedChunks))
	}
	blobs, err := kvstore.BlobsOf(ctx, s.js, s.cfg.Fleet, map[string]struct{}{t.run: {}})
	if err != nil {
		return err
	}
	all := blobs[t.run]
	for _, nuid := range slices.Concat(req.Chunks, record.Chunks) {
		if !slices.ContainsFunc(all, func(b kvstore.Blob) bool { return b.NUID == nuid }) && schema.ValidName(nuid) {
			all = append(all, kvstore.Blob{NUID: nuid, Deleted: true})
		}
	}
	left, err := src.Store.Left(ctx, t.run, record.Keys, all, true)
	if err != nil {
		return err
	}
	return t.whole(&schema.EraseReply{Erasure: *record, Done: record.RemovedAt != "", Left: &left})
}
