// Package replay folds the stored segments of a run and compares what two folds of it have.
//
// It owns the operations that exact reads, the fold, purging and verification must do equally: the check that a
// segment continues the one before it, the fold of segments onto a head, the arithmetic of gaps, and the checksum of
// a record.
//
// It knows neither the service nor the fold loop, and it reads no log: the caller supplies the segments.
//
// On failure it names the segment and the run. An unusable segment is no failure of a fold: the fold ends before it.
package replay
