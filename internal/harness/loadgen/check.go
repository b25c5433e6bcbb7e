package loadgen

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/schema"
)

// ErrDiffers is returned by [Check] if a run does not match its number.
var ErrDiffers = errors.New("a generated run is not what was generated")

// Check reads count runs, evenly spread, and compares each with the run of its number. get answers like the daemon's
// verb get. Runs without an executor, to which the daemon has written since, are compared up to there.
func Check(ctx context.Context, cfg Config, count int, get func(ctx context.Context, run string) (*schema.Head, error)) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	cfg = cfg.withDefaults()
	count = min(count, cfg.Runs)
	for i := range count {
		n := i * cfg.Runs / count
		want, err := HeadOf(cfg, n)
		if err != nil {
			return err
		}
		got, err := get(ctx, RunID(n))
		if err != nil {
			return fmt.Errorf("run %s: %w", RunID(n), err)
		}
		if !got.Complete() || got.Agent != want.Agent || got.Sequence != want.Sequence && got.Epoch == want.Epoch ||
			want.Status.Terminal() && (got.Digest != want.Digest || got.Status != want.Status) {
			return fmt.Errorf("%w: run %s is %s at %d with digest %.16s, want %s at %d with digest %.16s",
				ErrDiffers, RunID(n), got.Status, got.Sequence, got.Digest, want.Status, want.Sequence, want.Digest)
		}
	}
	return nil
}

// HeadOf is the head of a run after its last event, folded from its number. Stream sequences in it count the run's
// own events.
func HeadOf(cfg Config, n int) (schema.Head, error) {
	events, err := cfg.Run(n)
	if err != nil {
		return schema.Head{}, err
	}
	head := schema.NewHead(cfg.Fleet, RunID(n))
	for at, e := range events {
		header, body := e.Encode()
		rec := schema.NewRecord(schema.StreamSequence(at+1), header, body) //nolint:gosec // small
		if v := head.Apply(schema.NoKeys, &rec); v.Kind != schema.Applied {
			return head, fmt.Errorf("%w: event %s of run %s is not valid: %s", ErrDiffers, e.ID, RunID(n), v.Detail)
		}
	}
	return head, nil
}
