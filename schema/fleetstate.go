package schema

// FoldTotals adds up what was folded and stored of a shard, since its watermark was first put or lost. The fold worker keeps
// them in the watermark, so that they survive it. Events and their bytes count once, however often a crash makes them be folded
// again; of puts and boundaries, a crash can leave out those of one batch. Bytes are those of one copy, as JetStream counts them.
type FoldTotals struct {
	// Events folded, accepted or not.
	Events int64 `json:"events"`
	// PayloadBytes are the bodies of these events.
	PayloadBytes int64 `json:"payload_bytes"`
	// LogBytes are the same events as stored in the log; SegmentBytes the segments that were made of them, without
	// their keys; CheckpointBytes every put of a checkpoint.
	LogBytes        int64 `json:"log_bytes"`
	SegmentBytes    int64 `json:"segment_bytes"`
	CheckpointBytes int64 `json:"checkpoint_bytes"`
	// Checkpoints and Segments put.
	Checkpoints int64 `json:"checkpoints"`
	Segments    int64 `json:"segments"`
	// Boundaries accepted, and those of them that a checkpoint was put behind. Counted since the version that knows them.
	Boundaries int64 `json:"boundaries,omitzero"`
	Covered    int64 `json:"boundaries_checkpointed,omitzero"`
	// Completed counts the ends of runs as completed, and ByTool those of them that name the call of a completion tool. Limited counts the ends of
	// runs that had reached a limit, whatever their status, and SummedUp those of them behind a turn that sums up, with a summary.
	Completed int64 `json:"runs_completed,omitzero"`
	ByTool    int64 `json:"runs_completed_by_tool,omitzero"`
	Limited   int64 `json:"runs_limited,omitzero"`
	SummedUp  int64 `json:"runs_limited_summed_up,omitzero"`
}

// StoredBytes is all that was written for the events.
func (t *FoldTotals) StoredBytes() int64 { return t.LogBytes + t.SegmentBytes + t.CheckpointBytes }

// Amplification is the number of bytes stored for each byte of payload; 0 without payload.
func (t *FoldTotals) Amplification() float64 { return ratio(t.StoredBytes(), t.PayloadBytes) }

// BytesPerEvent is the number of bytes stored for each event; 0 without events.
func (t *FoldTotals) BytesPerEvent() float64 { return ratio(t.StoredBytes(), t.Events) }

// EventsPerCheckpoint is the number of events that share one put of a checkpoint; 0 without puts.
func (t *FoldTotals) EventsPerCheckpoint() float64 { return ratio(t.Events, t.Checkpoints) }

// Coverage is the share of the boundaries acknowledged by the log that a checkpoint was put behind, between 0 and 1: waiting are
// the events that the log has accepted and nobody has folded yet, each of which may be a boundary. 1 without any.
func (t *FoldTotals) Coverage(waiting int64) float64 {
	if t.Boundaries+waiting == 0 {
		return 1
	}
	return ratio(t.Covered, t.Boundaries+waiting)
}

