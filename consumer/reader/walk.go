package reader

import (
	"context"

	"github.com/waymarkio/waymark/schema"
)

// each calls see for a run that was read with its content, from its first record on: with the head after each record,
// and the verdict about it. Events of a damaged segment come from the log if it still has them; then the walk starts
// over.
func (rd *Reader) each(ctx context.Context, r *Snapshot, see func(*schema.Head, schema.Verdict)) error {
	return rd.orFromLog(ctx, r, func(r *Snapshot) error {
		keys, err := rd.keys.Keys(ctx)
		if err != nil {
			return err
		}
		w := &walker{keys: keys, before: func(*schema.Prepared) bool { return false }}
		w.behind = func(v schema.Verdict) bool {
			see(&w.head, v)
			return false
		}
		return rd.walk(ctx, r, &keyframe{head: schema.NewHead(rd.fleet, r.Run)}, w)
	})
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
