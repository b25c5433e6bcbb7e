package kvstore

import (
	"context"

	"github.com/waymarkio/waymark/schema"
)

// Kept is the content of a shard's buckets, and its share of the fleet's blobs, in bytes of one copy.
type Kept struct {
	Segments, Checkpoints, Blobs int64
}

// Kept asks for the size of the shard's buckets and of the blobs. It returns [ErrStreamMissing].
func (s *Shard) Kept(ctx context.Context) (k Kept, err error) {
	for stream, bytes := range map[string]*int64{
		s.Segments.bucket.stream: &k.Segments, s.Checkpoints.bucket.stream: &k.Checkpoints, "OBJ_" + schema.BlobBucket(s.Names.Fleet): &k.Blobs,
	} {
		info, err := streamInfo(ctx, s.js, stream)
		if err != nil {
			return k, err
		}
		*bytes = int64(info.State.Bytes) //nolint:gosec // a size on disk
	}
	k.Blobs /= int64(s.settings.Load().Shards)
	return k, nil
}
