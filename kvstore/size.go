package kvstore

import (
	"context"
)

// Kept is the content of a shard's buckets, in bytes of one copy.
type Kept struct {
	Segments, Checkpoints int64
}

// Kept asks for the size of the shard's buckets. It returns [ErrStreamMissing].
func (s *Shard) Kept(ctx context.Context) (k Kept, err error) {
	for _, b := range []struct {
		bucket *bucket
		bytes  *int64
	}{{&s.Segments.bucket, &k.Segments}, {&s.Checkpoints.bucket, &k.Checkpoints}} {
		info, err := streamInfo(ctx, s.js, b.bucket.stream)
		if err != nil {
			return k, err
		}
		*b.bytes = int64(info.State.Bytes) //nolint:gosec // a size on disk
	}
	return k, nil
}
