package bench

import "context"

// shardsRuns are the runs of the case, in one process.
const shardsRuns = 64

// shardsCase is what shards bring: to executors, and to the fold.
func shardsCase() Case {
	return Case{
		Name:  "shards",
		About: "Many runs in one process, and the fold catching up alone, with 1, 2 and 4 shards, compared with one raw stream.",
		Uses:  []string{"runs", "turns", "shards", "daemons"},
		Variants: func(o Options) []Variant {
			runs := o.Pick(o.Runs, shardsRuns, 4)
			var list []Variant
			for _, shards := range o.Span(o.Shards, []int{1, 2, 4}, []int{2}) {
				publish, fold := o.Pick(o.Turns, 8, 1), o.Pick(o.Turns, 50, 2)
				list = append(list, Variant{
					Parameters: map[string]any{"what": "boundaries", "shards": shards, "runs": runs, "turns": publish},
					World:      func(s *WorldSpec) { s.Shards = shards },
					Setup:      func(ctx context.Context, w *World) (*Trial, error) { return boundariesTrial(ctx, w, runs, publish) },
				}, Variant{
					Parameters: map[string]any{"what": "fold", "shards": shards, "runs": runs, "turns": fold},
					World: func(s *WorldSpec) {
						s.Shards, s.NoDaemon = shards, true
						if s.Sync == "" {
							s.Sync = SyncDefault
						}
					},
					Setup: func(_ context.Context, w *World) (*Trial, error) {
						return (&foldTrial{w: w, runs: runs, turns: fold, alone: true, accepted: new(float64)}).trial(), nil
					},
				})
			}
			return list
		},
	}
}
