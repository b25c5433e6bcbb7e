package assign

import (
	"cmp"
	"hash/fnv"
	"slices"
	"strconv"
)

// assign assigns each shard of a fleet to one of its replicas: evenly, so that the numbers of two replicas differ by
// at most one; with the same result on every replica that knows the same replicas; and so that few shards move when a
// replica comes or goes (rendezvous hashing: the best pairs of shard and replica are taken first, as long as the
// replica has room). The result names the replica of each shard, or is all empty if there is no replica.
func assign(fleet string, shards int, replicas []string) []string {
	owners := make([]string, shards)
	if len(replicas) == 0 {
		return owners
	}
	type pair struct {
		score   uint64
		shard   int
		replica string
	}
	pairs := make([]pair, 0, shards*len(replicas))
	for i := range shards {
		for _, r := range replicas {
			pairs = append(pairs, pair{affinity(fleet, i, r), i, r})
		}
	}
	slices.SortFunc(pairs, func(a, b pair) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.shard, b.shard), cmp.Compare(a.replica, b.replica))
	})
	// Each replica has room for least; some have room for one more.
	least, more := shards/len(replicas), shards%len(replicas)
	load := make(map[string]int, len(replicas))
	for _, p := range pairs {
		switch n := load[p.replica]; {
		case owners[p.shard] != "" || n > least || n == least && more == 0:
			continue
		case n == least:
			more--
		}
		owners[p.shard] = p.replica
		load[p.replica]++
	}
	return owners
}

// affinity is the score of a shard and a replica: a hash that every replica computes equally.
func affinity(fleet string, shard int, replica string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(fleet + "\n" + strconv.Itoa(shard) + "\n" + replica))
	// FNV mixes the high bits badly for texts that differ at their end.
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
