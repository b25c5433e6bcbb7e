package bench

import (
	"context"
	"fmt"
)

// Aims of a turn: bytes stored by payload, CPU of all processes in us, and the time added to model and tools, in us.
const (
	turnStoredAim = 1.6
	turnCPUAim    = 600
	turnAddedAim  = 600
	// timedRuns is the number of runs whose model and tools take time.
	timedRuns = 16
)

// turnCase measures whole turns, as docs/first-agent.md has them.
func turnCase() Case {
	return Case{
		Name: "turn",
		About: "Whole turns of 1, 16 and 64 runs at once: an answer of 2 KB with two calls of 300 B, and two results of 4 KB, one awaited after the other, " +
			"compared with as many raw messages of the same sizes; and turns of 16 runs whose model takes " +
			"200 ms and whose tools 20 ms each. Rates and times are those of turns; the times of the last are without those of model and tools.",
		Uses: []string{"runs", "turns", "shards", "daemons", "executors"},
		Variants: func(o Options) []Variant {
			var list []Variant
			add := func(runs int, shape Shape, parameters map[string]any) {
				t := turnTrial{runs: runs, turns: o.Pick(o.Turns, shape.turns(runs), 3), executors: min(o.Executors, runs), shape: shape}
				parameters["runs"], parameters["turns"] = runs, t.turns
				if t.executors > 0 {
					parameters["executors"] = t.executors
				}
				list = append(list, Variant{Parameters: parameters, Setup: t.trial})
			}
			for _, runs := range o.Span(o.Runs, []int{1, 16, 64}, []int{1, 4}) {
				add(runs, FullTurn, map[string]any{"steps": "full"})
			}
			if o.Runs == 0 || o.Runs == timedRuns {
				add(timedRuns, TimedTurn, map[string]any{"steps": "timed"})
			}
			return list
		},
	}
}

// turns returns the number of turns of each run in a round.
func (s Shape) turns(runs int) int {
	if s == TimedTurn {
		return 20
	}
	return max(10, min(200, 1280/runs))
}

// turnTrial is one variant.
type turnTrial struct {
	runs, turns, executors int
	shape                  Shape
	w                      *World
	ours, raw              []Turner
	wrote                  func(context.Context) ([]Wrote, error)
}

func (t turnTrial) trial(ctx context.Context, w *World) (*Trial, error) {
	t.w = w
	f, err := w.Fleet(ctx, "executor")
	if err != nil {
		return nil, err
	}
	sizes, err := w.WireSizes(ctx, f, t.shape)
	if err != nil {
		return nil, err
	}
	for i := range t.runs {
		t.raw = append(t.raw, NewRawWriter(w.JS, fmt.Sprintf("raw-%d", i), sizes, t.shape))
	}
	if t.executors > 0 {
		if err := w.StartExecutors(ctx, t.executors, t.runs, t.shape); err != nil {
			return nil, err
		}
		t.wrote = w.WroteByExecutors
	} else {
		players, err := StartRuns(ctx, f, "run", t.runs, t.shape)
		if err != nil {
			return nil, err
		}
		t.ours = turners(players)
		t.wrote = func(context.Context) ([]Wrote, error) { return WroteBy(players...), nil }
	}
	return &Trial{
		WarmUp: func(ctx context.Context) error {
			turns := max(1, t.turns/10)
			if err := t.prepare(ctx, turns); err != nil {
				return err
			}
			if _, err := WholeTurns(ctx, t.raw, turns); err != nil {
				return err
			}
			_, err := t.play(ctx, turns)
			return err
		},
		Prepare: func(ctx context.Context, _ int) error { return t.prepare(ctx, t.turns) },
		Raw:     func(ctx context.Context, _ int) (Sample, error) { return WholeTurns(ctx, t.raw, t.turns) },
		Ours:    func(ctx context.Context, _ int) (Sample, error) { return t.play(ctx, t.turns) },
		Verify: func(ctx context.Context) error {
			wrote, err := t.wrote(ctx)
			if err != nil {
				return err
			}
			return w.Verify(ctx, wrote)
		},
		Finish: t.finish,
	}, nil
}

// prepare makes the texts of the next turns in advance: making them is not measured.
func (t *turnTrial) prepare(ctx context.Context, turns int) error {
	for _, all := range [][]Turner{t.raw, t.ours} {
		for _, one := range all {
			one.Prepare(turns)
		}
	}
	return t.w.PrepareExecutors(ctx, turns)
}

func (t *turnTrial) play(ctx context.Context, turns int) (s Sample, err error) {
	if t.executors > 0 {
		s, err = t.w.PlayExecutors(ctx, turns)
	} else {
		s, err = WholeTurns(ctx, t.ours, turns)
	}
	s.Payload = s.Boundaries * int64(t.shape.Payload())
	return s, err
}

func (t *turnTrial) finish(_ context.Context, r *Result) error {
	if t.shape == TimedTurn {
		if r.Ours != nil {
			r.AtMost("added to a turn, p50 us", r.Ours.P50, turnAddedAim)
		}
		return nil
	}
	r.AtMost("stored per payload byte", r.StoredPerPayload, turnStoredAim)
	r.AtMost("CPU of a turn, us", r.cpu(), turnCPUAim)
	return nil
}
