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

// orHold returns the policy, hold if it is empty.
func (r Replay) orHold() Replay {
	if r == "" {
		return ReplayHold
	}
	return r
}

// Rerunnable reports whether a call of the policy may be run again without asking.
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
	// SettledVerified closes it with the tool's own report.
	SettledVerified Settlement = "verified"
	// SettledAdopted closes it with the late result that the older executor recorded.
	SettledAdopted Settlement = "adopted"
	// SettledAbandoned closes it without a result.
	SettledAbandoned Settlement = "abandoned"
	// SettledDecided closes it with a person's decision.
	SettledDecided Settlement = "decided"
)

// Kinds of a hand-off.
const (
	// HandoffContinuation continues with the same agent in a fresh context. The default.
	HandoffContinuation = "continuation"
	// HandoffTransfer goes to another agent.
	HandoffTransfer = "transfer"
)

// Decisions about a call.
const (
	// ModeEnforce: the call runs only if the decision allows it. ModeObserve: the decision is recorded, and the call
	// runs regardless.
	ModeEnforce = "enforce"
	ModeObserve = "observe"
	// BeginPolicy names the decision that only notes that a call begins. No policy made it, and it permits nothing.
	BeginPolicy = "waymark.begin"
	// DecisionAllow lets the call run.
	DecisionAllow = "allow"
	// DecisionDeny stops the call; it fails without having run.
	DecisionDeny = "deny"
	// DecisionAsk leaves it to a person; the call does not run before another decision allows it.
	DecisionAsk = "ask"
)

// DeniedType is the error type of a denied call, in tool.failed: its tool has not run.
const DeniedType = "denied"

// Reasons to wait.
const (
	WaitHumanInput     = "human_input"
	WaitToolApproval   = "tool_approval"
	WaitExternalSystem = "external_system"
	WaitAuth           = "auth"
	// WaitToolInDoubt waits for the settlement of a held call.
	WaitToolInDoubt = "tool_in_doubt"
	// WaitSignal waits for a signal with which no turn was started. Such a signal ends the wait, unless it is a
	// [ChildWait].
	WaitSignal = "signal"
	// WaitTimer waits for its expiry.
	WaitTimer = "timer"
)

// RetryWait is the prefix of the interrupt ids of timers before another try: a model's provider, or a tool, has failed.
const RetryWait = "retry."

// Purposes of a turn.
const (
	PurposeWork     = "work"
	PurposeRecovery = "recovery"
)

// Reasons of a takeover.
const (
	// TakeoverClaim is by an executor that asked the fleet for work.
	TakeoverClaim = "claim"
	// TakeoverRequest was requested by name, whatever executor the run has. The default.
	TakeoverRequest = "request"
	// TakeoverRestart is by the executor that has the run, after a restart.
	TakeoverRestart = "restart"
	// TakeoverInput is for an answer to a wait of the run.
	TakeoverInput = "input"
	// TakeoverReopen continues a run that has ended. Only a rewind can do that too.
	TakeoverReopen = "reopen"
	// TakeoverRewind continues after an earlier record of the run; see [RunResumedData].
	TakeoverRewind = "rewind"
)

// Statuses of an answer.
const (
	// InputResolved is the answer. The default.
	InputResolved = "resolved"
	// InputCancelled says that no answer will come.
	InputCancelled = "cancelled"
	// InputExpired says that no answer came in time. Only the daemon writes it.
	InputExpired = "expired"
)

// Reasons why an executor leaves a run.
const (
	// InterruptedShutdown: the executor was told to stop. The claim before it does not count as one without progress:
	// a rolling restart of a fleet quarantines nothing.
	InterruptedShutdown = "shutdown"
	// InterruptedPreempted leaves the run to another executor, because this one cannot continue it.
	InterruptedPreempted = "preempted"
	// InterruptedUnavailable leaves the run to an executor that has the keys of its content, or to a time at which the
	// fleet answers. The claim before it does not count either: it is no fault of the run.
	InterruptedUnavailable = "unavailable"
	// InterruptedBudget: the executor has used up its budget.
	InterruptedBudget = "budget"
	// InterruptedPaused: a pause selects the run. The claim before it does not count either.
	InterruptedPaused = "paused"
	// InterruptedWaiting: the run needs no executor until it is answered.
	InterruptedWaiting = "waiting"
)
