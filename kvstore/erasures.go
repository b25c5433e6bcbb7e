package kvstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/internal/jsapi"
	"github.com/waymarkio/waymark/schema"
)

// Erasures are the records of removals of runs in a shard, finished or in progress. They are in the segment bucket,
// which decides, is synced, and is written only by the daemon.
//
//	order ──nothing needs the run──▶ decided ──tombstone in the log──▶ being removed ──nothing left──▶ receipt (stays),
//	  │                                 │                                                          settling (some minutes)
//	  └── something needs it, or        └── the run changed: the tombstone can
//	      the requester is gone             never be stored
//	           └──▶ withdrawn ◀────────────────┘
type Erasures struct {
	bucket bucket
	names  schema.Names
}

// Get returns the record of a run from the leader, and whether it is the receipt. The receipt takes precedence over
// an order that a crash or a concurrent request left. It returns [ErrNotFound] for a run without a removal.
func (e *Erasures) Get(ctx context.Context, run string) (record *schema.Erasure, rev schema.Revision, done bool, err error) {
	if err := schema.CheckName("run id", run); err != nil {
		return nil, 0, false, err
	}
	order, orderRev, err := e.get(ctx, schema.ErasingKeyPrefix+run, run)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, 0, false, err
	}
	// The receipt is stored before its order is deleted, so that one of the two is always found.
	receipt, rev, rerr := e.get(ctx, schema.ErasedKeyPrefix+run, run)
	if order != nil && errors.Is(rerr, ErrNotFound) {
		return order, orderRev, false, nil
	}
	return receipt, rev, true, rerr
}

// Settling returns the record of a run whose removal is recent, and its revision for [Erasures.Settled]. It returns
// [ErrNotFound] if there is none, and [ErrCorrupt] or [schema.ErrFormat] with the revision.
func (e *Erasures) Settling(ctx context.Context, run string) (*schema.Erasure, schema.Revision, error) {
	return e.get(ctx, schema.SettlingKeyPrefix+run, run)
}

func (e *Erasures) get(ctx context.Context, key, run string) (*schema.Erasure, schema.Revision, error) {
	found, err := e.bucket.getFresh(ctx, key)
	if err != nil {
		return nil, 0, fmt.Errorf("get erasure of run %s: %w", run, err)
	}
	record, err := DecodeErasure(run, found.value)
	return record, found.rev, err
}

// DecodeErasure reads the stored record of a run's removal. It returns [ErrCorrupt] or [schema.ErrFormat].
func DecodeErasure(run string, value []byte) (*schema.Erasure, error) {
	record := new(schema.Erasure)
	if err := json.Unmarshal(value, record); err != nil {
		return nil, fmt.Errorf("erasure of run %s: %w: %w", run, ErrCorrupt, err)
	}
	if record.Format != schema.ErasureFormat {
		return nil, fmt.Errorf("erasure of run %s: format %d: %w", run, record.Format, schema.ErrFormat)
	}
	if record.Run != run || record.ID == "" {
		return nil, fmt.Errorf("erasure of run %s is one of run %.64q: %w", run, record.Run, ErrCorrupt)
	}
	return record, nil
}

// Order stores a removal order if its key is at revision rev; 0 creates it. It is durable when Order returns, and
// decides nothing yet: the tombstone in the log does, which may be stored once the order says that it is decided. It
// returns [ErrConflict] if there is another order.
func (e *Erasures) Order(ctx context.Context, record *schema.Erasure, rev schema.Revision) (schema.Revision, error) {
	return e.put(ctx, schema.ErasingKeyPrefix, record, rev)
}

func (e *Erasures) put(ctx context.Context, prefix string, record *schema.Erasure, rev schema.Revision) (schema.Revision, error) {
	if err := schema.CheckName("run id", record.Run); err != nil {
		return 0, err
	}
	record.Format = schema.ErasureFormat
	value, err := json.Marshal(record, json.Deterministic(true))
	if err != nil {
		return 0, fmt.Errorf("erasure of run %s: %w", record.Run, err)
	}
	next, err := e.bucket.put(ctx, prefix+record.Run, value, rev)
	if err != nil {
		return 0, fmt.Errorf("put erasure of run %s: %w", record.Run, err)
	}
	return next, nil
}

