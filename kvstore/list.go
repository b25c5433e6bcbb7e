package kvstore

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/schema"
)

const (
	// listExamined bounds the checkpoints that one call of List reads.
	listExamined = 8192
	// liveInFlight bounds the requests of EraseLive under way.
	liveInFlight = 16
)

// List returns up to limit of the shard's checkpoints in the order of run ids, from the first after the run
// named by after ("" for the beginning), and the after of the next page ("" at the end). filter, if not nil,
// chooses; checkpoints that cannot be read pass it and carry their error. A page can be shorter than limit,
// even empty, with more to come: one call examines at most 8,192 checkpoints.
//
// It keeps at most one page of the server's list of subjects (100,000 keys) and one of checkpoints. Each such
// page makes the server count all of the bucket's keys, so walking a million runs takes seconds; for runs that
// have not ended use [Checkpoints.ListLive]. It does not wait for the folder, and may be stale.
func (c *Checkpoints) List(ctx context.Context, after string, limit int, filter func(*schema.Checkpoint) bool) (page []Stored, next string, err error) {
	return c.list(ctx, "", after, limit, filter)
}

// ListLive is [Checkpoints.List] over the runs of the live index: runs that have not ended, and perhaps some
// that have just done so.
func (c *Checkpoints) ListLive(ctx context.Context, after string, limit int, filter func(*schema.Checkpoint) bool) (page []Stored, next string, err error) {
	return c.list(ctx, schema.LiveKeyPrefix, after, limit, filter)
}

func (c *Checkpoints) list(ctx context.Context, prefix, after string, limit int, filter func(*schema.Checkpoint) bool) (page []Stored, next string, err error) {
	if limit < 1 {
		return nil, "", fmt.Errorf("list checkpoints: limit is %d, use 1 or more", limit)
	}
	examined := 0
	err = c.pages(ctx, prefix, after, func(runs []string) (bool, error) {
		for chunk := range slices.Chunk(runs, manyKeys) {
			found, err := c.bucket.many(ctx, chunk)
			if err != nil {
				return false, err
			}
			for _, run := range chunk {
				if len(page) == limit || examined == listExamined {
					return false, nil
				}
				examined++
				next = run
				e, ok := found[run]
				if !ok {
					continue // deleted, or indexed and not yet put
				}
				s := c.stored(run, e)
				if s.Err == nil && filter != nil && !filter(s.Checkpoint) {
					continue
				}
				page = append(page, s)
			}
		}
		return true, nil
	}, func() { next = "" })
	if err != nil {
		return nil, "", fmt.Errorf("list checkpoints of %s: %w", c.bucket.name, err)
	}
	return page, next, nil
}

// pages calls yield with the runs that have a key under the prefix, sorted, from the first after the run
// named, until it returns false; when there are no more, it calls end.
func (c *Checkpoints) pages(ctx context.Context, prefix, after string, yield func(runs []string) (bool, error), end func()) error {
	for offset, more := 0, true; more; {
		keys, further, err := c.bucket.subjectPage(ctx, prefix+"*", offset)
		if err != nil {
			return err
		}
		offset, more = offset+len(keys), further
		runs := make([]string, 0, len(keys))
		for _, key := range keys {
			if run := strings.TrimPrefix(key, prefix); schema.ValidName(run) {
				runs = append(runs, run)
			}
		}
		// Keys that came or went between two pages can move the border: never go back.
		runs = runs[sort.Search(len(runs), func(i int) bool { return runs[i] > after }):]
		if len(runs) == 0 {
			continue
		}
		on, err := yield(runs)
		if err != nil || !on {
			return err
		}
		after = runs[len(runs)-1]
	}
	end()
	return nil
}

// LiveRuns returns up to limit runs of the live index, sorted, from the first after the run named by after,
// and the after of the next page ("" at the end). It reads no checkpoint; the cost is that of the live runs.
func (c *Checkpoints) LiveRuns(ctx context.Context, after string, limit int) (runs []string, next string, err error) {
	if limit < 1 {
		return nil, "", fmt.Errorf("list live runs: limit is %d, use 1 or more", limit)
	}
	err = c.pages(ctx, schema.LiveKeyPrefix, after, func(page []string) (bool, error) {
		room := limit - len(runs)
		if len(page) >= room {
			runs = append(runs, page[:room]...)
			next = runs[len(runs)-1]
			return false, nil
		}
		runs = append(runs, page...)
		return true, nil
	}, func() { next = "" })
	if err != nil {
		return nil, "", fmt.Errorf("list live runs of %s: %w", c.bucket.name, err)
	}
	return runs, next, nil
}

// PutLive adds runs to the live index. Call it before the first checkpoint of a run is put, so that no live
// run is ever missing from the index. Runs that are there already do no harm.
func (c *Checkpoints) PutLive(ctx context.Context, runs ...string) error {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	results := make([]Result, len(runs))
	flight, err := c.bucket.newFlight(results)
	if err != nil {
		return fmt.Errorf("put runs into the live index: %w", err)
	}
	defer flight.end()
	for i, run := range runs {
		if err := schema.CheckName("run id", run); err != nil {
			results[i].Err = err
			continue
		}
		// Roll-up keeps one message of the key, whatever the bucket's history.
		msg := c.bucket.message(schema.LiveKeyPrefix+run, nil, map[string][]string{headerRollup: {rollupSubject}}, false, 0)
		flight.publish(ctx, i, msg)
	}
	flight.land(ctx)
	for i, r := range results {
		if r.Err != nil {
			return fmt.Errorf("put run %.64q into the live index: %w", runs[i], r.Err)
		}
	}
	return nil
}

// EraseLive takes runs out of the live index. Call it after the checkpoint that ends a run was put. After
// kill -9 of a lone server an entry can come back: whoever meets one of an ended run erases it again.
func (c *Checkpoints) EraseLive(ctx context.Context, runs ...string) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(liveInFlight)
	for _, run := range runs {
		group.Go(func() error {
			if err := schema.CheckName("run id", run); err != nil {
				return err
			}
			if err := c.bucket.erase(ctx, schema.LiveKeyPrefix+run); err != nil {
				return fmt.Errorf("erase run %s from the live index: %w", run, err)
			}
			return nil
		})
	}
	return group.Wait()
}
