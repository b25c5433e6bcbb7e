package publisher

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// late hands in the outcomes among drafts that a fenced handle could not record: what became of a call in doubt is
// evidence, whoever says it, and spares a person the question or a tool its second run. It returns the error that
// fenced the handle, whatever becomes of the evidence. Called past the turnstile.
func (r *Run) late(ctx context.Context, drafts []draft, fenced error) error {
	for i := range drafts {
		switch drafts[i].data.(type) {
		case *schema.ToolReturnedData, *schema.ToolFailedData:
			if err := r.offerLate(ctx, &drafts[i]); err != nil {
				fenced = fmt.Errorf("%w; the outcome of its call in turn %d was not stored either: %w", fenced, drafts[i].turn, err)
			}
		}
	}
	return fenced
}

// offerLate publishes one outcome behind the newest event of the run, if the fold takes it as evidence there. Not for a
// call that was settled or run anew meanwhile: that would be one dead letter more.
func (r *Run) offerLate(ctx context.Context, d *draft) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.fleet.cfg.PublishTimeout)
	defer cancel()
	r.mu.Lock()
	head, last, writer := r.head.Clone(), r.last, r.writer
	r.mu.Unlock()
	it := d.seal(&writer, writer.Last+1)
	wait := r.fleet.cfg.pause()
	for {
		err := eventlog.Read(ctx, r.fleet.js, r.names, r.id, last+1, func(rec schema.Record) error {
			keys, err := r.fleet.keys.Keys(ctx)
			if err != nil {
				return err
			}
			head.Apply(keys, &rec)
			last = max(last, rec.Stream)
			return nil
		})
		if err == nil {
			probe := head.Clone()
			rec := it.record(0)
			if v := probe.Apply(schema.ExecutorsOnly, &rec); v.Kind != schema.Evidence || v.Call.ToolCallID == "" {
				return nil // nobody asks any more, or an earlier try is in the log
			}
			switch a := r.fleet.sender.Append(ctx, r.message(it), last); a.Outcome {
			case eventlog.Stored:
				return nil
			case eventlog.Full, eventlog.Oversized, eventlog.Refused, eventlog.Denied, eventlog.AnswerDenied:
				return a.Err
			default:
				err = a.Err // the next reading tells
			}
		}
		if !wait.Wait(ctx) {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}
