package kvstore

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// listExamined bounds the checkpoints that one call of ListLive reads.
const listExamined = 8192

// ListLive returns up to limit checkpoints of the live index in the order of run ids, from the first after the run
// after ("" for the beginning), and the after of the next page ("" at the end): runs that have not ended, and perhaps
// some that have just ended. Unreadable checkpoints carry their error. A page can be shorter than limit, even empty,
// although more follow: one call examines at most 8,192 entries. It does not wait for the fold, and may be stale.
func (c *Checkpoints) ListLive(ctx context.Context, after string, limit int) (page []Stored, next string, err error) {
	if limit < 1 {
		return nil, "", fmt.Errorf("list checkpoints: limit is %d, use 1 or more", limit)
	}
	examined := 0
	err = c.pages(ctx, schema.LiveKeyPrefix, after, func(runs []string) (bool, error) {
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
					continue // deleted, or in the index before its put
				}
				page = append(page, c.stored(run, e))
			}
		}
		return true, nil
	}, func() { next = "" })
	if err != nil {
		return nil, "", fmt.Errorf("list checkpoints of %s: %w", c.bucket.name, err)
	}
	return page, next, nil
}

// pages calls yield with the runs that have a key under the prefix, sorted, from the first after the run after, until
// it returns false; after the last page it calls end.
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
		// Keys added or deleted between two pages can move the border: never go back.
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

// Runs calls yield with the runs that have a checkpoint, sorted, one page of the server's list of subjects (100,000
// keys) at a time, from the first after the run after, until it returns false. Each page makes the server count all
// keys of the bucket, so use it only for one-off work.
func (c *Checkpoints) Runs(ctx context.Context, after string, yield func(runs []string) bool) error {
	err := c.pages(ctx, "", after, func(runs []string) (bool, error) { return yield(runs), nil }, func() {})
	if err != nil {
		return fmt.Errorf("list runs of %s: %w", c.bucket.name, err)
	}
	return nil
}