func ratio(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// FleetRequest asks how the fleet is. Its body may be empty.
type FleetRequest struct{}

// FleetReply says how a fleet is, as its streams and buckets show it, and what the replica that answers knows itself.
type FleetReply struct {
	Fleet string `json:"fleet"`
	// Replica that answers, and when it looked, RFC 3339: up to two seconds ago.
	Replica string `json:"replica"`
	At      string `json:"at"`
	// Proven: the NATS server proves the senders of requests. Otherwise By of control events is a claim.
	Proven bool `json:"proven,omitzero"`
	// Signer is the public key by which the replica signs control events; empty for one without a key. See [Keys].
	Signer string `json:"signer,omitzero"`
	// DurableMS is how long the server takes to store a small message as it stores events, in milliseconds: the shortest of the latest
	// renewals of the leases that the replica holds. Absent before the first renewals, and for a replica that folds no shard.
	DurableMS float64 `json:"durable_ms,omitzero"`
	// SilenceMS is how long an executor of the fleet may be silent before its runs are orphaned, in milliseconds.
	SilenceMS int64 `json:"silence_ms"`
	// Runs as the replica's live index has them.
	Runs FleetRuns `json:"runs"`
	// Webhook is how the replica's own posts stand; absent for one that posts nothing.
	Webhook *FleetWebhook `json:"webhook,omitzero"`
	// Recovery counts the replica's own takeovers.
	Recovery FleetRecovery `json:"recovery"`
	Shards   []ShardState  `json:"shards"`
}

// FleetRuns counts the runs of a fleet that have not ended.
type FleetRuns struct {
	// Live runs have not ended, have a hand-off on offer, or a call that a person must settle.
	Live int `json:"live"`
	// Claimable runs can be given to an executor; Quarantined ones are given to nobody before somebody asks for them.
	Claimable   int `json:"claimable"`
	Quarantined int `json:"quarantined"`
	// Overdue runs have work that takes longer than it may; see [Overdue]. A replica that does not fold knows of none.
	Overdue int `json:"overdue,omitzero"`
}

// FleetWebhook tells of the posts of what needs a person.
type FleetWebhook struct {
	// Pending are the things that the receiver has not taken.
	Pending int64 `json:"pending"`
	// FailingSince is since when, RFC 3339, the posts fail of the pending thing for which they fail for longest, and Why the last of them
	// failed, in words. Absent while none fails.
	FailingSince string `json:"failing_since,omitzero"`
	Why          string `json:"why,omitzero"`
}

// FleetRecovery tells of the takeovers that a replica did since it started.
type FleetRecovery struct {
	Count int64 `json:"count"`
	// LastMS is how long the last one took, from the request's arrival to the last reply, in milliseconds; LastRun and
	// LastAt say of which run and when, RFC 3339.
	LastMS  float64 `json:"last_ms,omitzero"`
	LastRun string  `json:"last_run,omitzero"`
	LastAt  string  `json:"last_at,omitzero"`
}

// MaxParked bounds the parked runs of a shard: more are not the runs' own fault, and stop the shard.
const MaxParked = 1024

// ParkedRun is a run that its shard's fold leaves where it stands, because its checkpoint cannot be stored or read for a reason of its
// own. Nothing of it is lost, and a recovery returns all of it; it is not orphaned, and its checkpoint is old. The daemon tries again.
type ParkedRun struct {
	Run string `json:"run"`
	// Since when, RFC 3339, by the clock of the daemon that folded it.
	Since string `json:"since"`
	// Why the last try failed, in words.
	Why string `json:"why"`
	// Tries that failed.
	Tries int `json:"tries"`
}

// ShardState is how a shard of a fleet is.
type ShardState struct {
	Shard int `json:"shard"`
	// Worker is the replica that holds the shard's lease; empty when it is free. One that died holds it until it runs out.
	Worker string `json:"worker,omitzero"`
	// Position up to which the shard is folded, and when the fold worker said so, RFC 3339; Last is the log's last stream
	// sequence, barriers included.
	Position StreamSequence `json:"position"`
	FoldedAt string         `json:"folded_at,omitzero"`
	Last     StreamSequence `json:"last"`
	// Waiting counts the events that were accepted and are not checkpointed yet; WaitingSince is when the oldest of them
	// was stored, by the server's clock, RFC 3339, and WaitingMS how long ago that is, in milliseconds.
	Waiting      int64  `json:"waiting"`
	WaitingSince string `json:"waiting_since,omitzero"`
	WaitingMS    int64  `json:"waiting_ms"`
	// LogBytes and LogMessages in the event stream; QuotaBytes is its size for executors, 0 when it has none, and
	// LimitBytes what the daemon has lifted it to.
	LogBytes    int64  `json:"log_bytes"`
	LogMessages uint64 `json:"log_messages"`
	QuotaBytes  int64  `json:"quota_bytes"`
	LimitBytes  int64  `json:"limit_bytes"`
	// SegmentBytes and CheckpointBytes kept now.
	SegmentBytes    int64 `json:"segment_bytes"`
	CheckpointBytes int64 `json:"checkpoint_bytes"`
	// Totals of all that was folded.
	Totals FoldTotals `json:"totals"`
	// Parked are some of the parked runs, at most [MaxListParked] in all shards of an answer; ParkedCount counts all of the shard, at most
	// [MaxParked].
	Parked      []ParkedRun `json:"parked,omitzero"`
	ParkedCount int         `json:"parked_count,omitzero"`
	// Error says why the shard could not be looked at; then the rest means nothing.
	Error string `json:"error,omitzero"`
}
