package kvstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/jsapi"
	"github.com/waymarkio/waymark/schema"
)

const (
	// IndexFormat is the format version of [IndexState].
	IndexFormat = 1
	// IndexVersion is the version of the index of runs that this binary writes and reads. A bucket with an earlier
	// version is indexed again.
	IndexVersion = 1
)

// IndexState is the state of the index of runs: that of ended runs, and that of the children of each run. The shard's
// fold worker maintains it.
type IndexState struct {
	// Format is [IndexFormat].
	Format int `json:"format"`
	// Version of the index.
	Version int `json:"version"`
	// Complete: every run with a checkpoint is in the index if it belongs there.
	Complete bool `json:"complete"`
	// Folding: the index is being filled by folding the log from its beginning, and is complete at the log's end.
	Folding bool           `json:"folding,omitzero"`
	Extra   jsontext.Value `json:",embed"`
}

// IndexState reads the state of the index from the leader, and the revision for the next put. It is the zero state if
// none is stored, or if it is unreadable or of another version.
func (c *Checkpoints) IndexState(ctx context.Context) (IndexState, schema.Revision, error) {
	e, err := c.bucket.getFresh(ctx, schema.IndexKey)
	switch {
	case errors.Is(err, ErrNotFound):
		return IndexState{}, e.rev, nil
	case err != nil:
		return IndexState{}, 0, fmt.Errorf("get the state of the index of %s: %w", c.bucket.name, err)
	}
	return decodeIndexState(e.value), e.rev, nil
}

func decodeIndexState(value []byte) IndexState {
	var st IndexState
	if err := json.Unmarshal(value, &st); err != nil || st.Format != IndexFormat || st.Version != IndexVersion {
		return IndexState{}
	}
	return st
}

// PutIndexState stores the state of the index if the key is at revision rev; 0 creates it. Of two fold workers one
// gets [ErrConflict].
func (c *Checkpoints) PutIndexState(ctx context.Context, st IndexState, rev schema.Revision) (schema.Revision, error) {
	st.Format, st.Version = IndexFormat, IndexVersion
	value, err := json.Marshal(st, json.Deterministic(true))
	if err != nil {
		return 0, fmt.Errorf("put the state of the index of %s: %w", c.bucket.name, err)
	}
	next, err := c.bucket.put(ctx, schema.IndexKey, value, rev)
	if err != nil {
		return 0, fmt.Errorf("put the state of the index of %s: %w", c.bucket.name, err)
	}
	return next, nil
}

// ClearIndex removes every entry of the index with a revision up to upTo: they are of another log. So a paused worker
// removes nothing that another fold worker has put since.
func (c *Checkpoints) ClearIndex(ctx context.Context, upTo schema.Revision) error {
	for _, prefix := range []string{schema.EndedKeyPrefix, schema.ChildKeyPrefix} {
		if err := c.bucket.purge(ctx, prefix+">", upTo); err != nil {
			return fmt.Errorf("clear the index of %s: %w", c.bucket.name, err)
		}
	}
	return nil
}

// Latest returns the revision of the bucket's last put, from the leader.
func (c *Checkpoints) Latest(ctx context.Context) (schema.Revision, error) {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	stream, err := c.bucket.js.Stream(ctx, c.bucket.stream)
	if err != nil {
		return 0, fmt.Errorf("latest revision of %s: %w", c.bucket.name, c.bucket.explain(ctx, err))
	}
	return schema.Revision(stream.CachedInfo().State.LastSeq), nil
}

// IndexPut is an entry to put into the index of runs.
type IndexPut struct {
	// Key from schema.EndedKey or schema.ChildKeys.
	Key string
	// Ended is the value of an entry of the index of ended runs; nil for the others, which have none.
	Ended *schema.Ended
	// Revision that an entry of the index of ended runs must have; 0 if it must not exist. The others are put over
	// any entry: a run's parents never change.
	Revision schema.Revision
}

// IndexAt is an entry of the index of runs at a revision.
type IndexAt struct {
	Key      string
	Revision schema.Revision
}

// PutIndex puts entries into the index of runs. Call it before the put of their checkpoint, so that a crash in
// between leaves a stale entry and never misses one: readers of the index compare its entries with the checkpoints.
// The results are in the order of the puts: the new revision, or [ErrConflict] for an entry with another revision.
// After a conflict, read the revision with [Checkpoints.IndexRevisions], make sure that the worker still folds the
// shard, and put again.
func (c *Checkpoints) PutIndex(ctx context.Context, puts ...IndexPut) []Result {
	results := make([]Result, len(puts))
	if len(puts) == 0 {
		return results
	}
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	flight, err := c.bucket.newFlight(results)
	if err == nil {
		defer flight.end()
	}
	for i := range puts {
		if err != nil {
			results[i].Err = err
			continue
		}
		value := []byte(nil)
		if puts[i].Ended != nil {
			var bad error
			if value, bad = json.Marshal(puts[i].Ended, json.Deterministic(true)); bad != nil {
				results[i].Err = bad
				continue
			}
		}
		// Roll-up keeps one message per key, whatever the bucket's history.
		header := map[string][]string{headerRollup: {rollupSubject}}
		flight.publish(ctx, i, c.bucket.message(puts[i].Key, value, header, puts[i].Ended != nil, puts[i].Revision))
	}
	if err == nil {
		flight.land(ctx)
	}
	for i := range results {
		if results[i].Err != nil {
			results[i].Err = fmt.Errorf("put %.200q into the index of %s: %w", puts[i].Key, c.bucket.name, results[i].Err)
		}
	}
	return results
}

