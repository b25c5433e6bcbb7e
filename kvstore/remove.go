package kvstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

// Left counts what is stored of a run except run.erased in the log and the checkpoint that records the removal.
// signers are the fleet's keys, blobs the run's from [BlobsOf], and keys those of its index entries. wide also searches entries under other
// keys, which makes the server go through all keys of the bucket.
func (s *Shard) Left(ctx context.Context, signers *schema.Keys, run string, keys []string, blobs []Blob, wide bool) (schema.ErasedParts, error) {
	var p schema.ErasedParts
	err := errors.Join(schema.CheckName("run id", run), s.leftInLog(ctx, signers, run, &p))
	if err == nil {
		err = s.leftInBuckets(ctx, run, keys, wide, &p)
	}
	if err == nil {
		err = s.leftOfBlobs(ctx, blobs, &p)
	}
	if err == nil {
		p.DeadLetters, err = s.count(ctx, schema.DeadLetterStream(s.Names.Fleet), deadLettersOf(s.Names.Fleet, run))
	}
	if err != nil {
		return p, fmt.Errorf("what is left of run %s: %w", run, err)
	}
	return p, nil
}

func deadLettersOf(fleet, run string) string { return "waymark.deadletters." + fleet + ".*." + run }

func (s *Shard) leftInLog(ctx context.Context, signers *schema.Keys, run string, p *schema.ErasedParts) error {
	n, err := s.count(ctx, s.Names.EventStream(), s.Names.EventSubject(run))
	if err != nil || n == 0 {
		return err
	}
	_, removal, err := s.LastRemoval(ctx, signers, run)
	if p.LogEvents = n; removal != nil {
		p.LogEvents--
	}
	return err
}

// LastRemoval returns a run's last record from the leader of the log, the zero record if it has none, and the removal of
// the run by that record, nil if it removes nothing.
func (s *Shard) LastRemoval(ctx context.Context, signers *schema.Keys, run string) (schema.Record, *schema.Removal, error) {
	last, there, err := eventlog.Last(ctx, s.js, s.Names, run)
	if err != nil || !there {
		return schema.Record{}, nil, err
	}
	return last, schema.Removes(signers, &last), nil
}

// LastPlace is the position and time of storage of a run's last message, by the server's clock.
type LastPlace struct {
	At     schema.StreamSequence
	Stored time.Time
}

// LastStored returns the place of the last message of some runs in the log, without those that have none. It may be
// stale.
func (s *Shard) LastStored(ctx context.Context, runs []string) (map[string]LastPlace, error) {
	events := bucket{
		js: s.js, name: s.Names.EventStream(), stream: s.Names.EventStream(), prefix: s.Names.EventSubject(""),
	}
	lasts := make(map[string]LastPlace, len(runs))
	_, err := events.many(ctx, runs, func(e entry) { lasts[e.key] = LastPlace{At: schema.StreamSequence(e.rev), Stored: e.stored} })
	if err != nil {
		// A message whose own headers are malformed comes without its place, so the leader is asked in another way.
		for _, run := range runs {
			e, err := lastFresh(ctx, s.js, events.stream, events.prefix+run)
			if errors.Is(err, ErrNotFound) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("last event of run %s: %w", run, err)
			}
			lasts[run] = LastPlace{At: schema.StreamSequence(e.rev), Stored: e.stored}
		}
	}
	return lasts, nil
}

func (s *Shard) leftInBuckets(ctx context.Context, run string, keys []string, wide bool, p *schema.ErasedParts) error {
	segments, err := s.Segments.keysOf(ctx, run)
	if err != nil {
		return err
	}
	_, err = s.Segments.bucket.many(ctx, segments, func(e entry) {
		p.Segments++
		p.SegmentBytes += int64(len(e.value))
	})
	if err != nil {
		return err
	}
	if err := s.leftOfCheckpoints(ctx, run, p); err != nil {
		return err
	}
	keys, err = s.indexKeys(ctx, run, keys, wide)
	if err != nil {
		return err
	}
	_, err = s.Checkpoints.bucket.many(ctx, keys, func(entry) { p.IndexKeys++ })
	return err
}

func (s *Shard) leftOfCheckpoints(ctx context.Context, run string, p *schema.ErasedParts) error {
	list, err := s.Checkpoints.History(ctx, run)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	for i := range list {
		if c := list[i].Checkpoint; c == nil || c.Status != schema.StatusErased {
			p.Checkpoints++
		}
	}
	return nil
}

