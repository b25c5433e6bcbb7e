//go:build waymark_failpoints

package chaos_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A failure can be run again, because a seed is a plan. And plans differ in every intended aspect.
func TestSchedule_Seed_Reproducible(t *testing.T) {
	kinds, acts, shards := map[stepKind]int{}, map[string]int{}, map[int]int{}
	claims := 0
	var before *plan
	for seed := uint64(1); seed <= 300; seed++ {
		p := newPlan(seed, profile{})
		require.Equal(t, p, newPlan(seed, profile{}), "seed %d", seed)
		if before != nil {
			require.NotEqual(t, before.steps, p.steps)
		}
		before = p
		shards[p.shards]++
		if p.claims {
			claims++
		}
		for _, s := range p.steps {
			kinds[s.kind]++
			for _, a := range s.acts {
				acts[a.what]++
			}
		}
	}
	for kind := burst; kind <= thaw; kind++ {
		require.Positive(t, kinds[kind], "kind %d", kind)
	}
	for _, what := range []string{"start", "step", "take", "claim", "leave", "head", "events"} {
		require.Positive(t, acts[what], what)
	}
	require.Positive(t, kinds[silence])
	require.Len(t, shards, 3)
	require.Positive(t, claims)
	// Plans that reveal a mistake are still drawn the same.
	narrow := newPlan(7, profile{weights: mix(map[stepKind]int{crash: 5})})
	require.Zero(t, narrow.shards)
	require.False(t, narrow.claims)
}
