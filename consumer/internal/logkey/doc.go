// Package logkey owns the keys of the structured logs of the consumer's packages: one key has one name in all of them.
package logkey

// Keys of structured logs.
const (
	Fleet    = "fleet"
	Shard    = "shard"
	Run      = "run"
	Position = "position"
	Segment  = "segment"
	Reason   = "reason"
)
