package kvstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// Segments is the segment bucket of a shard. Segments are the log's older part: what is here and purged
// from the log is nowhere else.
type Segments struct {
	bucket bucket
	names  schema.Names
}

// MaxSegments bounds the number of a run's segments.
const MaxSegments = 1 << 20

func segmentKey(run string, n int) (string, error) {
	if err := schema.CheckName("run id", run); err != nil {
		return "", err
	}
	if n < 1 || n > MaxSegments {
		return "", fmt.Errorf("segment %d of run %s: numbers are 1 to %d", n, run, MaxSegments)
	}
	return schema.SegmentKey(run, n), nil
}

func segmentError(verb, run string, n int, err error) error {
	return fmt.Errorf("%s segment %d of run %s: %w", verb, n, run, err)
}

// Create stores segment n of a run. It is durable when Create returns. It returns [ErrExists] for one that
// is there (an earlier try of one's own, perhaps: read and verify it), [ErrTooLarge], [ErrFull],
// [ErrUnavailable] (outcome unknown; a repeat may return ErrExists), [ErrStreamMissing].
func (s *Segments) Create(ctx context.Context, run string, n int, stored []byte) error {
	key, err := segmentKey(run, n)
	if err != nil {
		return err
	}
	if len(stored) > maxSegmentStored {
		return segmentError("create", run, n, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(stored), maxSegmentStored))
	}
	if len(stored) == 0 {
		return segmentError("create", run, n, fmt.Errorf("%w: it is empty", ErrCorrupt))
	}
	if _, err := s.bucket.put(ctx, key, stored, 0); err != nil {
		if errors.Is(err, ErrConflict) {
			err = fmt.Errorf("%w: %w", ErrExists, err)
		}
		return segmentError("create", run, n, err)
	}
	return nil
}

// Get returns segment n of a run as it is stored; see schema.DecodeSegment. Segments do not change, so any
// replica may answer; one that does not have it yet is not believed, the leader is asked. It returns
// [ErrNotFound] or [ErrStreamMissing].
func (s *Segments) Get(ctx context.Context, run string, n int) ([]byte, error) {
	key, err := segmentKey(run, n)
	if err != nil {
		return nil, err
	}
	e, err := s.bucket.get(ctx, key)
	if errors.Is(err, ErrNotFound) {
		e, err = s.bucket.getFresh(ctx, key)
	}
	if err != nil {
		return nil, segmentError("get", run, n, err)
	}
	return e.value, nil
}

// GetFresh is [Segments.Get] answered by the leader.
func (s *Segments) GetFresh(ctx context.Context, run string, n int) ([]byte, error) {
	key, err := segmentKey(run, n)
	if err != nil {
		return nil, err
	}
	e, err := s.bucket.getFresh(ctx, key)
	if err != nil {
		return nil, segmentError("get", run, n, err)
	}
	return e.value, nil
}

// Delete removes segment n of a run; a marker stays, so that a crash cannot bring it back, and Create works
// again. Deleting one that is not there does nothing.
func (s *Segments) Delete(ctx context.Context, run string, n int) error {
	key, err := segmentKey(run, n)
	if err != nil {
		return err
	}
	e, err := s.bucket.getFresh(ctx, key)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err == nil {
		err = s.bucket.remove(ctx, key, true, e.rev)
	}
	if err != nil {
		return segmentError("delete", run, n, err)
	}
	return nil
}

// List returns the numbers of a run's segments in ascending order, counted or not.
func (s *Segments) List(ctx context.Context, run string) ([]int, error) {
	if err := schema.CheckName("run id", run); err != nil {
		return nil, err
	}
	keys, err := s.bucket.keys(ctx, run+".*")
	if err != nil {
		return nil, fmt.Errorf("list segments of run %s: %w", run, err)
	}
	numbers := make([]int, 0, len(keys))
	for _, key := range keys {
		n, err := strconv.Atoi(strings.TrimPrefix(key, run+"."))
		if err != nil || n < 1 || schema.SegmentKey(run, n) != key {
			continue // another client's key; it is none of ours
		}
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	return numbers, nil
}
