package bench

import (
	"context"
	"fmt"
)

// idleMemoryAim is what an idle daemon may hold resident, in bytes.
const idleMemoryAim = 64 << 20

// memoryCase is the memory of a daemon in a process of its own.
func memoryCase() Case {
	return Case{
		Name:  "memory",
		About: "Resident memory of a daemon in a process of its own, the NATS server apart: idle, and behind some work.",
		Uses:  []string{"runs", "turns", "shards"},
		Variants: func(o Options) []Variant {
			runs, turns := o.Pick(o.Runs, 256, 8), o.Pick(o.Turns, 10, 1)
			return []Variant{{
				Parameters: map[string]any{"runs": runs, "turns": turns},
				World:      func(s *WorldSpec) { s.Daemons = 1 },
				Setup:      func(ctx context.Context, w *World) (*Trial, error) { return memoryTrial(ctx, w, runs, turns) },
			}}
		},
	}
}

func memoryTrial(ctx context.Context, w *World, runs, turns int) (*Trial, error) {
	_, idle, err := w.daemons[0].tell() // it has its lease, and nothing to do
	if err != nil {
		return nil, err
	}
	f, err := w.Fleet(ctx, "executor")
	if err != nil {
		return nil, err
	}
	players, err := StartRuns(ctx, f, "run", runs, FullTurn)
	if err != nil {
		return nil, err
	}
	return &Trial{
		Ours:   func(ctx context.Context, _ int) (Sample, error) { return Together(ctx, turners(players), turns) },
		Verify: func(ctx context.Context) error { return w.Verify(ctx, WroteBy(players...)) },
		Finish: func(_ context.Context, r *Result) error {
			if idle.Resident == nil {
				return fmt.Errorf("%w: this system does not tell how much memory a process has", ErrChild)
			}
			_, after, err := w.daemons[0].tell()
			if err != nil {
				return err
			}
			r.Set("idle_bytes", *idle.Resident)
			r.Set("after_work_bytes", *after.Resident)
			r.AtMost("idle, bytes", idle.Resident, idleMemoryAim).For(GoalIdleMemory, "")
			return nil
		},
	}, nil
}
