package bench

import (
	"context"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// verifiers read back at once.
const verifiers = 8

// Wrote is a writer's view of its run, to be compared with the store.
type Wrote struct {
	Run  string      `json:"run"`
	Head schema.Head `json:"head"`
}

// WroteBy collects the players' views of their runs.
func WroteBy(players ...*Player) []Wrote {
	all := make([]Wrote, len(players))
	for i, p := range players {
		all[i] = Wrote{Run: p.Run.ID(), Head: p.Run.Head()}
	}
	return all
}

// Verify reads every run back whole, segments and log, as a recovery would, folds it again and compares count, sequence
// and digest with what its writer holds. It returns [ErrWrongData] for the first that differs. What it read
// is counted in the result.
func (w *World) Verify(ctx context.Context, wrote []Wrote) error {
	f, err := w.Fleet(ctx, "verifier", func(c *publisher.Config) { c.Heartbeat = -1 })
	if err != nil {
		return err
	}
	if len(wrote) == 0 {
		return fmt.Errorf("%w: the case hands nothing in to be verified", ErrWrongData)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(verifiers)
	var events atomic.Int64
	for _, want := range wrote {
		group.Go(func() error {
			head := schema.NewHead(FleetName, want.Run)
			if err := f.Events(ctx, want.Run, func(r schema.Record) error {
				head.Apply(schema.NoKeys, &r)
				events.Add(1)
				return nil
			}); err != nil {
				return fmt.Errorf("reading run %s back: %w", want.Run, err)
			}
			return want.compare(&head)
		})
	}
	err = group.Wait()
	w.verified += events.Load()
	return err
}

// compare returns an error that names the difference of both heads.
func (w *Wrote) compare(read *schema.Head) error {
	for _, c := range []struct {
		field       string
		wrote, read any
	}{
		{"events", w.Head.Counts.Events, read.Counts.Events},
		{"sequence", w.Head.Sequence, read.Sequence},
		{"epoch", w.Head.Epoch, read.Epoch},
		{"digest", w.Head.Digest, read.Digest},
	} {
		if c.wrote != c.read {
			return &WrongDataError{Run: w.Run, Field: c.field, Wrote: c.wrote, Read: c.read}
		}
	}
	return nil
}
