package bench

import (
	"context"
	"errors"
)

// boundaryCase measures one run alone: the cost of a durable boundary.
func boundaryCase() Case {
	return Case{
		Name:  "boundary",
		About: "One run, one durable boundary after the other, compared with a raw publish of as many bytes.",
		Uses:  []string{"turns", "shards", "daemons"},
		Variants: func(o Options) []Variant {
			turns := o.Pick(o.Turns, 20, 3)
			return []Variant{{
				Parameters: map[string]any{"runs": 1, "turns": turns},
				Setup:      func(ctx context.Context, w *World) (*Trial, error) { return boundaryTrial(ctx, w, turns) },
			}}
		},
	}
}

// boundaryAim is the largest ratio of medians that the design allows.
const boundaryAim = 1.15

func boundaryTrial(ctx context.Context, w *World, turns int) (*Trial, error) {
	f, err := w.Fleet(ctx, "executor")
	if err != nil {
		return nil, err
	}
	sizes, err := w.WireSizes(ctx, f, FullTurn)
	if err != nil {
		return nil, err
	}
	p, err := StartRun(ctx, f, "run", FullTurn)
	if err != nil {
		return nil, err
	}
	raw := NewRawWriter(w.JS, "run", sizes, FullTurn)
	play := func(turn func(context.Context, func(context.Context, Step) error) error) func(context.Context, int) (Sample, error) {
		return func(ctx context.Context, _ int) (Sample, error) {
			var c Clock
			for range turns {
				if err := turn(ctx, c.Time); err != nil {
					return Sample{}, err
				}
			}
			return c.sample(), nil
		}
	}
	return &Trial{
		// Many short rounds: other work of the machine disturbs raw and ours alike.
		Rounds: w.Options.Rounds * w.Options.Pick(0, 10, 1),
		WarmUp: func(ctx context.Context) error {
			_, rawErr := play(raw.Turn)(ctx, 0)
			_, err := play(p.Turn)(ctx, 0)
			return errors.Join(rawErr, err)
		},
		Raw:    play(raw.Turn),
		Ours:   play(p.Turn),
		Verify: func(ctx context.Context) error { return w.Verify(ctx, WroteBy(p)) },
		Finish: func(_ context.Context, r *Result) error {
			r.AtMost("p50 by raw", r.P50Ratio, boundaryAim)
			return nil
		},
	}, nil
}

// sample returns the measurements of a single writer.
func (c *Clock) sample() Sample {
	s := Sample{Boundaries: int64(len(c.Latencies)), Latencies: c.Latencies}
	for _, l := range c.Latencies {
		s.Elapsed += l
	}
	s.Payload = s.Boundaries / TurnBoundaries * TurnPayload
	return s
}
