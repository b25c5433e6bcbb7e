package schema

// FoldTotals counts what was folded and stored in a shard, since its log was last folded from the beginning. The fold
// worker keeps it in the watermark, so that it survives a restart. A crash can lose the counts of one batch. Bytes are
// those of one copy, as JetStream counts them.
type FoldTotals struct {
	// Events folded, accepted or not.
	Events int64 `json:"events"`
	// PayloadBytes are the bodies of these events.
	PayloadBytes int64 `json:"payload_bytes"`
	// LogBytes are the same events as stored in the log. SegmentBytes are the segments made of them, without their
	// keys. CheckpointBytes is every put of a checkpoint.
	LogBytes        int64 `json:"log_bytes"`
	SegmentBytes    int64 `json:"segment_bytes"`
	CheckpointBytes int64 `json:"checkpoint_bytes"`
	// Checkpoints and Segments put.
	Checkpoints int64 `json:"checkpoints"`
	Segments    int64 `json:"segments"`
	// Boundaries accepted, and those followed by a put of a checkpoint. Counted since the version that knows them.
	Boundaries int64 `json:"boundaries,omitzero"`
	Covered    int64 `json:"boundaries_checkpointed,omitzero"`
	// Completed counts the runs that ended as completed, and ByTool those that name the call of a completion tool.
	// Limited counts the ended runs that had reached a limit, whatever their status, and SummedUp those of them with
	// a summing-up turn and a summary.
	Completed int64 `json:"runs_completed,omitzero"`
	ByTool    int64 `json:"runs_completed_by_tool,omitzero"`
	Limited   int64 `json:"runs_limited,omitzero"`
	SummedUp  int64 `json:"runs_limited_summed_up,omitzero"`
}

// Coverage is the share, between 0 and 1, of acknowledged boundaries that are followed by a checkpoint. waiting is
// the number of accepted events that are not folded yet, each of which may be a boundary. It is 1 without boundaries.
func (t *FoldTotals) Coverage(waiting int64) float64 {
	if t.Boundaries+waiting == 0 {
		return 1
	}
	return float64(t.Covered) / float64(t.Boundaries+waiting)
}

// FleetRequest asks for the state of the fleet. Its body may be empty.
type FleetRequest struct{}

// FleetReply is the state of a fleet as its streams and buckets show it, and the answering replica's own knowledge.
type FleetReply struct {
	Fleet string `json:"fleet"`
	// Replica that answers, and when it looked, RFC 3339: up to two seconds ago.
	Replica string `json:"replica"`
	At      string `json:"at"`
	// Proven: the NATS server proves the senders of requests. Otherwise By of control events is a claim.
	Proven bool `json:"proven,omitzero"`
	// Signer is the public key by which the replica signs control events; empty for one without a key. See [Keys].
	Signer string `json:"signer,omitzero"`
	// DurableMS is how long the server takes to store a small message with the durability of events, in milliseconds:
	// the shortest of the latest renewals of the leases that the replica holds. Absent before the first renewals, and
	// for a replica that folds no shard.
	DurableMS float64 `json:"durable_ms,omitzero"`
	// SilenceMS is how long an executor of the fleet may be silent before its runs are orphaned, in milliseconds.
	SilenceMS int64 `json:"silence_ms"`
	// Runs as the replica's live index has them.
	Runs FleetRuns `json:"runs"`
	// Pauses of the fleet that are in effect.
	Pauses []Pause `json:"pauses,omitzero"`
	// Limits of the fleet that are in effect, with what is used of each.
	Limits []LimitState `json:"limits,omitzero"`
	// Schedules of the fleet that are in effect, with what the replica knows of their firings.
	Schedules []ScheduleState `json:"schedules,omitzero"`
	// Webhook is the state of the replica's own posts; absent for one that posts nothing.
	Webhook *FleetWebhook `json:"webhook,omitzero"`
	Shards  []ShardState  `json:"shards"`
}

// FleetRuns counts the runs of a fleet that have not ended.
type FleetRuns struct {
	// Live runs have not ended, have a hand-off on offer, or a call that a person must settle.
	Live int `json:"live"`
	// Claimable runs can be given to an executor. Quarantined ones are not claimable automatically: a person must
	// release them or resume them by name.
	Claimable   int `json:"claimable"`
	Quarantined int `json:"quarantined"`
	// Paused runs wait for the end of a pause. They are neither claimable nor quarantined.
	Paused int `json:"paused,omitzero"`
	// Waiting runs wait for a place in a limit; see [Limit.AtWork]. They are not claimable.
	Waiting int `json:"waiting,omitzero"`
	// Gapped runs miss events.
	Gapped int `json:"gapped,omitzero"`
	// Overdue runs have work that exceeds its limit; see [Overdue].
	Overdue int `json:"overdue,omitzero"`
}

// FleetWebhook is the state of the posts about runs that need a person.
type FleetWebhook struct {
	// Pending are the items that the receiver has not accepted.
	Pending int64 `json:"pending"`
	// FailingSince is since when, RFC 3339, posts have failed for the item that has failed longest, and Why is the
	// last error, in words. Absent while no post fails.
	FailingSince string `json:"failing_since,omitzero"`
	Why          string `json:"why,omitzero"`
}

// ShardState is the state of a shard of a fleet.
type ShardState struct {
	Shard int `json:"shard"`
	// Worker is the replica that holds the shard's lease; empty if it is free. A dead worker holds it until it
	// expires.
	Worker string `json:"worker,omitzero"`
	// Position up to which the shard is folded; Last is the log's last stream sequence, barriers included.
	Position StreamSequence `json:"position"`
	Last     StreamSequence `json:"last"`
	// Waiting counts the accepted events that are not checkpointed yet; WaitingMS is how long ago the oldest of them was
	// stored, by the server's clock, in milliseconds.
	Waiting   int64 `json:"waiting"`
	WaitingMS int64 `json:"waiting_ms"`
	// LogBytes in the event stream; QuotaBytes is its size for executors, 0 if it has none, and LimitBytes the limit to
	// which the daemon has raised it.
	LogBytes   int64 `json:"log_bytes"`
	QuotaBytes int64 `json:"quota_bytes"`
	LimitBytes int64 `json:"limit_bytes"`
	// SegmentBytes and CheckpointBytes stored now, and the shard's share of the fleet's blobs. Each may have the quota.
	SegmentBytes    int64 `json:"segment_bytes"`
	CheckpointBytes int64 `json:"checkpoint_bytes"`
	BlobBytes       int64 `json:"blob_bytes"`
	// Totals of everything folded.
	Totals FoldTotals `json:"totals"`
	// Error says why the shard's state could not be read; then the other fields mean nothing.
	Error string `json:"error,omitzero"`
}
