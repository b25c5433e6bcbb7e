// Package purge removes sealed events from a shard's log.
//
// It owns the queue of runs to purge, the walk that finds what earlier terms left, the proof before each purge, and
// the purge cursor. It only deletes events that it has just proven to be in segments of the run's checkpoint. It must
// not know the fold worker, which reports seals and its position.
package purge