// indexKeys are the keys under which a run may be listed.
func (s *Shard) indexKeys(ctx context.Context, run string, keys []string, wide bool) ([]string, error) {
	keys = append(slices.Clone(keys), schema.LiveKeyPrefix+run)
	if wide {
		for _, filter := range []string{
			schema.EndedKeyPrefix + "*.*." + run, schema.ChildKeyPrefix + "*." + run,
		} {
			more, _, _, err := s.Checkpoints.bucket.subjectPage(ctx, filter, 0)
			if err != nil {
				return nil, err
			}
			keys = append(keys, more...)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// Remove removes everything of a run except run.erased in the log and the checkpoint that records the removal.
// Both must exist before the call. It may be repeated, and continues after an interruption. If the removal says so,
// the stored bytes are overwritten.
func (s *Shard) Remove(ctx context.Context, signers *schema.Keys, removal *schema.Removal, blobs []Blob) error {
	run, keys := removal.Run, removal.Keys
	if err := schema.CheckName("run id", run); err != nil {
		return err
	}
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"bytes", func(ctx context.Context) error {
			if !removal.Overwrite {
				return nil
			}
			last, standing, err := s.LastRemoval(ctx, signers, run)
			if err == nil && standing != nil {
				err = s.overwrite(ctx, run, keys, blobs, last.Stream)
			}
			return err
		}},
		{"index entries", func(ctx context.Context) error { return s.removeIndex(ctx, run, keys) }},
		{"dead letters", func(ctx context.Context) error {
			letters := schema.DeadLetterStream(s.Names.Fleet)
			n, err := s.count(ctx, letters, deadLettersOf(s.Names.Fleet, run))
			if err == nil && n > 0 {
				_, err = purge(ctx, s.js, letters, jsapi.PurgeRequest{Filter: deadLettersOf(s.Names.Fleet, run)})
			}
			return err
		}},
		{"blobs", func(ctx context.Context) error { return s.removeBlobs(ctx, blobs) }},
		{"segments", func(ctx context.Context) error { return s.Segments.deleteAll(ctx, run) }},
		{"events", func(ctx context.Context) error { return s.removeEvents(ctx, signers, run) }},
		{"checkpoints", func(ctx context.Context) error { return s.Checkpoints.Trim(ctx, run) }},
	} {
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("remove %s of run %s: %w", step.what, run, err)
		}
	}
	return nil
}

func (s *Shard) removeIndex(ctx context.Context, run string, keys []string) error {
	// The fold worker deletes the entry of the live index, because its watchers must be told.
	keys = slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return key == schema.LiveKeyPrefix+run })
	var there []string
	if _, err := s.Checkpoints.bucket.many(ctx, keys, func(e entry) { there = append(there, e.key) }); err != nil {
		return err
	}
	return s.Checkpoints.dropIndex(ctx, there)
}

// removeEvents removes the events before the run's last message, if that removes it.
func (s *Shard) removeEvents(ctx context.Context, signers *schema.Keys, run string) error {
	last, removal, err := s.LastRemoval(ctx, signers, run)
	if err != nil {
		return err
	}
	if removal == nil {
		return fmt.Errorf("its last message is not run.erased: %w", ErrConflict)
	}
	_, err = s.PurgeRun(ctx, run, last.Stream)
	return err
}

// keysOf are the keys of a run's segments, deleted ones included.
func (s *Segments) keysOf(ctx context.Context, run string) ([]string, error) {
	var keys []string
	if _, err := s.bucket.everyKey(ctx, run+".*", func(key string) { keys = append(keys, key) }); err != nil {
		return nil, fmt.Errorf("list segments of run %s: %w", run, err)
	}
	return keys, nil
}

// deleteAll deletes all segments of a run. Delete markers stay, so that a crash cannot bring them back.
func (s *Segments) deleteAll(ctx context.Context, run string) error {
	keys, err := s.keysOf(ctx, run)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(deletesInFlight)
	for _, key := range keys {
		group.Go(func() error { return s.bucket.remove(ctx, key) })
	}
	return group.Wait()
}

// count returns how many messages the leader of a stream has for a subject or a filter.
func (s *Shard) count(ctx context.Context, stream, filter string) (int64, error) {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	reply, err := jsapi.Request[struct {
		State struct {
			Subjects map[string]int64 `json:"subjects"`
		} `json:"state"`
	}](ctx, s.js, "STREAM.INFO."+stream, map[string]string{"subjects_filter": filter})
	if err != nil {
		return 0, translate(err)
	}
	n := int64(0)
	for _, messages := range reply.State.Subjects {
		n += messages
	}
	return n, nil
}
