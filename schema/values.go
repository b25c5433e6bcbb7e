package schema

import "slices"

// Replay says what a resumed run may do with a call whose result was not recorded.
type Replay string

// Replay policies. Absent means [ReplayHold]: side effects are unknown.
const (
	// ReplayPure may be run again freely.
	ReplayPure Replay = "pure"
	// ReplayIdempotent may be run again with the same idempotency key.
	ReplayIdempotent Replay = "idempotent"
	// ReplayVerify asks the tool's verify subject first.
	ReplayVerify Replay = "verify"
	// ReplayHold leaves it to a person. The default.
	ReplayHold Replay = "hold"
)

// VerifyTranscript is the verify subject of a call that a transcript tells of without a result. There is no tool to ask: a later import of
// the transcript settles the call, or a person. Nobody can answer there, because subjects below waymark are not asked.
const VerifyTranscript = "waymark.transcript"

// orHold returns the policy, hold if it is empty.
func (r Replay) orHold() Replay {
	if r == "" {
		return ReplayHold
	}
	return r
}

// Rerunnable reports whether a call of the policy may be run again without asking anybody.
func (r Replay) Rerunnable() bool { return r == ReplayPure || r == ReplayIdempotent }

// Stricter returns the policy that lets a resumed run do less.
func Stricter(a, b Replay) Replay {
	order := []Replay{ReplayPure, ReplayIdempotent, ReplayVerify, ReplayHold}
	return order[max(slices.Index(order, a.orHold()), slices.Index(order, b.orHold()))]
}

// Settlement says how a call in doubt was settled.
type Settlement string

// Settlements.
const (
	// SettledRerun reopens the call under the current epoch: it will be run again.
	SettledRerun Settlement = "rerun"
	// SettledVerified closes it with what the tool itself says happened.
	SettledVerified Settlement = "verified"
	// SettledAdopted closes it with the late result that the older executor recorded.
	SettledAdopted Settlement = "adopted"
	// SettledAbandoned closes it without a result.
	SettledAbandoned Settlement = "abandoned"
	// SettledDecided closes it with what a person decided.
	SettledDecided Settlement = "decided"
)

// Kinds of a hand-off.
const (
	// HandoffContinuation is carried on by the same agent with a fresh context. The default.
	HandoffContinuation = "continuation"
	// HandoffTransfer goes to another agent.
	HandoffTransfer = "transfer"
)

// Decisions about a call.
const (
	// ModeEnforce: the call runs only if the decision allows it. ModeObserve: the decision is recorded, and the call runs whatever it says.
	ModeEnforce = "enforce"
	ModeObserve = "observe"
	// BeginPolicy names the decision that only says that a call begins. No policy made it, and it permits nothing.
	BeginPolicy = "waymark.begin"
	// DecisionAllow lets it run.
	DecisionAllow = "allow"
	// DecisionDeny does not; it fails without having run.
	DecisionDeny = "deny"
	// DecisionAsk leaves it to a person; it does not run before another decision allows it.
	DecisionAsk = "ask"
)

// DeniedType is the error type of a call that was denied, in tool.failed: its tool has not run.
const DeniedType = "denied"

// Reasons to wait.
const (
	WaitHumanInput     = "human_input"
	WaitToolApproval   = "tool_approval"
	WaitExternalSystem = "external_system"
	WaitAuth           = "auth"
	// WaitToolInDoubt waits for the settlement of a held call.
	WaitToolInDoubt = "tool_in_doubt"
)

// Purposes of a turn.
const (
	PurposeWork     = "work"
	PurposeRecovery = "recovery"
)

// Reasons of a takeover.
const (
	// TakeoverClaim is an executor's that asked the fleet for work.
	TakeoverClaim = "claim"
	// TakeoverRequest is one that somebody asked for, of whatever executor the run has. The default.
	TakeoverRequest = "request"
	// TakeoverRestart is one by the executor that has the run, begun again.
	TakeoverRestart = "restart"
	// TakeoverInput is for an answer that the run waited for.
	TakeoverInput = "input"
	// TakeoverReopen is of a run that has ended. Only a rewind takes over one of those, too.
	TakeoverReopen = "reopen"
	// TakeoverRewind goes on behind an earlier record of the run; see [RunResumedData].
	TakeoverRewind = "rewind"
)

// Statuses of an answer.
const (
	// InputResolved gives it. The default.
	InputResolved = "resolved"
	// InputCancelled says that nobody will answer.
	InputCancelled = "cancelled"
	// InputExpired says that nobody answered in time. It is the daemon's word alone.
	InputExpired = "expired"
)

// Reasons of an executor that leaves a run.
const (
	// InterruptedShutdown is one that was told to stop. The claim before it does not count as one without progress: a
	// fleet that is restarted, one executor after the other, quarantines nothing.
	InterruptedShutdown = "shutdown"
	// InterruptedPreempted leaves the run to another executor, for this one cannot go on with it.
	InterruptedPreempted = "preempted"
	// InterruptedUnreadable leaves the run to an executor that has the keys of its content. The claim before it does not count either: it
	// says nothing about the run.
	InterruptedUnreadable = "unreadable"
	// InterruptedBudget is an executor that has used up what it may spend.
	InterruptedBudget = "budget"
	// InterruptedWaiting is of a run that nobody needs to attend until it is answered.
	InterruptedWaiting = "waiting"
)
