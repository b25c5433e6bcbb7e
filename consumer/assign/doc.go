// Package assign decides which of the replicas of a daemon folds which shard of a fleet.
//
// It owns the replicas' announcements, and the rule by which each replica computes the same assignment from them. It
// only decides which replica asks for a lease first and which gives one up: it must not know leases, the fold or the
// log. Lease and compare-and-set ensure that a shard is folded once.
package assign
