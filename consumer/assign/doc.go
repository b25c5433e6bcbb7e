// Package assign says which of the replicas of a daemon is to fold which shard of a fleet.
//
// It owns what replicas tell each other of their presence, and the rule by which each computes the same assignment of it. It only says who
// should ask for a lease first and who should give one up: it must not know leases, the fold or the log. That a shard is folded once goes
// by lease and compare-and-set alone.
package assign
