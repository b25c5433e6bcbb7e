package spans

import (
	"context"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/waymarkio/waymark/schema"
)

// Single exports one run once, from its first event.
type Single struct {
	tracker *Tracker
	keys    func(context.Context) (*schema.Keys, error)
	export  func(context.Context, []*tracepb.Span) error
	batch   []*tracepb.Span
}

// NewSingle returns the export of a run. keys returns the keys that verify control events.
func NewSingle(fleet, run string, opts Options, keys func(context.Context) (*schema.Keys, error), export func(context.Context, []*tracepb.Span) error) *Single {
	return &Single{tracker: NewTracker(fleet, run, opts), keys: keys, export: export}
}

// Take takes the next record of the run.
func (s *Single) Take(ctx context.Context, rec *schema.Record) error {
	keys, err := s.keys(ctx)
	if err != nil {
		return err
	}
	ended, _ := s.tracker.Apply(keys, rec)
	s.batch = append(s.batch, ended...)
	if len(s.batch) < batchSpans {
		return nil
	}
	return s.Finish(ctx)
}

// Finish exports the ended spans.
func (s *Single) Finish(ctx context.Context) error {
	for len(s.batch) > 0 {
		n := min(len(s.batch), batchSpans)
		if err := s.export(ctx, s.batch[:n]); err != nil {
			return err
		}
		s.batch = s.batch[n:]
	}
	return nil
}

// Open returns the number of spans that have begun but not ended.
func (s *Single) Open() int { return s.tracker.Open() }
