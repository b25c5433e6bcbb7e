package replay

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// Segments folds the segments of a run onto a head, in order, up to the first missing or unusable one; bad gets the
// number of an unusable segment and the reason. overview, if not nil, follows the head. each, if not nil, gets every
// record, including those of an unusable segment.
func Segments(ctx context.Context, keys *schema.Keys, get func(ctx context.Context, run string, n int) ([]byte, error), head *schema.Head, overview *schema.Overview,
	run string, each func(*schema.Record), bad func(n int, err error),
) (schema.SegmentIndex, error) {
	var index schema.SegmentIndex
	for n := 1; ; n++ {
		stored, err := get(ctx, run, n)
		if errors.Is(err, kvstore.ErrNotFound) {
			return index, nil
		}
		if err != nil {
			return index, fmt.Errorf("fold segment %d of run %s: %w", n, run, err)
		}
		before, shown := head.Clone(), schema.Overview{}
		if overview != nil {
			shown = *overview
		}
		info, err := segment(keys, head, overview, run, n, stored, each)
		if err != nil {
			*head = before
			if overview != nil {
				*overview = shown
			}
			bad(n, err)
			return index, nil
		}
		index = Count(index, &info, len(stored))
	}
}

// Count returns an index with the next segment added, which takes a number of bytes as stored.
func Count(index schema.SegmentIndex, info *schema.SegmentInfo, stored int) schema.SegmentIndex {
	return schema.SegmentIndex{
		Count: info.Number, Bytes: index.Bytes + int64(stored), Events: index.Events + int64(info.Events),
		Last: info.Last, Digest: info.DigestAfter,
	}
}

// segment folds one segment onto a head, which must not be used after an error.
func segment(keys *schema.Keys, head *schema.Head, overview *schema.Overview, run string, n int, stored []byte, each func(*schema.Record)) (schema.SegmentInfo, error) {
	info, frames, err := schema.DecodeSegment(stored)
	if err != nil {
		return info, err
	}
	if err := Continues(&info, run, n, head.Digest); err != nil {
		return info, err
	}
	order := schema.Order{Last: head.Position.Stream}
	if err := schema.ReadFrames(frames, func(rec schema.Record) bool {
		order.Next(head, &rec)
		v := head.Apply(keys, &rec)
		if overview != nil {
			overview.Apply(head, &v)
		}
		if each != nil {
			each(&rec)
		}
		return true
	}); err != nil {
		return info, err
	}
	if head.Digest != info.DigestAfter {
		return info, fmt.Errorf("folds to digest %.16s…, described as %.16s…: %w", head.Digest, info.DigestAfter, schema.ErrCorrupt)
	}
	return info, nil
}

// Continues checks that a segment is the run's, has the number, and follows the digest of the segment before it.
func Continues(info *schema.SegmentInfo, run string, n int, digest string) error {
	if info.Run != run || info.Number != n {
		return fmt.Errorf("it is segment %d of run %.64s: %w", info.Number, info.Run, schema.ErrCorrupt)
	}
	if info.DigestBefore != digest {
		return fmt.Errorf("follows digest %.16s…, the run is at %.16s…: %w", info.DigestBefore, digest, schema.ErrCorrupt)
	}
	return nil
}
