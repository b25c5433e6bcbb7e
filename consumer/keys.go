package consumer

// Keys of structured logs.
const (
	keyFleet    = "fleet"
	keyShard    = "shard"
	keyRun      = "run"
	keyPosition = "position"
	keySegment  = "segment"
	keyReason   = "reason"
)
