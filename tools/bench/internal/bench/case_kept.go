package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/waymarkio/waymark/publisher"
)

// keptAim is what the design allows to be kept of text, by its payload.
const keptAim = 0.5

// keptCase is what a run leaves behind once it is sealed and its events are purged from the log.
func keptCase() Case {
	return Case{
		Name:  "kept",
		About: "Bytes kept per payload byte of runs of text that have ended, after sealing and purge.",
		Uses:  []string{"runs", "turns", "shards", "daemons"},
		Variants: func(o Options) []Variant {
			runs, turns := o.Pick(o.Runs, 32, 3), o.Pick(o.Turns, 50, 4)
			return []Variant{{
				Parameters: map[string]any{"runs": runs, "turns": turns},
				World:      func(s *WorldSpec) { s.PurgeAfter = time.Millisecond },
				Setup:      func(ctx context.Context, w *World) (*Trial, error) { return keptTrial(ctx, w, runs, turns) },
			}}
		},
	}
}

func keptTrial(ctx context.Context, w *World, runs, turns int) (*Trial, error) {
	f, err := w.Fleet(ctx, "executor")
	if err != nil {
		return nil, err
	}
	players, err := StartRuns(ctx, f, "run", runs, FullTurn)
	if err != nil {
		return nil, err
	}
	kept := reading{}
	return &Trial{
		Rounds: 1, // the runs end with it
		Ours: func(ctx context.Context, _ int) (Sample, error) {
			s, err := Together(ctx, turners(players), turns)
			for _, p := range players {
				if err == nil {
					err = p.Run.End(ctx, publisher.RunEnd{})
				}
			}
			return s, err
		},
		Settle: func(ctx context.Context) error {
			if err := w.AwaitFolded(ctx); err != nil || players[0].turn == 0 {
				return err // before the round there is nothing to purge
			}
			return w.Await(ctx, 2*time.Minute, "the purge of what is sealed", func() (_ bool, err error) {
				kept, err = w.read(ctx)
				// A run's last event stays in the log, because its compare-and-set needs it.
				return kept.log.messages <= float64(runs), err
			})
		},
		Verify: func(ctx context.Context) error { return w.Verify(ctx, WroteBy(players...)) },
		Finish: func(_ context.Context, r *Result) error {
			all := kept.log.bytes + kept.segments.bytes + kept.checkpoints.bytes
			r.KeptPerPayload = ratio(&all, r.PayloadBytes)
			for name, s := range map[string]stored{"log": kept.log, "segment": kept.segments, "checkpoint": kept.checkpoints} {
				r.Set(fmt.Sprintf("kept_%s_bytes", name), s.bytes)
			}
			r.AtMost("kept per payload byte", r.KeptPerPayload, keptAim).For(GoalKept, "")
			return nil
		},
	}, nil
}
