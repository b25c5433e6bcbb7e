package reader

import "sync/atomic"

// Stats counts what reads of runs met. Every field may be read at any time.
type Stats struct {
	// Barriers published; Waiters wait for one now.
	Barriers, Waiters atomic.Int64
	// StaleAnswers were found older than a barrier and asked for again.
	StaleAnswers atomic.Int64
	// FoldsFromScratch are reads without a checkpoint. CorruptCheckpoints and CorruptSegments were met on the way.
	FoldsFromScratch, CorruptCheckpoints, CorruptSegments atomic.Int64
	// Holes confirmed by the leader; Regressions of the log behind what was checkpointed or sealed.
	Holes, Regressions atomic.Int64
}
