package publisher

import (
	"context"
	"fmt"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// Unrecorded starts a run without a record, for tests and scripts: work on runs, [Loop] and tools run on it unchanged,
// without a server and a daemon. cfg and spec are those of [Connect] and [Fleet.Start]; the connection and the timeouts
// in cfg are not used.
//
// The events of the run are validated and folded in memory only, so methods that read the handle, such as
// [Run.Conversation] and [Run.State], return the same as for a recorded run. Policy, Redaction and the clock of cfg
// apply. Large fields stay in their events.
//
// No executor can continue the run: it is lost with the process, and no other process can see, answer, cancel or take
// it over. A wait for an answer or a settlement returns [ErrUnrecorded], and so do methods that need another run:
// [Run.Continue], and a spec with a Handoff. The return of a [Work] has no effect; its caller decides.
//
// It returns [ErrConfig], [ErrUnrecorded] and [*RejectedError]. It and each publishing method return [ErrUnavailable]
// once ctx has ended.
func Unrecorded(ctx context.Context, cfg Config, spec RunSpec) (*Run, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	f := &Fleet{cfg: cfg.withDefaults(), Reader: new(Reader), life: context.Background(), proofAge: beginWithin}
	f.works.now, f.redactor = f.cfg.Now, newRedactor(cfg.Redaction)
	spec, err := f.named(spec)
	if err != nil {
		return nil, err
	}
	if spec.Handoff != nil {
		return nil, fmt.Errorf("start of run %s: %w: it cannot carry out a hand-off of another run; use a recorded run", spec.ID, ErrUnrecorded)
	}
	return f.begin(ctx, schema.Names{}, spec)
}

// unrecorded reports whether the fleet handle has no server.
func (f *Fleet) unrecorded() bool { return f.nc == nil }

// memory is the recorder of an unrecorded run: it acknowledges events at once, for the fold in memory.
type memory struct{ ledger *sharedLedger }

func (m memory) deliver(ctx context.Context, items []*item) error {
	return m.ledger.delivered(items, m.keep(ctx, items))
}

func (m memory) keep(ctx context.Context, items []*item) error {
	for _, it := range items {
		if it.stream != 0 {
			continue
		}
		if ctx.Err() != nil {
			return fmt.Errorf("run %s: publishing %s: %w: %w", m.ledger.run, it.event.ID, ErrUnavailable, context.Cause(ctx))
		}
		last, _ := m.ledger.end()
		if err := m.ledger.acknowledged(it, last+1, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

// catchUp finds nothing: no other process can write into the run.
func (memory) catchUp(context.Context, schema.StreamSequence, []*item) error { return nil }

// late keeps no outcome: no other process can use it.
func (memory) late(_ context.Context, _ []draft, ended error) error { return ended }
