package kvstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/internal/jsapi"
	"github.com/waymarkio/waymark/schema"
)

// Erasures are the records of the runs that were removed from a shard, or are being removed. They are in the segment
// bucket: the truth, synced, and written by the daemon alone.
//
//	order ──nothing needs the run──▶ decided ──mark in the log──▶ being removed ──nothing found any more──▶ receipt (stays),
//	  │                                 │                                                                    settling (some minutes)
//	  └── something needs it,           └── the run went on: the mark can
//	      or whoever asked is gone          never be stored
//	           └──▶ withdrawn ◀────────────────┘
type Erasures struct {
	bucket bucket
	names  schema.Names
}

// Get returns the record of a run from the leader, and whether it is the receipt, which comes before an order that a crash, or who
// asked at the same time, left beside it. It returns [ErrNotFound] for a run that nobody asked to be removed.
func (e *Erasures) Get(ctx context.Context, run string) (record *schema.Erasure, rev schema.Revision, done bool, err error) {
	if err := schema.CheckName("run id", run); err != nil {
		return nil, 0, false, err
	}
	order, orderRev, err := e.get(ctx, schema.ErasingKeyPrefix+run, run)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, 0, false, err
	}
	// A receipt is stored before its order goes, so that one of the two is found.
	receipt, rev, rerr := e.get(ctx, schema.ErasedKeyPrefix+run, run)
	if order != nil && errors.Is(rerr, ErrNotFound) {
		return order, orderRev, false, nil
	}
	return receipt, rev, true, rerr
}

// Settling returns the record of a run whose removal is young, and its revision for [Erasures.Settled]. It returns [ErrNotFound]
// when there is none, and [ErrCorrupt] or [schema.ErrFormat] with the revision.
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

// Order stores what is to be removed if its key is at revision rev; 0 creates it. It is durable when Order returns, and
// decides nothing yet: the mark in the log does, which may be stored once the order says that it is decided. It returns
// [ErrConflict] when there is another.
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

// Withdraw takes an order back at its revision, and reports whether it was there: somebody else may have decided it, or withdrawn
// it. Withdraw one that is not decided, or of which the log proves that its mark can never be stored: a mark whose order is gone
// would be folded by one and not by the other. What was withdrawn can come back after kill -9 of a lone server: it is an order
// without a mark in the log, and withdrawn again.
func (e *Erasures) Withdraw(ctx context.Context, run string, rev schema.Revision) (bool, error) {
	n, err := purge(ctx, e.bucket.js, e.bucket.stream, jsapi.PurgeRequest{Filter: e.bucket.prefix + schema.ErasingKeyPrefix + run, Below: uint64(rev) + 1})
	if err != nil {
		return false, fmt.Errorf("withdraw the order to remove run %s: %w", run, e.bucket.explain(ctx, err))
	}
	return n > 0, nil
}

// Finish stores the receipt of a removal, for good, and ends its order. The first receipt of a run stays: it says what there was.
// Until it is settled the removal is looked at again when the server did not stop cleanly.
func (e *Erasures) Finish(ctx context.Context, record *schema.Erasure) error {
	if err := e.replace(ctx, schema.SettlingKeyPrefix, record); err != nil {
		return err
	}
	if err := e.keepFirst(ctx, record); err != nil {
		return err
	}
	return e.EndOrder(ctx, record.Run)
}

// keepFirst stores a receipt where there is none that can be read. The put names what was examined: a receipt that another daemon
// stores meanwhile stays.
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

// Unsettle asks for another look at a run that was removed: something of it was stored since. Runs without a receipt have an
// order, which is looked at anyway.
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

// EndOrder takes away what a run with a receipt has of orders, whatever their revision: the receipt is final, and comes before them.
func (e *Erasures) EndOrder(ctx context.Context, run string) error {
	return e.drop(ctx, schema.ErasingKeyPrefix+run, anyRevision)
}

// replace puts a record over whatever is there.
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

// Settled ends the time in which a removal is looked at again. It names the revision that [Erasures.Settling] returned before the
// look, 0 for none: what [Erasures.Unsettle] stored since asks for another one, and stays.
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

// Pending calls yield for the runs that are to be removed, and for those whose removal is young, until it returns false. The
// cost is theirs.
func (e *Erasures) Pending(ctx context.Context, yield func(run string, settling bool) bool) error {
	for _, prefix := range []string{schema.ErasingKeyPrefix, schema.SettlingKeyPrefix} {
		for offset, more := 0, true; more; {
			keys, further, err := e.bucket.subjectPage(ctx, prefix+"*", offset)
			if err != nil {
				return fmt.Errorf("list what is removed of %s: %w", e.names.EventStream(), err)
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

// Ordered counts the runs that are to be removed and are not gone yet.
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
