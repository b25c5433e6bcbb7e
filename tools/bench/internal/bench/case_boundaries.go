package bench

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

// boundariesAim is the smallest rate of 64 runs in one process, by raw single publishes of 64 goroutines.
const boundariesAim = 2

// boundariesCase measures the boundaries of many runs in one process.
func boundariesCase() Case {
	return Case{
		Name:  "boundaries",
		About: "Many runs in one process at full speed, compared with as many goroutines that publish raw messages one by one.",
		Uses:  []string{"runs", "turns", "shards", "daemons"},
		Variants: func(o Options) []Variant {
			runs, turns := o.Pick(o.Runs, 64, 64), o.Pick(o.Turns, 8, 2)
			return []Variant{{
				Parameters: map[string]any{"runs": runs, "turns": turns},
				Setup:      func(ctx context.Context, w *World) (*Trial, error) { return boundariesTrial(ctx, w, runs, turns) },
			}}
		},
	}
}

func boundariesTrial(ctx context.Context, w *World, runs, turns int) (*Trial, error) {
	f, err := w.Fleet(ctx, "executor")
	if err != nil {
		return nil, err
	}
	sizes, err := w.WireSizes(ctx, f, FullTurn)
	if err != nil {
		return nil, err
	}
	players, err := StartRuns(ctx, f, "run", runs, FullTurn)
	if err != nil {
		return nil, err
	}
	ours, raw := make([]Turner, runs), make([]Turner, runs)
	for i, p := range players {
		ours[i], raw[i] = p, NewRawWriter(w.JS, p.Run.ID(), sizes, FullTurn)
	}
	return &Trial{
		WarmUp: func(ctx context.Context) error {
			if _, err := Together(ctx, raw, 1); err != nil {
				return err
			}
			_, err := Together(ctx, ours, 1)
			return err
		},
		Raw:    func(ctx context.Context, _ int) (Sample, error) { return Together(ctx, raw, turns) },
		Ours:   func(ctx context.Context, _ int) (Sample, error) { return Together(ctx, ours, turns) },
		Verify: func(ctx context.Context) error { return w.Verify(ctx, WroteBy(players...)) },
		Finish: func(_ context.Context, r *Result) error {
			r.AtLeast("boundaries/s by raw", r.RateRatio, boundariesAim)
			return nil
		},
	}, nil
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

// turners returns players as turners.
func turners(players []*Player) []Turner {
	all := make([]Turner, len(players))
	for i, p := range players {
		all[i] = p
	}
	return all
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
