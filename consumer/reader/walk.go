package reader

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/schema"
)

// each calls see for a run that was read with its content, from its first record on: with the head after each record,
// and the verdict about it. Events of a damaged segment come from the log if it still has them; then the walk starts
// over.
func (rd *Reader) each(ctx context.Context, r *Snapshot, see func(*schema.Head, schema.Verdict)) error {
	walk := func(r *Snapshot) error {
		keys, err := rd.keys.Keys(ctx)
		if err != nil {
			return err
		}
		w := &walker{keys: keys, head: schema.NewHead(rd.fleet, r.Run), next: 1}
		w.before = func(*schema.Prepared) bool { return false }
		w.behind = func(v schema.Verdict) bool {
			see(&w.head, v)
			return false
		}
		if err := rd.Content(ctx, r, &Cursor{Next: 1}, w); err != nil {
			return err
		}
		if w.next != r.Segments.Count+1 {
			return fmt.Errorf("segment %d: %w", w.next, errSegmentMissing)
		}
		return nil
	}
	err := walk(r)
	var bad *Damaged
	if !errors.As(err, &bad) && !errors.Is(err, errSegmentMissing) {
		return err
	}
	switch logged, werr := rd.fromLog(ctx, r); {
	case werr != nil:
		return werr
	case logged != nil:
		return walk(logged)
	case bad == nil:
		return schema.Fail(schema.CodeDamaged, "See what is wrong with: waymark verify "+r.Run+".", "run %s: %s", r.Run, err)
	}
	return err
}

// LeftBehind reports whether a rewind abandoned the event with an id, in a run that was read with its content.
func (rd *Reader) LeftBehind(ctx context.Context, r *Snapshot, id string) (bool, error) {
	at := int64(0)
	err := rd.each(ctx, r, func(h *schema.Head, v schema.Verdict) {
		if v.Kind == schema.Applied && v.Event.ID == id {
			at = h.Records
		}
	})
	return at > 0 && r.Head.LeftBehind(at), err
}

// Takeover returns the latest takeover with a request id, and its epoch, of a run that was read with its content; nil
// for none. It also finds those that a rewind abandoned.
func (rd *Reader) Takeover(ctx context.Context, r *Snapshot, requestID string) (found *schema.RunResumedData, epoch schema.Epoch, err error) {
	err = rd.each(ctx, r, func(h *schema.Head, v schema.Verdict) {
		if d, ok := v.Data.(*schema.RunResumedData); ok && v.Kind == schema.Applied && d.RequestID == requestID {
			found, epoch = d, h.Epoch
		}
	})
	return found, epoch, err
}
