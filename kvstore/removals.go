package kvstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/schema"
)

// Removals are the removed runs of a shard whose stored parts the daemon still deletes, or checks again. They are a
// work list: run.erased in the log decides what is removed. The list is in the segment bucket, which is synced and
// written only by the daemon.
//
//	run.erased folded ──▶ listed ──nothing left──▶ checked again for some minutes ──▶ not listed
//	                        ▲                              │
//	                        └────── a late event ──────────┘
type Removals struct {
	bucket bucket
}

// Removal is an entry of the list.
type Removal struct {
	// Stream is the position of run.erased, or of a later event that the fold refused.
	Stream schema.StreamSequence `json:"stream"`
	// GoneBy is when the servers have synced and compacted; empty before the daemon found nothing of the run any more.
	GoneBy string `json:"gone_by,omitzero"`
	// Waits is why the bytes of the run are not all overwritten yet, although nothing else is left.
	Waits string `json:"waits,omitzero"`
}

// Get returns the entry of a run from the leader, and its revision. It returns [ErrNotFound] for a run that is not
// listed.
func (r *Removals) Get(ctx context.Context, run string) (Removal, schema.Revision, error) {
	var entry Removal
	found, err := r.bucket.getFresh(ctx, schema.RemovalKeyPrefix+run)
	if err != nil {
		return entry, 0, fmt.Errorf("removal of run %s: %w", run, err)
	}
	if err := json.Unmarshal(found.value, &entry); err != nil {
		entry = Removal{} // begin again
	}
	return entry, found.rev, nil
}

// Put stores the entry of a run if it is at revision rev; 0 creates it. It returns [ErrConflict] if it is not.
func (r *Removals) Put(ctx context.Context, run string, entry Removal, rev schema.Revision) error {
	value, err := json.Marshal(entry)
	if err != nil {
		return fmt.Errorf("removal of run %s: %w", run, err)
	}
	if _, err := r.bucket.put(ctx, schema.RemovalKeyPrefix+run, value, rev); err != nil {
		return fmt.Errorf("put removal of run %s: %w", run, err)
	}
	return nil
}

// Add lists a run, whatever its entry is now.
func (r *Removals) Add(ctx context.Context, run string, at schema.StreamSequence) error {
	for range provisionTries {
		_, rev, err := r.Get(ctx, run)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		if err = r.Put(ctx, run, Removal{Stream: at}, rev); !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("removal of run %s: its entry keeps changing: %w", run, ErrConflict)
}

// Done deletes the entry of a run up to a revision. A later one stays.
func (r *Removals) Done(ctx context.Context, run string, rev schema.Revision) error {
	if rev == 0 {
		return nil
	}
	if err := r.bucket.purge(ctx, schema.RemovalKeyPrefix+run, rev); err != nil {
		return fmt.Errorf("end the removal of run %s: %w", run, err)
	}
	return nil
}

// Runs returns the listed runs. The cost depends on their number only.
func (r *Removals) Runs(ctx context.Context) ([]string, error) {
	runs, _, err := r.bucket.runs(ctx, schema.RemovalKeyPrefix)
	return runs, err
}

// Removed reports whether the daemon has removed everything of a run whose run.erased is in the log, and its entry in
// the list.
func (s *Shard) Removed(ctx context.Context, run string) (done bool, entry Removal, err error) {
	c, _, err := s.Checkpoints.GetFresh(ctx, run)
	if err != nil || c.Status != schema.StatusErased {
		if errors.Is(err, ErrNotFound) {
			err = nil // not folded
		}
		return false, entry, err
	}
	// The entry is put before that checkpoint.
	entry, _, err = s.Removals.Get(ctx, run)
	if errors.Is(err, ErrNotFound) {
		return true, entry, nil
	}
	return err == nil && entry.GoneBy != "", entry, err
}
