package bench

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
)

// boundaryCase measures one run alone, the cost of a durable boundary, and many runs in one process.
func boundaryCase() Case {
	return Case{
		Name:  "boundary",
		About: "One durable boundary after the other of 1, 64 and 256 runs in one process, compared with as many goroutines that publish raw messages of as many bytes.",
		Variants: func(o Options) (list []Variant) {
			for _, runs := range o.Span(o.Runs, []int{1, 64, 256}, []int{1, 64}) {
				turns, rounds := o.Pick(o.Turns, max(4, 512/runs), 2), 0
				if runs == 1 {
					// Many short rounds: other work of the machine disturbs raw and ours alike.
					turns, rounds = o.Pick(o.Turns, 20, 3), o.Rounds*o.Pick(0, 10, 1)
				}
				list = append(list, boundaries(runs, turns, rounds))
			}
			return list
		},
	}
}

// boundaries is a variant of turns whose boundaries are timed one by one.
func boundaries(runs, turns, rounds int) Variant {
	return Variant{Parameters: map[string]any{"runs": runs, "turns": turns}, Setup: func(ctx context.Context, w *World) (*Trial, error) {
		f, err := w.Fleet(ctx, "executor")
		if err != nil {
			return nil, err
		}
		sizes, err := w.WireSizes(ctx, f, FullTurn)
		if err != nil {
			return nil, err
		}
		e, err := newExecutor(ctx, f, w.JS, "run", runs, FullTurn, sizes)
		if err != nil {
			return nil, err
		}
		return &Trial{
			Rounds: rounds,
			WarmUp: func(ctx context.Context) error {
				_, rawErr := Together(ctx, e.raw, 1)
				_, err := Together(ctx, e.ours, 1)
				return errors.Join(rawErr, err)
			},
			Prepare: func(ctx context.Context, _ int) error {
				_, _, err := e.do(ctx, executorRequest{Prepare: turns})
				return err
			},
			Raw:    func(ctx context.Context, _ int) (Sample, error) { return Together(ctx, e.raw, turns) },
			Ours:   func(ctx context.Context, _ int) (Sample, error) { return Together(ctx, e.ours, turns) },
			Verify: func(ctx context.Context) error { return w.Verify(ctx, WroteBy(e.players...)) },
		}, nil
	}}
}

// Turner plays turns: a [Player] or a [RawWriter].
type Turner interface {
	Prepare(turns int)
	Turn(ctx context.Context, do func(context.Context, Step) error) error
	Waited() time.Duration
}

// Together plays turns of all turners at once, each in a goroutine. A latency is that of one boundary.
func Together(ctx context.Context, all []Turner, turns int) (Sample, error) {
	return together(ctx, all, turns, func(ctx context.Context, t Turner, c *Clock) error { return t.Turn(ctx, c.Time) })
}

// WholeTurns does the same; a latency is that of one turn. Prepare the texts before.
func WholeTurns(ctx context.Context, all []Turner, turns int) (Sample, error) {
	return together(ctx, all, turns, func(ctx context.Context, t Turner, c *Clock) error {
		err := c.Time(ctx, func(ctx context.Context) error {
			return t.Turn(ctx, func(ctx context.Context, step Step) error { return step(ctx) })
		})
		c.Latencies[len(c.Latencies)-1] -= t.Waited()
		return err
	})
}

func together(ctx context.Context, all []Turner, turns int, play func(context.Context, Turner, *Clock) error) (Sample, error) {
	clocks := make([]Clock, len(all))
	begin := make(chan struct{})
	group, ctx := errgroup.WithContext(ctx)
	for i, t := range all {
		clocks[i].Latencies = make([]time.Duration, 0, turns*TurnBoundaries)
		group.Go(func() error {
			<-begin
			for range turns {
				if err := play(ctx, t, &clocks[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	began := time.Now()
	close(begin)
	if err := group.Wait(); err != nil {
		return Sample{}, err
	}
	s := Sample{Elapsed: time.Since(began), Payload: int64(len(all) * turns * TurnPayload)}
	for _, c := range clocks {
		s.Latencies = append(s.Latencies, c.Latencies...)
	}
	s.Boundaries = int64(len(s.Latencies))
	return s, nil
}
