package kvstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/waymarkio/waymark/schema"
)

// Segments is the segment bucket of a shard. Segments are the older part of the log: purged events exist only here.
type Segments struct {
	bucket bucket
	// room is how many bytes of segments may still be stored: the rest of the stream is for the daemon's own keys and for
	// removals, which make room. [Shard.Throttle] sets it, and each segment takes from it.
	room atomic.Int64
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

// Create stores segment n of a run. It is durable when Create returns. It returns [ErrExists] for a segment that
// exists (perhaps from an earlier try: read and verify it) or was deleted: segments are deleted with their run, and
// never replaced. Further [ErrTooLarge], [ErrFull], [ErrUnavailable] (outcome unknown; a repeat may return
// ErrExists), [ErrStreamMissing].
func (s *Segments) Create(ctx context.Context, run string, n int, stored []byte) error {
	err := s.put(ctx, run, n, stored, 0)
	if errors.Is(err, ErrConflict) {
		err = fmt.Errorf("%w: %w", ErrExists, err)
	}
	if err != nil {
		return segmentError("create", run, n, err)
	}
	return nil
}

// Replace stores segment n of a run over the one that [Segments.Examine] returned with this revision. It returns
// [ErrConflict] if that is no longer the last: another fold worker wrote it, and it may be the only copy of its
// events. Otherwise the errors are those of [Segments.Create].
func (s *Segments) Replace(ctx context.Context, run string, n int, stored []byte, rev schema.Revision) error {
	if rev == 0 {
		return segmentError("replace", run, n, errors.New("without the revision that was examined"))
	}
	if err := s.put(ctx, run, n, stored, rev); err != nil {
		return segmentError("replace", run, n, err)
	}
	return nil
}

func (s *Segments) put(ctx context.Context, run string, n int, stored []byte, rev schema.Revision) error {
	key, err := segmentKey(run, n)
	if err != nil {
		return err
	}
	if len(stored) > maxSegmentStored {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(stored), maxSegmentStored)
	}
	if len(stored) == 0 {
		return fmt.Errorf("%w: it is empty", ErrCorrupt)
	}
	if s.room.Load() < int64(len(stored)) {
		return fmt.Errorf("%w: segments have used up the quota", ErrFull)
	}
	s.room.Add(-int64(len(stored)))
	_, err = s.bucket.publish(ctx, s.bucket.message(key, stored, nil, true, rev))
	return err
}

// Get returns segment n of a run as stored; see schema.DecodeSegment. Segments do not change, so any replica may
// answer; if it does not have the segment yet, the leader is asked. It returns [ErrNotFound] or [ErrStreamMissing].
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

// GetFresh is [Segments.Get] from the leader.
func (s *Segments) GetFresh(ctx context.Context, run string, n int) ([]byte, error) {
	stored, _, err := s.Examine(ctx, run, n)
	return stored, err
}

// Examine is [Segments.GetFresh] with the revision, for [Segments.Replace].
func (s *Segments) Examine(ctx context.Context, run string, n int) ([]byte, schema.Revision, error) {
	key, err := segmentKey(run, n)
	if err != nil {
		return nil, 0, err
	}
	e, err := s.bucket.getFresh(ctx, key)
	if err != nil {
		return nil, 0, segmentError("get", run, n, err)
	}
	return e.value, e.rev, nil
}
