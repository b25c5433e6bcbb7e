package publisher

import (
	"context"
	"fmt"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// Unrecorded begins a run that is recorded nowhere, for tests and scripts: work on runs, [Loop] and tools run on it as they are, without
// a server and a daemon. cfg and spec are those of [Connect] and [Fleet.Start]; cfg's connection and its time-outs are not used.
//
// The events of the run are checked and folded in memory only, so all that reads the handle, such as [Run.Conversation] and
// [Run.State], returns what it would return of a recorded run. Policy, Redaction and the clock of cfg apply. Large fields stay in their events.
//
// Nothing can go on with the run: it is lost with the process, and no one else can see, answer, cancel or take it over. A wait
// for an answer or a settlement returns [ErrUnrecorded], and so does what needs another run: [Run.Continue], and a spec with a Handoff. What a
// [Work] returns has no consequence; its caller decides.
//
// It returns [ErrConfig], [ErrUnrecorded] and [*RejectedError]. It and each call that publishes return [ErrUnavailable] when ctx has ended.
func Unrecorded(ctx context.Context, cfg Config, spec RunSpec) (*Run, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	f := &Fleet{cfg: cfg.withDefaults(), Reader: new(Reader), pipelines: make(map[*Run]struct{}), life: context.Background(), proofAge: beginWithin}
	f.works.now, f.redactor = f.cfg.Now, newRedactor(cfg.Redaction)
	spec, err := f.named(spec)
	if err != nil {
		return nil, err
	}
	if spec.Handoff != nil {
		return nil, fmt.Errorf("start of run %s: %w: it cannot carry out a hand-off, which is an event of another run", spec.ID, ErrUnrecorded)
	}
	return f.startIn(ctx, schema.Names{}, spec)
}

// unrecorded reports whether the fleet handle has no server.
func (f *Fleet) unrecorded() bool { return f.nc == nil }

// memory is the recorder of a run that is recorded nowhere: it acknowledges events at once, for the fold in memory.
type memory struct{ ledger *ledger }

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

// late keeps no outcome: no other process can ask for it.
func (memory) late(_ context.Context, _ []draft, ended error) error { return ended }
