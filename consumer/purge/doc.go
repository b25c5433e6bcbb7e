// Package purge takes sealed events out of a shard's log.
//
// It owns the queue of runs to purge, the walk that finds what earlier terms left, the proof before each purge, and the purge mark. It
// deletes nothing that it has not just proven to be in segments that the run's checkpoint counts. It must not know the fold worker, which
// tells it what is being sealed and how far all is folded.
package purge
