package schema

// MaxExecutors and MaxExecutorRuns bound an [ExecutorsReply]: the executors of the fleet, and the runs of one.
const (
	MaxExecutors    = 200
	MaxExecutorRuns = 100
)

// ExecutorsRequest asks which executors a fleet has. Its body may be empty.
type ExecutorsRequest struct {
	// Executor keeps those of this name, with their runs; empty keeps all, without runs.
	Executor string `json:"executor,omitzero"`
}

// ExecutorsReply says which executors a fleet has, as the replica that answers hears them. Only replicas that fold hear executors, and only
// they answer.
type ExecutorsReply struct {
	Fleet string `json:"fleet"`
	// Replica that answers, and when, RFC 3339. All ages are by its clock.
	Replica string `json:"replica"`
	At      string `json:"at"`
	// HeardSince is since when the replica missed no heartbeat, RFC 3339: no silence counts from before. Absent while it hears none.
	HeardSince string `json:"heard_since,omitzero"`
	// SilenceMS is how long an executor of the fleet may be silent, in milliseconds; one with slow heartbeats may be for three of them.
	SilenceMS int64 `json:"silence_ms"`
	// Executors that work on runs come first, the one whose runs are orphaned first before the others; then the others, the latest seen first.
	// At most [MaxExecutors]; More counts the others.
	Executors []ExecutorState `json:"executors"`
	More      int             `json:"more,omitzero"`
}

// ExecutorState is one start of an executor's process.
type ExecutorState struct {
	Executor string `json:"executor"`
	// Instance tells one start of the process from the next; see [Heartbeat].
	Instance string `json:"instance,omitzero"`
	// SeenMS is how long ago it was last seen alive, by a heartbeat or an event, in milliseconds; absent if this replica never saw it.
	SeenMS *int64 `json:"seen_ms,omitzero"`
	// IntervalMS is the pace of its heartbeats, in milliseconds; 0 if only its events were seen.
	IntervalMS int64 `json:"interval_ms,omitzero"`
	// Leaving: it said that it ends.
	Leaving bool `json:"leaving,omitzero"`
	// Silent: it missed a heartbeat, by a half of their pace or more, and was not heard for half a second or more.
	Silent bool `json:"silent,omitzero"`
	// InHand is how many runs it works on. Runs that wait need no executor, and are not counted.
	InHand int `json:"in_hand,omitzero"`
	// OrphanedInMS is in how many milliseconds those are orphaned unless it is heard, 0 from then on. It is when the silence is over: a daemon
	// looks every second, or more often. Absent if it works on none, or nothing is heard.
	OrphanedInMS *int64 `json:"orphaned_in_ms,omitzero"`
	// Runs that it works on, if it was asked for by its name: at most [MaxExecutorRuns].
	Runs []string `json:"runs,omitzero"`
}
