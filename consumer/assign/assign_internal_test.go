package assign

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func replicaNames(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("host-%d", i)
	}
	return list
}

// loads counts the shards of each replica.
func loads(owners []string) map[string]int {
	n := make(map[string]int)
	for _, o := range owners {
		n[o]++
	}
	return n
}

func TestAssign_ManyShards_SpreadEvenly(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 2, 3, 4, 5, 7, 12, 64, 256} {
		for _, replicas := range []int{1, 2, 3, 5, 8} {
			t.Run(fmt.Sprintf("%d shards of %d replicas", shards, replicas), func(t *testing.T) {
				names := replicaNames(replicas)
				owners := assign("default", shards, names)
				require.Len(t, owners, shards)
				n := loads(owners)
				for _, r := range names {
					require.GreaterOrEqual(t, n[r], shards/replicas, r)
					require.LessOrEqual(t, n[r], (shards+replicas-1)/replicas, r)
				}
				require.Zero(t, n[""], "every shard has a replica")
				slices.Reverse(names)
				require.Equal(t, owners, assign("default", shards, names), "whatever the order in which they were heard of")
			})
		}
	}
	require.Equal(t, []string{"", ""}, assign("default", 2, nil))
}

func TestAssign_ReplicaComesOrGoes_MovesFewShards(t *testing.T) {
	t.Parallel()
	const shards = 60
	for n := 1; n < 8; n++ {
		few, many := assign("default", shards, replicaNames(n)), assign("default", shards, replicaNames(n+1))
		moved := 0
		for i := range few {
			if few[i] != many[i] {
				moved++
			}
		}
		// The newcomer's share must move; evenness may cost as much again.
		require.LessOrEqual(t, moved, 2*(shards/(n+1)+1), "from %d replicas to %d", n, n+1)
	}
}

func TestAssign_TwoFleets_SpreadDifferently(t *testing.T) {
	t.Parallel()
	first := make(map[string]bool)
	for i := range 32 {
		first[assign(fmt.Sprintf("fleet-%d", i), 1, replicaNames(3))[0]] = true
	}
	require.Len(t, first, 3, "fleets of one shard are not all folded by one replica")
}