// Withdraw deletes an order at its revision, and reports whether it was there: another client may have decided or
// withdrawn it. Withdraw only an undecided order, or one whose tombstone can never be stored, as the log proves: one
// fold worker would fold a tombstone without an order, and another would not. After kill -9 of a single server a
// withdrawn order can come back: it has no tombstone in the log, and is withdrawn again.
func (e *Erasures) Withdraw(ctx context.Context, run string, rev schema.Revision) (bool, error) {
	n, err := purge(ctx, e.bucket.js, e.bucket.stream, jsapi.PurgeRequest{Filter: e.bucket.prefix + schema.ErasingKeyPrefix + run, Below: uint64(rev) + 1})
	if err != nil {
		return false, fmt.Errorf("withdraw the order to remove run %s: %w", run, e.bucket.explain(ctx, err))
	}
	return n > 0, nil
}

// Finish stores the receipt of a removal permanently, and deletes its order. The first receipt of a run stays: it
// lists what was removed. Until the removal is settled, it is checked again if the server did not stop cleanly.
func (e *Erasures) Finish(ctx context.Context, record *schema.Erasure) error {
	if err := e.replace(ctx, schema.SettlingKeyPrefix, record); err != nil {
		return err
	}
	if err := e.keepFirst(ctx, record); err != nil {
		return err
	}
	return e.EndOrder(ctx, record.Run)
}

// keepFirst stores a receipt unless there is a readable one. The put names the examined revision, so that a receipt
// of another daemon stays.
func (e *Erasures) keepFirst(ctx context.Context, record *schema.Erasure) error {
	for range provisionTries {
		_, rev, err := e.get(ctx, schema.ErasedKeyPrefix+record.Run, record.Run)
		if !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrCorrupt) {
			return err
		}
		if _, err = e.put(ctx, schema.ErasedKeyPrefix, record, rev); !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("erasure of run %s: its receipt keeps changing: %w", record.Run, ErrConflict)
}

// Unsettle requests another check of a removed run, because something of it was stored since. Runs without a receipt
// have an order, which is checked anyway.
func (e *Erasures) Unsettle(ctx context.Context, run, now string) error {
	record, _, err := e.get(ctx, schema.ErasedKeyPrefix+run, run)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	record.RemovedAt = now
	return e.replace(ctx, schema.SettlingKeyPrefix, record)
}

// EndOrder deletes all orders of a run with a receipt, whatever their revision: the receipt is final, and takes
// precedence.
func (e *Erasures) EndOrder(ctx context.Context, run string) error {
	return e.drop(ctx, schema.ErasingKeyPrefix+run, anyRevision)
}

// replace puts a record, whatever revision its key has.
func (e *Erasures) replace(ctx context.Context, prefix string, record *schema.Erasure) error {
	for range provisionTries {
		_, rev, err := e.get(ctx, prefix+record.Run, record.Run)
		if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrCorrupt) && !errors.Is(err, schema.ErrFormat) {
			return err
		}
		if _, err = e.put(ctx, prefix, record, rev); !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("erasure of run %s: its record keeps changing: %w", record.Run, ErrConflict)
}

// anyRevision is above every revision.
const anyRevision schema.Revision = 1<<63 - 1

// Settled ends the time in which a removal is checked again. It names the revision that [Erasures.Settling] returned
// before the check, 0 for none: a request by [Erasures.Unsettle] since then stays.
func (e *Erasures) Settled(ctx context.Context, run string, rev schema.Revision) error {
	if rev == 0 {
		return nil
	}
	return e.drop(ctx, schema.SettlingKeyPrefix+run, rev)
}

func (e *Erasures) drop(ctx context.Context, key string, upTo schema.Revision) error {
	if err := e.bucket.purge(ctx, key, upTo); err != nil {
		return fmt.Errorf("end %.120q: %w", key, err)
	}
	return nil
}

// Pending calls yield for runs with an ordered or a recent removal, until it returns false. The cost depends on their
// number only.
func (e *Erasures) Pending(ctx context.Context, yield func(run string, settling bool) bool) error {
	for _, prefix := range []string{schema.ErasingKeyPrefix, schema.SettlingKeyPrefix} {
		for offset, more := 0, true; more; {
			keys, further, err := e.bucket.subjectPage(ctx, prefix+"*", offset)
			if err != nil {
				return fmt.Errorf("list the removals of %s: %w", e.names.EventStream(), err)
			}
			offset, more = offset+len(keys), further
			for _, key := range keys {
				run := key[len(prefix):]
				if schema.ValidName(run) && !yield(run, prefix == schema.SettlingKeyPrefix) {
					return nil
				}
			}
		}
	}
	return nil
}

// Ordered counts the ordered removals that are not finished.
func (e *Erasures) Ordered(ctx context.Context) (int64, error) {
	n := int64(0)
	err := e.Pending(ctx, func(_ string, settling bool) bool {
		if !settling {
			n++
		}
		return !settling
	})
	return n, err
}
