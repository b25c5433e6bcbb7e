// Package retention executes orders to remove runs.
//
// It owns the tombstone of a removal in the log, and the remover, which executes the orders of a shard: count,
// remove, count again, receipt, and another check once a power cut can no longer undo anything. It must not know the
// fold worker, which reports folded tombstones, or the service, which writes orders.
package retention
