package kvstore

import (
	"context"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

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

// span returns the revisions of the bucket's first stored and its last put, from the leader.
func (c *Checkpoints) span(ctx context.Context) (first, last schema.Revision, err error) {
	info, err := streamInfo(ctx, c.bucket.js, c.bucket.stream)
	if err != nil {
		return 0, 0, err
	}
	return schema.Revision(info.State.FirstSeq), schema.Revision(info.State.LastSeq), nil
}

// IndexPut is an entry to put into the index of runs.
type IndexPut struct {
	// Key from schema.EndedKey or schema.ChildKeys, or with schema.UntoldKeyPrefix.
	Key string
	// Ended is the value of an entry of the index of ended runs; nil for the others, which have none.
	Ended *schema.Ended
}

// PutIndex puts entries into the index of runs, in the given order, over older ones. Call it before the put of their
// checkpoint, so that a crash in between leaves a stale entry and never misses one: readers of the index compare its
// entries with the checkpoints.
func (c *Checkpoints) PutIndex(ctx context.Context, puts ...IndexPut) error {
	for i, r := range c.bucket.fly(ctx, len(puts), func(i int) (*nats.Msg, error) {
		if puts[i].Ended == nil {
			return c.bucket.entryOf(puts[i].Key, nil, 0)
		}
		return c.bucket.entryOf(puts[i].Key, puts[i].Ended, 0)
	}) {
		if r.Err != nil {
			return fmt.Errorf("put %.200q into the index of %s: %w", puts[i].Key, c.bucket.name, r.Err)
		}
	}
	return nil
}

// entryOf builds the put of an entry of an index, by compare-and-set unless rev is 0. Roll-up keeps one message per key,
// whatever the bucket's history.
func (b *bucket) entryOf(key string, value any, rev schema.Revision) (msg *nats.Msg, err error) {
	var text []byte
	if value != nil {
		text, err = json.Marshal(value, json.Deterministic(true))
	}
	return b.message(key, text, nats.Header{headerRollup: {rollupSubject}}, rev != 0, rev), err
}

// dropIndex removes entries of a removed run from the index of runs. After kill -9 of a single server an entry can
// come back, which is harmless: it differs from the run's checkpoint.
func (c *Checkpoints) dropIndex(ctx context.Context, keys []string) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(deletesInFlight)
	for _, key := range keys {
		group.Go(func() error {
			if _, err := purge(ctx, c.bucket.js, c.bucket.stream, jsapi.PurgeRequest{Filter: c.bucket.prefix + key}); err != nil {
				return fmt.Errorf("remove %.200q from the index of %s: %w", key, c.bucket.name, c.bucket.explain(ctx, err))
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
	runs, _, err := c.bucket.runs(ctx, schema.ChildKeyPrefix+run+".")
	return runs, err
}

// Runs returns the runs that have a checkpoint, sorted. The server goes through all keys of the bucket, so use it only
// for one-off work.
func (c *Checkpoints) Runs(ctx context.Context) ([]string, error) {
	runs, _, err := c.bucket.runs(ctx, "")
	return runs, err
}

// LiveRuns returns the runs of the live index, sorted, some of which may have just ended. The cost depends on their
// number only. All entries up to the revision upTo are taken into account.
func (c *Checkpoints) LiveRuns(ctx context.Context) (runs []string, upTo schema.Revision, err error) {
	return c.bucket.runs(ctx, schema.LiveKeyPrefix)
}

// ofBytes bounds the checkpoints of one call of [Checkpoints.Of], approximately.
const ofBytes = 4 << 20

// Of reads the checkpoints of the first of some runs, from any replica, in the given order: of one run, and of others
// while they have a few megabytes together. Unreadable ones have their error, and missing ones [ErrNotFound]. upTo is at least the last
// revision of the answering replicas; 0 if they do not report it.
func (c *Checkpoints) Of(ctx context.Context, runs []string) (list []Stored, upTo schema.Revision, err error) {
	found := make(map[string]entry, len(runs))
	n, size := min(len(runs), answerKeys-1), 0
	for more := n > 0; more; {
		// An empty answer does not show its age; the watermark is always there.
		ask := []string{schema.WatermarkKey}
		for _, run := range runs[:n] {
			if _, ok := found[run]; !ok {
				ask = append(ask, run)
			}
		}
		left, at, err := c.bucket.some(ctx, ask, func(e entry) {
			found[e.key] = e
			size += len(e.value)
		})
		if err != nil {
			return nil, 0, fmt.Errorf("read checkpoints of %s: %w", c.bucket.name, err)
		}
		if upTo == 0 || at < upTo {
			upTo = at
		}
		if more = len(left) > 0; more && size > ofBytes {
			n = max(min(n/2, len(found)), 1)
		}
	}
	list = make([]Stored, n)
	for i, run := range runs[:n] {
		if e, ok := found[run]; ok && !e.deleted {
			list[i] = c.stored(run, e)
		} else {
			list[i] = Stored{Run: run, Err: fmt.Errorf("checkpoint of run %s: %w", run, ErrNotFound)}
		}
	}
	return list, upTo, nil
}