// IndexRevisions returns the revisions of entries of the index of runs, from the leader, in the order of the keys; 0
// for a missing one.
func (c *Checkpoints) IndexRevisions(ctx context.Context, keys ...string) ([]schema.Revision, error) {
	revisions := make([]schema.Revision, len(keys))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(liveInFlight)
	for i, key := range keys {
		group.Go(func() error {
			e, err := c.bucket.getFresh(ctx, key)
			if err != nil && !errors.Is(err, ErrNotFound) {
				return fmt.Errorf("revision of %.200q in the index of %s: %w", key, c.bucket.name, err)
			}
			revisions[i] = e.rev
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return revisions, nil
}

// TakeIndex removes entries from the index of runs, unless they were put again after the given revision: entries of a
// run that was reopened, or written to after its end. Call it before the put of the checkpoint that shows this. After
// kill -9 of a single server an entry can come back, which is harmless: it differs from the run's checkpoint.
func (c *Checkpoints) TakeIndex(ctx context.Context, entries ...IndexAt) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(liveInFlight)
	for _, e := range entries {
		group.Go(func() error {
			if err := c.bucket.purge(ctx, e.Key, e.Revision); err != nil {
				return fmt.Errorf("take %.200q out of the index of %s: %w", e.Key, c.bucket.name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// Children returns the children of a run, sorted. The cost depends on their number only. Some may have no checkpoint
// yet.
func (c *Checkpoints) Children(ctx context.Context, run string) ([]string, error) {
	if err := schema.CheckName("run id", run); err != nil {
		return nil, err
	}
	var runs []string
	err := c.pages(ctx, schema.ChildKeyPrefix+run+".", "", func(page []string) (bool, error) {
		runs = append(runs, page...)
		return true, nil
	}, func() {})
	if err != nil {
		return nil, fmt.Errorf("list children of run %s: %w", run, err)
	}
	return runs, nil
}

// Of reads the checkpoints of some runs, from any replica, in the given order: unreadable ones with their error, and
// missing ones with [ErrNotFound]. upTo is at least the last revision of the answering replicas; 0 if they do not
// report it.
func (c *Checkpoints) Of(ctx context.Context, runs []string) (list []Stored, upTo schema.Revision, err error) {
	found := make(map[string]entry, len(runs))
	for chunk := range slices.Chunk(runs, manyKeys) {
		// An empty answer does not show its age; the state of the index is always there.
		subjects := []string{c.bucket.prefix + schema.IndexKey}
		for _, run := range chunk {
			subjects = append(subjects, c.bucket.prefix+run)
		}
		end, err := c.bucket.direct(ctx, jsapi.GetRequest{MultiLast: subjects}, func(e entry) {
			if !e.deleted {
				found[e.key] = e
			}
		})
		if err == nil && end.pending > 0 {
			err = fmt.Errorf("%w: stream %s left out %d messages of an answer", ErrUnavailable, c.bucket.stream, end.pending)
		}
		if err != nil {
			return nil, 0, fmt.Errorf("read checkpoints of %s: %w", c.bucket.name, err)
		}
		if upTo == 0 || end.upTo < upTo {
			upTo = end.upTo
		}
	}
	list = make([]Stored, len(runs))
	for i, run := range runs {
		if e, ok := found[run]; ok {
			list[i] = c.stored(run, e)
		} else {
			list[i] = Stored{Run: run, Err: fmt.Errorf("checkpoint of run %s: %w", run, ErrNotFound)}
		}
	}
	return list, upTo, nil
}

// OfFresh is [Checkpoints.Of] with the leader's data: from a replica that has all of it, or from the leader.
func (c *Checkpoints) OfFresh(ctx context.Context, runs []string) ([]Stored, error) {
	latest, err := c.Latest(ctx)
	if err != nil {
		return nil, err
	}
	list, upTo, err := c.Of(ctx, runs)
	if err == nil && (upTo >= latest || len(runs) == 0) {
		return list, nil
	}
	list = make([]Stored, len(runs))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(liveInFlight)
	for i, run := range runs {
		group.Go(func() error {
			e, err := c.bucket.getFresh(ctx, run)
			switch {
			case errors.Is(err, ErrNotFound):
				list[i] = Stored{Run: run, Err: fmt.Errorf("checkpoint of run %s: %w", run, err)}
			case err != nil:
				return fmt.Errorf("read checkpoint of run %s: %w", run, err)
			default:
				list[i] = c.stored(run, e)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return list, nil
}
