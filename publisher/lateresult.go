package publisher

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// late publishes the outcomes among drafts that a fenced handle could not record. The outcome of a call in doubt is
// evidence, from any writer: it saves a question to a person, or a second run of the tool. late returns the error that
// fenced the handle, whatever happens to the evidence. The caller holds the publish slot.
func (a *appender) late(ctx context.Context, drafts []draft, fenced error) error {
	for i := range drafts {
		switch drafts[i].data.(type) {
		case *schema.ToolReturnedData, *schema.ToolFailedData:
			if err := a.offerLate(ctx, &drafts[i]); err != nil {
				fenced = fmt.Errorf("%w; the outcome of its call in turn %d was not stored either: %w", fenced, drafts[i].turn, err)
			}
		}
	}
	return fenced
}

// offerLate publishes one outcome after the newest event of the run, if the fold accepts it there as evidence. If the
// call was settled or run again meanwhile, the outcome would only be one more dead letter, so it is not sent.
func (a *appender) offerLate(ctx context.Context, d *draft) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.cfg.PublishTimeout)
	defer cancel()
	var head schema.Head
	var last schema.StreamSequence
	var writer schema.Writer
	a.ledger.do(func(l *ledger) { head, last, writer = l.fold.head.Clone(), l.last, l.writer })
	it := d.seal(&writer, writer.Last+1)
	wait := pauses()
	for {
		err := eventlog.Read(ctx, a.js, a.names, a.run, last+1, func(rec schema.Record) error {
			keys, err := a.Keys(ctx)
			if err != nil {
				return err
			}
			head.Apply(keys, &rec)
			last = max(last, rec.Stream)
			return nil
		})
		if err == nil {
			probe := head.Clone()
			if v := probe.ApplyPrepared(&it.prepared); v.Kind != schema.Evidence || v.Call.ToolCallID == "" {
				return nil // the call is closed, or an earlier try is in the log
			}
			switch answer := a.append(ctx, eventlog.Message(a.names, it.event), last); answer.Outcome {
			case eventlog.Stored:
				return nil
			case eventlog.Full, eventlog.Oversized, eventlog.Refused, eventlog.Denied, eventlog.AnswerDenied:
				return answer.Err
			default:
				err = answer.Err // the next read decides
			}
		}
		if a.nc.IsClosed() || !wait.Wait(ctx) {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}
