package kvstore

import "context"

// Kept is the content of a shard's buckets, in bytes of one copy.
type Kept struct {
	Segments, Checkpoints int64
}

// Kept asks for the size of the shard's buckets. It returns [ErrStreamMissing].
func (s *Shard) Kept(ctx context.Context) (k Kept, err error) {
	for stream, bytes := range map[string]*int64{s.Segments.bucket.stream: &k.Segments, s.Checkpoints.bucket.stream: &k.Checkpoints} {
		info, err := streamInfo(ctx, s.js, stream)
		if err != nil {
			return k, err
		}
		*bytes = UsageOf(info).Bytes
	}
	return k, nil
}
