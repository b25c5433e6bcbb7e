package schema

// MaxExecutors and MaxExecutorRuns bound an [ExecutorsReply]: the executors of the fleet, and the runs of one.
const (
	MaxExecutors    = 200
	MaxExecutorRuns = 100
)

// ExecutorsRequest asks for the executors of a fleet. Its body may be empty.
type ExecutorsRequest struct {
	// Executor selects the executors of this name, with their runs; empty selects all, without runs.
	Executor string `json:"executor,omitzero" check:"name"`
	// Agents for which the reply counts the living executors.
	Agents []string `json:"agents,omitzero" check:"max=256" each:"required,name"`
	// VersionsOf is the agent whose versions the reply has.
	VersionsOf string `json:"versions_of,omitzero" check:"name"`
}

// ExecutorsReply lists the executors of a fleet, as the answering replica hears them. Only replicas that fold receive heartbeats, and only
// they answer.
type ExecutorsReply struct {
	Fleet string `json:"fleet"`
	// Replica answered, at At (RFC 3339). All ages are measured by its clock.
	Replica string `json:"replica"`
	At      string `json:"at"`
	// HeardSince is since when the replica receives all heartbeats, RFC 3339: silence before it does not count. Absent while it receives none.
	HeardSince string `json:"heard_since,omitzero"`
	// SilenceMS is how long an executor may be silent, in milliseconds. An executor with slow heartbeats may be so for three of its intervals.
	SilenceMS int64 `json:"silence_ms"`
	// Executors has those with active runs first, in the order in which their runs become orphaned; then the others, the latest seen first.
	// There are at most [MaxExecutors]; More counts those left out.
	Executors []ExecutorState `json:"executors"`
	More      int             `json:"more,omitzero"`
	// Claiming counts the living executors that claim runs of each agent in the request. Unsaid executors live, too, but
	// do not say what they claim. Both are absent if the replica has not received heartbeats for the fleet's silence.
	Claiming map[string]int `json:"claiming,omitzero"`
	Unsaid   int            `json:"unsaid,omitzero"`
	// Versions are the different versions of the agent VersionsOf at living executors, at most [MaxVersions].
	Versions []Version `json:"versions,omitzero"`
	// MoreVersions counts the living executors with yet other ones.
	MoreVersions int `json:"more_versions,omitzero"`
}

// ExecutorState is one process of an executor.
type ExecutorState struct {
	Executor string `json:"executor"`
	// Instance differs between two starts of the process; see [Heartbeat].
	Instance string `json:"instance,omitzero"`
	// SeenMS is the time since its last heartbeat or event, in milliseconds; absent if this replica never received one.
	SeenMS *int64 `json:"seen_ms,omitzero"`
	// IntervalMS is the interval of its heartbeats, in milliseconds; 0 if only its events were seen.
	IntervalMS int64 `json:"interval_ms,omitzero"`
	// Leaving: it announced that it ends.
	Leaving bool `json:"leaving,omitzero"`
	// Silent: its heartbeat is late by half an interval or more, and it was not heard for half a second or more.
	Silent bool `json:"silent,omitzero"`
	// InHand is its number of active runs. Waiting runs need no executor and are not counted.
	InHand int `json:"in_hand,omitzero"`
	// OrphanedInMS is in how many milliseconds its active runs become orphaned unless it is heard; 0 once that time is over. A daemon checks at
	// least every second, so they may be orphaned up to a second later. Absent without active runs, or if the replica receives no heartbeats.
	OrphanedInMS *int64 `json:"orphaned_in_ms,omitzero"`
	// Runs are its active runs, if the request named the executor: at most [MaxExecutorRuns].
	Runs []string `json:"runs,omitzero"`
}
