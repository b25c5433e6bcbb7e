package reader

import "sync/atomic"

// Stats counts events during reads of runs. Every field may be read at any time.
type Stats struct {
	// Barriers published; Waiters are requests that wait for one now.
	Barriers, Waiters atomic.Int64
	// FoldsFromScratch are reads without a checkpoint. CorruptCheckpoints and CorruptSegments were found during
	// reads.
	FoldsFromScratch, CorruptCheckpoints, CorruptSegments atomic.Int64
	// Holes are gaps confirmed by the leader; Regressions are logs that ended before the checkpointed or sealed
	// position.
	Holes, Regressions atomic.Int64
}
