package bench

import (
	"context"
)

// timedRuns is the number of runs whose model and tools take time.
const timedRuns = 16

// turnCase measures whole turns, as docs/first-agent.md has them.
func turnCase() Case {
	return Case{
		Name: "turn",
		About: "Whole turns of 1, 16 and 64 runs at once: an answer of 2 KB with two calls of 300 B, and two results of 4 KB, one awaited after the other, " +
			"compared with as many raw messages of the same sizes, from the same processes; small steps of one run, a call and a result of 50 B; and turns of " +
			"16 runs whose model takes 200 ms and whose tools 20 ms each. Rates and times are those of turns; the times of the last are without those of model and tools.",
		Variants: func(o Options) []Variant {
			var list []Variant
			add := func(steps string, runs int, shape Shape) {
				t := turnTrial{runs: runs, turns: o.Pick(o.Turns, shape.turns(runs), 3), executors: min(o.Executors, runs), shape: shape}
				parameters := map[string]any{"steps": steps, "runs": runs, "turns": t.turns}
				if t.executors > 0 {
					parameters["executors"] = t.executors
				}
				list = append(list, Variant{Parameters: parameters, Setup: t.trial})
			}
			for _, runs := range o.Span(o.Runs, []int{1, 16, 64}, []int{1, 4}) {
				add("full", runs, FullTurn)
			}
			if o.Runs <= 1 {
				add("small", 1, SmallTurn)
			}
			if o.Runs == 0 || o.Runs == timedRuns {
				add("timed", timedRuns, TimedTurn)
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
	// ask sends a request to the executor processes, or to this process.
	ask func(context.Context, executorRequest) (Sample, []Wrote, error)
}

func (t turnTrial) trial(ctx context.Context, w *World) (*Trial, error) {
	f, err := w.Fleet(ctx, "executor")
	if err != nil {
		return nil, err
	}
	sizes, err := w.WireSizes(ctx, f, t.shape)
	if err != nil {
		return nil, err
	}
	if t.executors > 0 {
		if err := w.StartExecutors(ctx, t.executors, t.runs, t.shape, sizes); err != nil {
			return nil, err
		}
		t.ask = w.askExecutors
	} else {
		e, err := newExecutor(ctx, f, w.JS, "run", t.runs, t.shape, sizes)
		if err != nil {
			return nil, err
		}
		t.ask = e.do
	}
	return &Trial{
		WarmUp: func(ctx context.Context) error {
			turns := max(1, t.turns/10)
			if err := t.prepare(ctx, turns); err != nil {
				return err
			}
			if _, err := t.play(ctx, turns, true); err != nil {
				return err
			}
			_, err := t.play(ctx, turns, false)
			return err
		},
		Prepare: func(ctx context.Context, _ int) error { return t.prepare(ctx, t.turns) },
		Raw:     func(ctx context.Context, _ int) (Sample, error) { return t.play(ctx, t.turns, true) },
		Ours:    func(ctx context.Context, _ int) (Sample, error) { return t.play(ctx, t.turns, false) },
		Verify: func(ctx context.Context) error {
			_, wrote, err := t.ask(ctx, executorRequest{Heads: true})
			if err != nil {
				return err
			}
			return w.Verify(ctx, wrote)
		},
	}, nil
}

// prepare makes the texts of the next turns in advance: making them is not measured.
func (t *turnTrial) prepare(ctx context.Context, turns int) error {
	_, _, err := t.ask(ctx, executorRequest{Prepare: turns})
	return err
}

func (t *turnTrial) play(ctx context.Context, turns int, raw bool) (Sample, error) {
	s, _, err := t.ask(ctx, executorRequest{Play: turns, Raw: raw})
	s.Payload = s.Boundaries * int64(t.shape.Payload())
	return s, err
}
