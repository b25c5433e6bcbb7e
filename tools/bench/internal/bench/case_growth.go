package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/waymarkio/waymark/publisher"
)

// Aims of growth: bytes stored per payload byte, and how much they may grow from 50 turns to 1,000.
const (
	growthFullAim  = 2.0
	growthPacedAim = 3.0
	growthFlatAim  = 1.05
	growthFlatFrom = 50
	growthFlatTo   = 1000
	// growthTurns is the least number of turns of a variant: short runs follow each other until they have as many.
	growthTurns = 200
)

// growthCase is what a run costs as it grows longer.
func growthCase() Case {
	return Case{
		Name:  "growth",
		About: "Bytes stored per payload byte and time of a boundary, for runs of 10 to 1,000 turns: at full speed, and paced so that each boundary has a checkpoint of its own, as one a second has.",
		Uses:  []string{"turns"},
		Variants: func(o Options) []Variant {
			var list []Variant
			for _, paced := range []bool{false, true} {
				flat := new(flatness)
				for _, turns := range o.Span(o.Turns, []int{10, growthFlatFrom, 200, growthFlatTo}, []int{2, 8}) {
					speed := "full"
					if paced {
						speed = "paced"
					}
					g := growth{turns: turns, runs: max(1, o.Pick(0, growthTurns, 2)/turns), paced: paced, flat: flat}
					list = append(list, Variant{
						Parameters: map[string]any{"turns": turns, "speed": speed},
						Setup:      g.trial,
					})
				}
			}
			return list
		},
	}
}

// flatness carries the figure of one length to the line of another.
type flatness struct{ bytes *float64 }

// growth is one variant.
type growth struct {
	turns, runs int
	paced       bool
	flat        *flatness
	w           *World
	fleet       *publisher.Fleet
	watch       *FoldWatch
	ledger      *Ledger
	players     []*Player
	// first and last are the latencies of a run's first and last tenth.
	first, last []time.Duration
}

func (g growth) trial(ctx context.Context, w *World) (_ *Trial, err error) {
	g.w = w
	if g.fleet, err = w.Fleet(ctx, "executor"); err != nil {
		return nil, err
	}
	sizes, err := w.WireSizes(ctx, g.fleet, FullTurn)
	if err != nil {
		return nil, err
	}
	if g.paced {
		if g.watch, err = w.WatchFold(); err != nil {
			return nil, err
		}
	}
	return &Trial{
		Rounds: 1, // a run can be begun once
		WarmUp: func(ctx context.Context) error {
			if err := g.warmUp(ctx); err != nil {
				return err
			}
			g.ledger, err = w.KeepLedger(ctx) // what comes now counts
			return err
		},
		Raw: func(ctx context.Context, _ int) (Sample, error) {
			raw := NewRawWriter(w.JS, "raw", sizes, FullTurn)
			var c Clock
			for range min(g.turns*g.runs, growthTurns) {
				if err := raw.Turn(ctx, c.Time); err != nil {
					return Sample{}, err
				}
			}
			return c.sample(), nil
		},
		Ours:   func(ctx context.Context, _ int) (Sample, error) { return g.play(ctx) },
		Verify: func(ctx context.Context) error { return w.Verify(ctx, WroteBy(g.players...)) },
		Finish: g.finish,
	}, nil
}

// warmUp plays a run that does not count, so that the first that does finds everything as the later ones do.
func (g *growth) warmUp(ctx context.Context) error {
	p, err := StartRun(ctx, g.fleet, "warm-up", FullTurn)
	if err != nil {
		return err
	}
	var c Clock
	for range g.w.Options.Pick(0, growthTurns/4, 1) {
		if err := p.Turn(ctx, c.Time); err != nil {
			return err
		}
	}
	if err := p.Run.End(ctx, publisher.RunEnd{}); err != nil {
		return err
	}
	return g.w.AwaitFolded(ctx)
}

// play plays the runs one after the other, and ends each: then all of it is sealed.
func (g *growth) play(ctx context.Context) (s Sample, err error) {
	for i := range g.runs {
		p, err := StartRun(ctx, g.fleet, fmt.Sprintf("run-%d", i), FullTurn)
		if err != nil {
			return s, err
		}
		g.players = append(g.players, p)
		var c Clock
		for range g.turns {
			if err := p.Turn(ctx, func(ctx context.Context, step Step) error {
				if err := c.Time(ctx, step); err != nil || !g.paced {
					return err
				}
				return g.watch.Await(ctx, p.Run.ID(), p.Run.Head().Sequence)
			}); err != nil {
				return s, err
			}
		}
		tenth := max(1, len(c.Latencies)/10)
		g.first = append(g.first, c.Latencies[:tenth]...)
		g.last = append(g.last, c.Latencies[len(c.Latencies)-tenth:]...)
		if err := p.Run.End(ctx, publisher.RunEnd{}); err != nil {
			return s, err
		}
		one := c.sample()
		s.Boundaries, s.Payload, s.Elapsed = s.Boundaries+one.Boundaries, s.Payload+one.Payload, s.Elapsed+one.Elapsed
		s.Latencies = append(s.Latencies, one.Latencies...)
	}
	return s, nil
}

func (g *growth) finish(ctx context.Context, r *Result) error {
	bytes, missed, err := g.ledger.Bytes(ctx)
	if err != nil {
		return err
	}
	// The framework's figure uses the mean size of the kept values in the bucket; this one counts every put.
	r.CheckpointBytes = &bytes
	r.fillRatios()
	r.Set("puts_not_seen_share", missed)
	r.Set("runs", float64(g.runs))
	for name, l := range map[string][]time.Duration{"first_tenth_p50_us": g.first, "last_tenth_p50_us": g.last} {
		slices.Sort(l)
		r.Set(name, *percentile(l, 0.5))
	}
	goal, aim, speed := GoalStoredFull, growthFullAim, "full speed"
	if g.paced {
		goal, aim, speed = GoalStoredPaced, growthPacedAim, "paced"
	}
	r.AtMost("stored per payload byte", r.StoredPerPayload, aim).For(goal, fmt.Sprintf("%d turns", g.turns))
	switch g.turns {
	case growthFlatFrom:
		g.flat.bytes = r.StoredPerPayload
	case growthFlatTo:
		r.AtMost("stored, by that at 50 turns", ratio(r.StoredPerPayload, g.flat.bytes), growthFlatAim).For(GoalFlat, speed)
		first, last := r.Extra["first_tenth_p50_us"], r.Extra["last_tenth_p50_us"]
		r.AtMost("p50, turns 901-1000 by 1-100", ratio(&last, &first), growthFlatAim)
	}
	return nil
}
