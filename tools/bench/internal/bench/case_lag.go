package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
)

// lagAim is what the design allows from accepted to checkpointed, at the 99th percentile, in us.
const lagAim = 50_000

// lagRuns share the rate.
const lagRuns = 16

// lagCase is how far the checkpoints are behind the log while nothing is overloaded.
func lagCase() Case {
	return Case{
		Name:  "lag",
		About: "From a boundary's acknowledgement to the checkpoint that holds it, at rates (boundaries/s of all runs together) below saturation.",
		Uses:  []string{"runs", "turns", "shards", "daemons"},
		Variants: func(o Options) []Variant {
			var list []Variant
			for _, perSecond := range o.Span(0, []int{100, 400}, []int{400}) {
				runs := o.Pick(o.Runs, lagRuns, 4)
				// About four seconds a round.
				turns := o.Pick(o.Turns, max(1, 4*perSecond/TurnBoundaries/runs), 2)
				list = append(list, Variant{
					Parameters: map[string]any{"runs": runs, "turns": turns, "rate": perSecond},
					Setup: func(ctx context.Context, w *World) (*Trial, error) {
						return lagTrial(ctx, w, runs, turns, perSecond)
					},
				})
			}
			return list
		},
	}
}

func lagTrial(ctx context.Context, w *World, runs, turns, perSecond int) (*Trial, error) {
	f, err := w.Fleet(ctx, "executor")
	if err != nil {
		return nil, err
	}
	players, err := StartRuns(ctx, f, "run", runs, FullTurn)
	if err != nil {
		return nil, err
	}
	watch, err := w.WatchFold()
	if err != nil {
		return nil, err
	}
	play := func(ctx context.Context, turns int) (Sample, error) {
		pace := rate.NewLimiter(rate.Limit(perSecond), 1)
		var mu sync.Mutex
		var s Sample
		group, inner := errgroup.WithContext(ctx)
		began := time.Now()
		for _, p := range players {
			group.Go(func() error {
				var clock Clock
				for range turns {
					if err := p.Turn(inner, func(ctx context.Context, step Step) error {
						if err := pace.Wait(ctx); err != nil {
							return err
						}
						if err := clock.Time(ctx, step); err != nil {
							return err
						}
						now := time.Now()
						watch.Acked(p.Run.ID(), p.Run.Head().Sequence, now)
						return nil
					}); err != nil {
						return err
					}
				}
				mu.Lock()
				defer mu.Unlock()
				s.Latencies = append(s.Latencies, clock.Latencies...)
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			return s, err
		}
		s.Elapsed, s.Boundaries, s.Payload = time.Since(began), int64(len(s.Latencies)), int64(runs*turns*TurnPayload)
		s.FoldLags, err = watch.AwaitAll(ctx)
		return s, err
	}
	return &Trial{
		Rounds: min(w.Options.Rounds, 3),
		WarmUp: func(ctx context.Context) error {
			_, err := play(ctx, 1)
			return err
		},
		Ours:   func(ctx context.Context, _ int) (Sample, error) { return play(ctx, turns) },
		Verify: func(ctx context.Context) error { return w.Verify(ctx, WroteBy(players...)) },
		Finish: func(_ context.Context, r *Result) error {
			r.AtMost("fold lag p99, us", r.FoldLagP99, lagAim).For(GoalLag, fmt.Sprintf("%d/s", perSecond))
			return nil
		},
	}, nil
}
