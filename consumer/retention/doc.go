// Package retention removes runs.
//
// It owns the event run.erased, which removes a run, and the remover, which deletes the stored parts of the removed
// runs of a shard: delete, count, and check again once a power cut can no longer bring anything back. It must not know
// the fold worker, which lists removed runs, or the service, which orders removals.
package retention
