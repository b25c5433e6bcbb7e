package kvstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Kept is what a shard's buckets hold, in bytes of one copy.
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

// Parts of a message as stored, in bytes: a record's frame and hash, the length of its headers, their first line and end,
// and what stands between and behind the name and the value of each line.
const (
	recordBytes     = 22 + 8
	headersBytes    = 4 + len("NATS/1.0\r\n") + len("\r\n")
	headerLineBytes = len(": \r\n")
)

// storedBytes is what a message takes in its stream, as JetStream counts it.
func storedBytes(m *nats.Msg) int {
	n := recordBytes + len(m.Subject) + len(m.Data)
	if len(m.Header) > 0 {
		n += headersBytes
	}
	for name, values := range m.Header {
		for _, v := range values {
			n += len(name) + len(v) + headerLineBytes
		}
	}
	return n
}
