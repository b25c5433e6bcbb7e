package kvstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// Kept is the content of a shard's buckets, in bytes of one copy.
type Kept struct {
	Segments, Checkpoints int64
}

// Kept asks for the size of the shard's buckets. It returns [ErrStreamMissing].
func (s *Shard) Kept(ctx context.Context) (k Kept, err error) {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	for _, b := range []struct {
		bucket *bucket
		bytes  *int64
	}{{&s.Segments.bucket, &k.Segments}, {&s.Checkpoints.bucket, &k.Checkpoints}} {
		stream, err := s.js.Stream(ctx, b.bucket.stream)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return k, fmt.Errorf("%w: %s: %w", ErrStreamMissing, b.bucket.stream, err)
		}
		if err != nil {
			return k, fmt.Errorf("size of %s: %w", b.bucket.stream, translate(err))
		}
		*b.bytes = int64(stream.CachedInfo().State.Bytes) //nolint:gosec // a size on disk
	}
	return k, nil
}
