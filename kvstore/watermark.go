package kvstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// WatermarkFormat is the format version of stored watermarks.
const WatermarkFormat = 1

// Watermark is the position up to which a shard is folded: every event up to the position, inclusive, is in the
// checkpoints.
type Watermark struct {
	// Format is [WatermarkFormat].
	Format int `json:"format"`
	// Incarnation of the position's event stream.
	Incarnation string `json:"incarnation"`
	// Position of the last event folded. The zero position is the stream's beginning.
	Position schema.Position `json:"position"`
	// Safe is a position whose checkpoints were on disk when this watermark was put: the fold begins there after an
	// unclean start of the server, because a power cut can undo puts that the watermark counts.
	Safe schema.Position `json:"safe,omitzero"`
	// Worker is the fold worker that wrote it.
	Worker string `json:"folder"`
	// Updated is its time by the fold worker's clock, RFC 3339. It is for people; no code decides by it.
	Updated string `json:"updated,omitzero"`
	// Totals of folded events up to the position.
	Totals schema.FoldTotals `json:"totals,omitzero"`
	// RebuildTo is the end that the log had when a fold worker began to fold the shard again from the beginning of the
	// log; 0 once that is folded. Until then checkpoints and indexes may lack runs, or have those of another log.
	RebuildTo schema.StreamSequence `json:"rebuild_to,omitzero"`
	// Extra keeps the members of later versions.
	Extra jsontext.Value `json:",embed"`
}

// Watermark reads the shard's watermark from the leader. It returns [ErrNotFound] before the first put,
// [ErrCorrupt] or schema.ErrFormat with the revision to replace, [ErrStreamMissing].
func (c *Checkpoints) Watermark(ctx context.Context) (Watermark, schema.Revision, error) {
	return getWatermark(ctx, &c.bucket, schema.WatermarkKey)
}

// PutWatermark stores the watermark if the key is at revision rev; 0 creates it. Call it after the puts of all
// covered checkpoints were acknowledged. Of two fold workers one gets [ErrConflict]: it has lost the shard. It is not
// republished.
func (c *Checkpoints) PutWatermark(ctx context.Context, w Watermark, rev schema.Revision) (schema.Revision, error) {
	return putWatermark(ctx, &c.bucket, schema.WatermarkKey, w, rev)
}

// purgeMarks is where the purge cursor of a shard is stored: a bucket that is synced like the log, and the key.
func (s *Shard) purgeMarks() (*bucket, string) {
	b := newBucket(s.js, schema.LeaseBucket)
	return &b, fmt.Sprintf("purged.%s.%d", s.Names.Fleet, s.Names.Shard)
}

// PurgeMark reads the shard's purge cursor from the leader: everything below it was checked for purges. It is a hint: a
// lost one costs a walk through the log. Errors are those of [Checkpoints.Watermark].
func (s *Shard) PurgeMark(ctx context.Context) (Watermark, schema.Revision, error) {
	b, key := s.purgeMarks()
	return getWatermark(ctx, b, key)
}

// PutPurgeMark stores the shard's purge cursor by compare-and-set, like [Checkpoints.PutWatermark].
func (s *Shard) PutPurgeMark(ctx context.Context, w Watermark, rev schema.Revision) (schema.Revision, error) {
	b, key := s.purgeMarks()
	return putWatermark(ctx, b, key, w, rev)
}

func getWatermark(ctx context.Context, b *bucket, key string) (Watermark, schema.Revision, error) {
	e, err := b.getFresh(ctx, key)
	if err != nil {
		return Watermark{}, e.rev, fmt.Errorf("get watermark %s of %s: %w", key, b.name, err)
	}
	w, err := decodeWatermark(e.value)
	if err != nil {
		return Watermark{}, e.rev, fmt.Errorf("watermark %s of %s: %w", key, b.name, err)
	}
	return w, e.rev, nil
}

func decodeWatermark(value []byte) (Watermark, error) {
	w, err := decodeFormat[Watermark](value, WatermarkFormat)
	if err == nil && (w.Incarnation == "" || w.Position.Stream != 0 && w.Position.ID == "") {
		err = ErrCorrupt
	}
	if err != nil {
		return Watermark{}, err
	}
	return w, nil
}

func putWatermark(ctx context.Context, b *bucket, key string, w Watermark, rev schema.Revision) (schema.Revision, error) {
	if w.Incarnation == "" || w.Position.Stream != 0 && w.Position.ID == "" {
		return 0, fmt.Errorf("put watermark %s of %s: %w", key, b.name, errors.New("incarnation or the position's id is missing"))
	}
	w.Format = WatermarkFormat
	value, err := json.Marshal(w, json.Deterministic(true))
	if err != nil {
		return 0, fmt.Errorf("put watermark %s of %s: %w", key, b.name, err)
	}
	next, err := b.put(ctx, key, value, rev)
	if err != nil {
		return 0, fmt.Errorf("put watermark %s of %s: %w", key, b.name, err)
	}
	return next, nil
}
